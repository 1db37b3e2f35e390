"""LFM2: gated short convolutions and grouped-query attention in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.core.architectures.decoder import grouped_query
from shardwise.core.architectures.family import Family, defaults
from shardwise.core.architectures.hybrid import ATTENTION, Hybrid, Layer, known_kinds
from shardwise.core.architectures.layers import attention
from shardwise.core.architectures.templates import (
    COLUMN,
    ROW,
    Sizes,
    linear,
    norm,
    rows,
    tensor,
)
from shardwise.core.config_fields import ConfigFields
from shardwise.core.state_space import StateSpace
from shardwise.core.structure import BlockShape

_CONVOLUTION = rows(
    tensor("conv.conv.weight", "hidden", 1, "kernel", part="other", cut=COLUMN),
    tensor("conv.conv.bias", "hidden", part="other", cut=COLUMN, when="conv_bias"),
    linear("conv.in_proj", "thrice_hidden", "hidden", "other", COLUMN, bias="conv_bias"),
    linear("conv.out_proj", "hidden", "hidden", "other", ROW, bias="conv_bias"),
)
_MLP = rows(
    linear("feed_forward.w1", "intermediate", "hidden", "mlp", COLUMN),
    linear("feed_forward.w3", "intermediate", "hidden", "mlp", COLUMN),
    linear("feed_forward.w2", "hidden", "intermediate", "mlp", ROW),
)
_HEAD_NORMS = rows(
    norm("self_attn.q_layernorm", "head_dim"), norm("self_attn.k_layernorm", "head_dim")
)
_NORMS = rows(norm("operator_norm"), norm("ffn_norm"))


def _width(fields: ConfigFields) -> int:
    """The MLP's width: two thirds of the given one, scaled and rounded up (Lfm2MLP)."""
    given = "block_ff_dim" if fields.has("block_ff_dim") else "intermediate_size"
    width = fields.whole(given)
    if not fields.flag("block_auto_adjust_ff_dim"):
        return width
    scale = fields.number("block_ffn_dim_multiplier", maximum=64.0) or 1.0
    width = int(scale * int(2 * width / 3))
    multiple = fields.whole("block_multiple_of")
    return -(-width // multiple) * multiple


def _sizes(fields: ConfigFields) -> dict[str, int]:
    sizes = grouped_query(fields)
    return sizes | {
        "intermediate": _width(fields),
        "thrice_hidden": 3 * sizes["hidden"],
        "kernel": fields.whole("conv_L_cache"),
        "conv_bias": int(fields.flag("conv_bias")),
        "qkv_bias": 0,
        "output_bias": 0,
    }


def _kinds(fields: ConfigFields) -> Sequence[str]:
    layers = fields.layer_count()
    listed = fields.texts("layer_types", layers)
    if listed is not None:
        return known_kinds(fields, "layer_types", listed, ("conv", ATTENTION))
    attends = fields.numbers("full_attn_idxs")
    chosen = set(range(layers) if attends is None else attends)
    return [ATTENTION if index in chosen else "conv" for index in range(layers)]


def _layers(fields: ConfigFields, sizes: Sizes) -> Mapping[str, Layer]:
    common: dict[str, Any] = {
        "hidden": sizes["hidden"],
        "intermediate": sizes["intermediate"],
        "gated": True,
        "activation": "silu",
    }
    space = StateSpace("short-convolution", sizes["hidden"], 0, sizes["kernel"])
    heads: dict[str, Any] = {
        name: sizes[name] for name in ("heads", "kv_heads", "head_dim", "value_head_dim")
    }
    convolves = BlockShape(**common, attention=False, mixer=space, recorded="lfm2 convolution")
    attends = BlockShape(**common, **heads, rotary=True, qk_norm=True, recorded="lfm2 attention")
    projections = attention("out_proj")
    return {
        "conv": Layer(rows(_CONVOLUTION, _MLP, _NORMS), convolves),
        ATTENTION: Layer(rows(projections, _HEAD_NORMS, _MLP, _NORMS), attends),
    }


LFM2 = Hybrid(_sizes, _kinds, _layers, final_norm="embedding_norm")
FAMILIES = (
    Family(
        "lfm2",
        "Lfm2Config",
        {"Lfm2ForCausalLM": "lm", "Lfm2Model": "none"},
        defaults(65536, 2560, 12288, 32, 32, 8, tied=True, max_position_embeddings=128000)
        | {
            "conv_bias": False,
            "conv_L_cache": 3,
            "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": True,
        },
        LFM2.build,
    ),
)
