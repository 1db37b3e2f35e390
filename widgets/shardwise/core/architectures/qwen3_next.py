"""Qwen3-Next: gated delta rule and gated attention in turn, experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwise.core.architectures.decoder import grouped_query
from shardwise.core.architectures.experts import expert_sizes, sparse_step
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.hybrid import (
    ATTENTION,
    MIXER,
    Hybrid,
    Layer,
    known_kinds,
    listed_kinds,
)
from shardwise.core.architectures.layers import (
    fused_experts,
    gated_mlp,
    head_norms,
    router,
    two_norms,
)
from shardwise.core.architectures.templates import (
    ALWAYS,
    COLUMN,
    ROW,
    Sizes,
    linear,
    norm,
    rows,
    tensor,
)
from shardwise.core.config_fields import ConfigFields
from shardwise.core.errors import ScenarioError
from shardwise.core.state_space import StateSpace
from shardwise.core.structure import BlockShape

_DELTA = rows(
    tensor("linear_attn.dt_bias", "value_heads", part="other", cut=COLUMN),
    tensor("linear_attn.A_log", "value_heads", part="other", cut=COLUMN),
    tensor("linear_attn.conv1d.weight", "convolved", 1, "kernel", part="other", cut=COLUMN),
    linear("linear_attn.in_proj_qkvz", "keys_and_values", "hidden", "other", COLUMN),
    linear("linear_attn.in_proj_ba", "decays", "hidden", "other", COLUMN),
    norm("linear_attn.norm", "value_dim"),
    linear("linear_attn.out_proj", "hidden", "values", "other", ROW),
)
# The query projection makes each head's gate too.
_ATTENTION = rows(
    linear("self_attn.q_proj", "query_and_gate", "hidden", "attention", COLUMN, bias="qkv_bias"),
    linear("self_attn.k_proj", "key_value", "hidden", "attention", COLUMN, bias="qkv_bias"),
    linear("self_attn.v_proj", "key_value", "hidden", "attention", COLUMN, bias="qkv_bias"),
    linear("self_attn.o_proj", "hidden", "query", "attention", ROW, bias="qkv_bias"),
    head_norms(),
)
_EXPERTS = rows(
    router(),
    fused_experts(),
    gated_mlp("mlp.shared_expert", "shared_intermediate", when=ALWAYS),
    linear("mlp.shared_expert_gate", 1, "hidden", "router"),
)
CHUNK = 64
"""Tokens of a chunk: the default of `torch_chunk_gated_delta_rule`, which no config changes."""


def _space(fields: ConfigFields) -> StateSpace:
    keys = fields.whole("linear_num_key_heads")
    values = fields.whole("linear_num_value_heads")
    if values % keys:
        allowed = f"a multiple of linear_num_key_heads, which is {keys}"
        raise ScenarioError("linear_num_value_heads", values, allowed)
    return StateSpace(
        "gated-delta",
        values * fields.whole("linear_value_head_dim"),
        fields.whole("linear_key_head_dim"),
        fields.whole("linear_conv_kernel_dim"),
        heads=values,
        groups=keys,
        chunk=CHUNK,
    )


def _sizes(fields: ConfigFields) -> dict[str, int]:
    space = _space(fields)
    attention = grouped_query(fields)
    widths = ("moe_intermediate_size", "shared_expert_intermediate_size")
    experts = fields.whole("num_local_experts", minimum=0, maximum=65_536)
    return {
        **attention,
        **(expert_sizes(*widths)(fields) if experts else {}),
        "query_and_gate": 2 * attention["query"],
        "intermediate": fields.whole("intermediate_size"),
        "value_heads": space.heads,
        "value_dim": space.head_dim,
        "values": space.inner,
        "convolved": space.convolved,
        "keys_and_values": space.inner + space.convolved,
        "decays": 2 * space.heads,
        "kernel": space.kernel,
        "qkv_bias": int(fields.flag("attention_bias")),
        "mlp_bias": 0,
    }


def _kinds(fields: ConfigFields) -> Sequence[str]:
    layers = fields.layer_count()
    listed = listed_kinds(fields, ("layer_types",))
    if listed is None:
        every = fields.whole("full_attention_interval")
        listed = tuple(MIXER if (i + 1) % every else ATTENTION for i in range(layers))
    known_kinds(fields, "layer_types", listed, (MIXER, ATTENTION))
    sparse = sparse_step(fields, layers)
    if not fields.whole("num_local_experts", minimum=0, maximum=65_536):
        sparse = (False,) * layers
    return [f"{kind} {'experts' if s else 'MLP'}" for kind, s in zip(listed, sparse, strict=True)]


def _layers(fields: ConfigFields, sizes: Sizes) -> Mapping[str, Layer]:
    common = BlockShape(
        hidden=sizes["hidden"],
        intermediate=sizes["intermediate"],
        gated=True,
        activation=fields.text("hidden_act"),
        norm_in_fp32=True,
    )
    heads: dict[str, Any] = {
        name: sizes[name] for name in ("heads", "kv_heads", "head_dim", "value_head_dim")
    }
    mixers = {
        MIXER: (_DELTA, replace(common, attention=False, mixer=_space(fields))),
        ATTENTION: (
            _ATTENTION,
            replace(
                common,
                **heads,
                rotary=True,
                qk_norm=True,
                attention_bias=bool(sizes["qkv_bias"]),
                attention_dropout=fields.number("attention_dropout"),
            ),
        ),
    }
    layers = {}
    for mixer, (template, shape) in mixers.items():
        name = "delta" if mixer == MIXER else "attention"
        dense = replace(shape, recorded=f"qwen3 next {name} MLP")
        layers[f"{mixer} MLP"] = Layer(rows(template, gated_mlp(), two_norms()), dense)
        if "experts" in sizes:
            sparse = replace(
                shape,
                intermediate=0,
                experts=sizes["experts"],
                experts_per_token=sizes["experts_per_token"],
                expert_intermediate=sizes["expert_intermediate"],
                shared_intermediate=sizes["shared_intermediate"],
                shared_gate=True,
                recorded=f"qwen3 next {name} experts",
            )
            layers[f"{mixer} experts"] = Layer(rows(template, _EXPERTS, two_norms()), sparse)
    return layers


QWEN3_NEXT = Hybrid(_sizes, _kinds, _layers)
FAMILIES = (
    Family(
        "qwen3_next",
        "Qwen3NextConfig",
        decoder_classes("Qwen3Next"),
        defaults(151936, 2048, 5632, 48, 16, 2, hidden_act="silu", max_position_embeddings=32768)
        | {
            "head_dim": 256,
            "attention_bias": False,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts_per_tok": 10,
            "num_local_experts": 512,
            "full_attention_interval": 4,
        },
        QWEN3_NEXT.build,
    ),
)
