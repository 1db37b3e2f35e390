"""Mamba 2 beside grouped-query attention: Bamba, Granite 4 and Falcon H1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwise.core.architectures.decoder import grouped_query
from shardwise.core.architectures.experts import expert_sizes
from shardwise.core.architectures.family import Family, defaults
from shardwise.core.architectures.hybrid import (
    ATTENTION,
    MIXER,
    Hybrid,
    Layer,
    known_kinds,
    listed_kinds,
)
from shardwise.core.architectures.layers import attention, fused_experts, gated_mlp, router
from shardwise.core.architectures.mixers import mamba2_mixer, mamba2_space
from shardwise.core.architectures.templates import COLUMN, ROW, Sizes, linear, norm, rows
from shardwise.core.config_fields import ConfigFields
from shardwise.core.state_space import StateSpace
from shardwise.core.structure import BlockShape

_NAMES = ("mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_chunk_size", "mamba_d_head")


def _inner(fields: ConfigFields) -> int:
    if "mamba_d_ssm" in fields.defaults and fields.has("mamba_d_ssm"):
        return fields.whole("mamba_d_ssm")
    if fields.defaults.get("mamba_d_ssm") and "mamba_d_ssm" not in fields.config:
        return fields.whole("mamba_d_ssm")
    return fields.whole("mamba_expand", maximum=64) * fields.whole("hidden_size")


def _space(fields: ConfigFields) -> tuple[StateSpace, dict[str, int]]:
    return mamba2_space(fields, _inner(fields), fields.whole("mamba_n_heads"), _NAMES)


def _sizes(fields: ConfigFields) -> dict[str, int]:
    biased = int(fields.flag("attention_bias"))
    return {
        **grouped_query(fields),
        **_space(fields)[1],
        "intermediate": fields.whole("intermediate_size"),
        "proj_bias": int(fields.flag("mamba_proj_bias")),
        "conv_bias": int(fields.flag("mamba_conv_bias")),
        "gated_norm": 1,
        "qkv_bias": biased,
        "output_bias": biased,
        "mlp_bias": int(fields.flag("mlp_bias")) if "mlp_bias" in fields.defaults else 0,
    }


def _shape(fields: ConfigFields, sizes: Sizes, **changes: Any) -> BlockShape:
    return BlockShape(
        hidden=sizes["hidden"],
        intermediate=sizes["intermediate"],
        gated=True,
        activation=fields.text("hidden_act"),
        attention_bias=bool(sizes["qkv_bias"]),
        mlp_bias=bool(sizes["mlp_bias"]),
        attention_dropout=fields.number("attention_dropout"),
        **changes,
    )


def _heads(sizes: Sizes) -> dict[str, Any]:
    names = ("heads", "kv_heads", "head_dim", "value_head_dim")
    return {name: sizes[name] for name in names}


def _bamba_kinds(fields: ConfigFields) -> list[str]:
    attends = set(fields.numbers("attn_layer_indices") or ())
    return [ATTENTION if i in attends else MIXER for i in range(fields.layer_count())]


def _bamba_layers(fields: ConfigFields, sizes: Sizes) -> Mapping[str, Layer]:
    mlp = gated_mlp("feed_forward")
    norms = rows(norm("input_layernorm"), norm("pre_ff_layernorm"))
    heads = _heads(sizes) | {"rotary": True, "recorded": "bamba attention"}
    mixer = {"attention": False, "mixer": _space(fields)[0], "recorded": "bamba mixer"}
    return {
        MIXER: Layer(rows(mlp, norms, mamba2_mixer()), _shape(fields, sizes, **mixer)),
        ATTENTION: Layer(rows(mlp, norms, attention()), _shape(fields, sizes, **heads)),
    }


BAMBA = Hybrid(_sizes, _bamba_kinds, _bamba_layers, final_norm="final_layernorm")


def _granite_sizes(fields: ConfigFields) -> dict[str, int]:
    sizes = _sizes(fields)
    sizes |= {"shared": fields.whole("shared_intermediate_size"), "twice_shared": 0}
    sizes["twice_shared"] = 2 * sizes["shared"]
    if fields.whole("num_local_experts", minimum=0, maximum=65_536):
        sizes |= expert_sizes("intermediate_size")(fields)
    return sizes


def _granite_kinds(fields: ConfigFields) -> Sequence[str]:
    names = ("layer_types", "layers_block_type")
    kinds = listed_kinds(fields, names) or (MIXER,) * fields.layer_count()
    return known_kinds(fields, "layer_types", kinds, (MIXER, ATTENTION))


def _granite_layers(fields: ConfigFields, sizes: Sizes) -> Mapping[str, Layer]:
    """A shared MLP in every layer, beside experts or alone."""
    norms = rows(norm("input_layernorm"), norm("post_attention_layernorm"))
    sparse = "experts" in sizes
    experts = rows(router("block_sparse_moe.router"), fused_experts("block_sparse_moe.experts"))
    mlp = rows(
        linear("shared_mlp.input_linear", "twice_shared", "hidden", "mlp", COLUMN),
        linear("shared_mlp.output_linear", "hidden", "shared", "mlp", ROW),
    )
    feed = rows(experts, mlp) if sparse else mlp
    rotary = fields.text("position_embedding_type") == "rope"
    kind = "experts" if sparse else "MLP"
    heads = _heads(sizes) | {
        "rotary": rotary,
        "recorded": f"granite attention {kind}" + (" rotary" if rotary else ""),
    }
    mixer = {
        "attention": False,
        "mixer": _space(fields)[0],
        "recorded": f"granite mixer {kind}",
    }
    layers = {
        MIXER: Layer(rows(norms, feed, mamba2_mixer()), _shape(fields, sizes, **mixer)),
        ATTENTION: Layer(rows(norms, feed, attention()), _shape(fields, sizes, **heads)),
    }
    return {
        name: Layer(one.template, _granite_mlp(one.shape, sizes)) for name, one in layers.items()
    }


def _granite_mlp(shape: BlockShape, sizes: Sizes) -> BlockShape:
    if "experts" not in sizes:
        return replace(shape, intermediate=sizes["shared"])
    return replace(
        shape,
        intermediate=0,
        experts=sizes["experts"],
        experts_per_token=sizes["experts_per_token"],
        expert_intermediate=sizes["expert_intermediate"],
        shared_intermediate=sizes["shared"],
    )


GRANITE = Hybrid(_granite_sizes, _granite_kinds, _granite_layers)


def _falcon_sizes(fields: ConfigFields) -> dict[str, int]:
    normed = int(fields.flag("mamba_rms_norm"))
    return _sizes(fields) | {
        "gated_norm": normed,
        "projectors_bias": int(fields.flag("projectors_bias")),
    }


def _falcon_kinds(fields: ConfigFields) -> list[str]:
    return ["both"] * fields.layer_count()


def _falcon_layers(fields: ConfigFields, sizes: Sizes) -> Mapping[str, Layer]:
    """Attention and the mixer read one norm, side by side."""
    first = fields.flag("mamba_norm_before_gate", counts=False)
    gate = "" if not sizes["gated_norm"] else " norm first" if first else " gate first"
    shape = _shape(
        fields,
        sizes,
        mixer=_space(fields)[0],
        rotary=True,
        recorded=f"falcon h1{gate}",
        **_heads(sizes),
    )
    norms = rows(norm("input_layernorm"), norm("pre_ff_layernorm"))
    mixers = rows(mamba2_mixer(out_bias="projectors_bias"), attention())
    return {"both": Layer(rows(gated_mlp("feed_forward"), mixers, norms), shape)}


FALCON_H1 = Hybrid(_falcon_sizes, _falcon_kinds, _falcon_layers, final_norm="final_layernorm")

_MIXER_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}


def _family(model_type: str, prefix: str, hybrid: Hybrid, own: dict[str, Any]) -> Family:
    classes = {f"{prefix}ForCausalLM": "lm", f"{prefix}Model": "none"}
    return Family(model_type, f"{prefix}Config", classes, own | _MIXER_DEFAULTS, hybrid.build)


FAMILIES = (
    _family(
        "bamba",
        "Bamba",
        BAMBA,
        defaults(128000, 4096, 14336, 32, 32, 8, mlp_bias=False, max_position_embeddings=262144),
    ),
    _family(
        "granitemoehybrid",
        "GraniteMoeHybrid",
        GRANITE,
        defaults(32000, 4096, 11008, 32, 32, max_position_embeddings=2048)
        | {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024},
    ),
    _family(
        "falcon_h1",
        "FalconH1",
        FALCON_H1,
        defaults(128000, 4096, 14336, 32, 32, 8, mlp_bias=False, max_position_embeddings=8192)
        | {
            "mamba_d_ssm": 1024,
            "mamba_rms_norm": False,
            "mamba_norm_before_gate": True,
            "projectors_bias": False,
        },
    ),
)
