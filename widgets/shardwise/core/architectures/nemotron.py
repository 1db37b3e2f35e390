"""Nemotron-H: each layer is one mixer: Mamba 2, attention, an MLP or experts (arXiv 2504.03624)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwise.core.architectures.decoder import attention_sizes, key_value_heads
from shardwise.core.architectures.experts import expert_sizes
from shardwise.core.architectures.family import Family
from shardwise.core.architectures.hybrid import ATTENTION, MIXER, Hybrid, Layer, known_kinds
from shardwise.core.architectures.layers import attention, plain_mlp
from shardwise.core.architectures.mixers import mamba2_mixer, mamba2_space
from shardwise.core.architectures.templates import (
    COLUMN,
    EXPERT,
    ROW,
    Rows,
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

_LETTERS = {"M": MIXER, "E": "moe", "*": ATTENTION, "-": "mlp"}
_KINDS = (MIXER, "moe", ATTENTION, "mlp")
# Each field under the name that published configs give it too.
_GROUPS, _KERNEL, _CHUNK = "n_groups", "conv_kernel", "chunk_size"


def _space(fields: ConfigFields) -> tuple[StateSpace, dict[str, int]]:
    heads = fields.whole("mamba_num_heads")
    inner = heads * fields.whole("mamba_head_dim")
    names = []
    for name, other in ((_GROUPS, "mamba_n_groups"), ("ssm_state_size", "ssm_state_size"),
                        (_KERNEL, "mamba_d_conv"), (_CHUNK, "mamba_chunk_size")):  # fmt: skip
        names.append(other if fields.config.get(other) is not None else name)
    groups, state, kernel, chunk = names
    return mamba2_space(fields, inner, heads, (groups, state, kernel, chunk, ""))


def _sizes(fields: ConfigFields) -> dict[str, int]:
    heads = fields.whole("num_attention_heads")
    hidden, head_dim = fields.whole("hidden_size"), fields.whole("head_dim", maximum=65_536)
    conv = "mamba_conv_bias" if "mamba_conv_bias" in fields.config else "use_conv_bias"
    latent = fields.optional("moe_latent_size")
    return {
        **attention_sizes(hidden, heads, key_value_heads(fields, heads), head_dim),
        **_space(fields)[1],
        "intermediate": fields.whole("intermediate_size"),
        "proj_bias": int(fields.flag("use_bias")),
        "conv_bias": int(fields.flag(conv)),
        "gated_norm": 1,
        "qkv_bias": 0,
        "output_bias": 0,
        "mlp_bias": int(fields.flag("mlp_bias")),
        "expert_input": latent or hidden,
        "latent": int(bool(latent)),
    }


def _kinds(fields: ConfigFields) -> Sequence[str]:
    """From a list of words, or from a pattern of letters: M, E, * and -."""
    listed = fields.config.get("layer_types", fields.config.get("layers_block_type"))
    pattern = fields.text("hybrid_override_pattern")
    if isinstance(listed, list):
        name = "layer_types" if "layer_types" in fields.config else "layers_block_type"
        kinds = fields.texts(name, len(listed)) or ()
        older = {"mamba": MIXER, "attention": ATTENTION}
        return known_kinds(fields, name, [older.get(kind, kind) for kind in kinds], _KINDS)
    if not pattern:
        hint = "as every nemotron_h has it, or layers_block_type"
        raise ScenarioError("hybrid_override_pattern", None, "letters M, E, * and -", hint)
    for letter in pattern:
        if letter not in _LETTERS:
            raise ScenarioError("hybrid_override_pattern", letter, "letters M, E, * and -")
    return [_LETTERS[letter] for letter in pattern]


def _layers(fields: ConfigFields, sizes: Sizes) -> Mapping[str, Layer]:
    common = BlockShape(
        hidden=sizes["hidden"],
        activation=fields.text("mlp_hidden_act"),
        norm_in_fp32=True,
    )
    heads: dict[str, Any] = {
        name: sizes[name] for name in ("heads", "kv_heads", "head_dim", "value_head_dim")
    }
    mixer = replace(common, attention=False, mixer=_space(fields)[0], recorded="nemotron mixer")
    attends = replace(
        common,
        attention_dropout=fields.number("attention_dropout"),
        recorded="nemotron attention",
        **heads,
    )
    dense = replace(
        common, attention=False, intermediate=sizes["intermediate"], recorded="nemotron MLP"
    )
    layers = {
        MIXER: Layer(rows(norm("norm"), mamba2_mixer("mixer.")), mixer),
        ATTENTION: Layer(rows(norm("norm"), attention(where="mixer.")), attends),
        "mlp": Layer(rows(norm("norm"), _mlp("mixer")), dense),
    }
    if "moe" in _kinds(fields):
        layers["moe"] = _experts(fields, sizes, common)
    return layers


def _mlp(name: str) -> Rows:
    return plain_mlp(f"{name}.up_proj", f"{name}.down_proj", bias="mlp_bias")


def _experts(fields: ConfigFields, sizes: Sizes, common: BlockShape) -> Layer:
    """Experts without a gate, over a latent if there is one, beside one shared MLP."""
    found = expert_sizes("moe_intermediate_size", "moe_shared_expert_intermediate_size")(fields)
    experts, width, shared = (
        found[name] for name in ("experts", "expert_intermediate", "shared_intermediate")
    )
    template = rows(
        norm("norm"),
        tensor("mixer.experts.up_proj", experts, width, "expert_input", part="experts", cut=EXPERT),
        tensor(
            "mixer.experts.down_proj", experts, "expert_input", width, part="experts", cut=EXPERT
        ),
        linear("mixer.gate", experts, "hidden", "router"),
        linear("mixer.shared_experts.up_proj", shared, "hidden", "mlp", COLUMN, bias="mlp_bias"),
        linear("mixer.shared_experts.down_proj", "hidden", shared, "mlp", ROW, bias="mlp_bias"),
    )
    if sizes["latent"]:
        template += rows(
            linear("mixer.fc1_latent_proj", "expert_input", "hidden", "mlp", bias="mlp_bias"),
            linear("mixer.fc2_latent_proj", "hidden", "expert_input", "mlp", bias="mlp_bias"),
        )
    shape = replace(
        common,
        attention=False,
        experts=experts,
        experts_per_token=found["experts_per_token"],
        expert_intermediate=width,
        shared_intermediate=shared,
        router_in_fp32=True,
        recorded="" if sizes["latent"] else "nemotron experts",
    )
    return Layer(template, shape)


NEMOTRON_H = Hybrid(_sizes, _kinds, _layers, embedding="embeddings", final_norm="norm_f")
FAMILIES = (
    Family(
        "nemotron_h",
        "NemotronHConfig",
        {"NemotronHForCausalLM": "lm", "NemotronHModel": "none"},
        {
            "vocab_size": 131072,
            "hidden_size": 4096,
            "tie_word_embeddings": False,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "intermediate_size": 21504,
            "mlp_hidden_act": "relu2",
            "mlp_bias": False,
            "ssm_state_size": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "conv_kernel": 4,
            "chunk_size": 128,
            "use_conv_bias": True,
            "use_bias": False,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
        },
        NEMOTRON_H.build,
        required=("hidden_size",),
    ),
)
