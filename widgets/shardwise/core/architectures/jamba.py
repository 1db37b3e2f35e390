"""Jamba: Mamba and attention in turn, dense MLPs and experts in turn (arXiv 2403.19887)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.core.architectures.decoder import grouped_query
from shardwise.core.architectures.experts import expert_sizes
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.hybrid import Hybrid, Layer
from shardwise.core.architectures.layers import attention, fused_experts, gated_mlp, router
from shardwise.core.architectures.mixers import mamba_mixer, mamba_space, time_step_rank
from shardwise.core.architectures.templates import Sizes, norm, rows
from shardwise.core.config_fields import ConfigFields
from shardwise.core.errors import ScenarioError
from shardwise.core.state_space import StateSpace
from shardwise.core.structure import BlockShape

_NORMS = rows(norm("input_layernorm"), norm("pre_ff_layernorm"))
_MIXER = rows(
    mamba_mixer("mamba."),
    norm("mamba.dt_layernorm", "rank"),
    norm("mamba.b_layernorm", "state"),
    norm("mamba.c_layernorm", "state"),
)
_EXPERTS = rows(router("feed_forward.router"), fused_experts("feed_forward.experts"))
_TOKEN_MIXERS = {"mamba": _MIXER, "attention": attention()}
_FEED_FORWARDS = {"MLP": gated_mlp("feed_forward"), "experts": _EXPERTS}


def _space(fields: ConfigFields) -> tuple[StateSpace, dict[str, int]]:
    hidden = fields.whole("hidden_size")
    return mamba_space(
        fields.whole("mamba_expand", maximum=64) * hidden,
        fields.whole("mamba_d_state"),
        fields.whole("mamba_d_conv"),
        time_step_rank(fields, "mamba_dt_rank", hidden),
    )


def _sizes(fields: ConfigFields) -> dict[str, int]:
    width = fields.whole("intermediate_size")
    return {
        **grouped_query(fields),
        **_space(fields)[1],
        **expert_sizes("intermediate_size")(fields),
        "intermediate": width,
        "proj_bias": int(fields.flag("mamba_proj_bias")),
        "conv_bias": int(fields.flag("mamba_conv_bias")),
        "qkv_bias": 0,
        "output_bias": 0,
        "mlp_bias": 0,
    }


def _turns(fields: ConfigFields, what: str) -> tuple[int, int]:
    period = fields.whole(f"{what}_layer_period")
    offset = fields.whole(f"{what}_layer_offset", minimum=0)
    if offset >= period:
        allowed = f"less than {what}_layer_period, which is {period}"
        raise ScenarioError(fields.spelled(f"{what}_layer_offset"), offset, allowed)
    return period, offset


def _kinds(fields: ConfigFields) -> list[str]:
    """Every `attn_layer_period`-th layer attends, every `expert_layer_period`-th has experts."""
    attends, routes = _turns(fields, "attn"), _turns(fields, "expert")
    several = fields.whole("num_local_experts", maximum=65_536) > 1
    kinds = []
    for index in range(fields.layer_count()):
        mixer = "attention" if index % attends[0] == attends[1] else "mamba"
        sparse = several and index % routes[0] == routes[1]
        kinds.append(f"{mixer} {'experts' if sparse else 'MLP'}")
    return kinds


def _layers(fields: ConfigFields, sizes: Sizes) -> Mapping[str, Layer]:
    space = _space(fields)[0]
    common = BlockShape(
        hidden=sizes["hidden"],
        intermediate=sizes["intermediate"],
        gated=True,
        activation=fields.text("hidden_act"),
        attention_dropout=fields.number("attention_dropout"),
    )
    heads: dict[str, Any] = {
        name: sizes[name] for name in ("heads", "kv_heads", "head_dim", "value_head_dim")
    }
    experts: dict[str, Any] = {name: sizes[name] for name in ("experts", "experts_per_token")}
    layers = {}
    for mixer, first in _TOKEN_MIXERS.items():
        for kind, second in _FEED_FORWARDS.items():
            shape = replace(common, recorded=f"jamba {mixer} {kind}")
            shape = (
                replace(shape, attention=False, mixer=space)
                if mixer == "mamba"
                else replace(shape, **heads)
            )
            if kind == "experts":
                width = sizes["expert_intermediate"]
                shape = replace(shape, intermediate=0, expert_intermediate=width, **experts)
            layers[f"{mixer} {kind}"] = Layer(rows(first, second, _NORMS), shape)
    return layers


JAMBA = Hybrid(_sizes, _kinds, _layers, final_norm="final_layernorm")
FAMILIES = (
    Family(
        "jamba",
        "JambaConfig",
        decoder_classes("Jamba", heads=("classify",)),
        defaults(65536, 4096, 14336, 32, 32, 8, hidden_act="silu", max_position_embeddings=262144)
        | {
            "num_experts_per_tok": 2,
            "num_local_experts": 16,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
        },
        JAMBA.build,
    ),
)
