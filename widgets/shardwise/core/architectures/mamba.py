"""Mamba, Falcon Mamba and Mamba 2: state-space blocks alone (arXiv 2312.00752, 2405.21060)."""

from __future__ import annotations

from typing import Any

from shardwise.core.architectures.decoder import EMBEDDING, HEAD
from shardwise.core.architectures.family import Draft, Family
from shardwise.core.architectures.mixers import (
    mamba2_mixer,
    mamba2_space,
    mamba_mixer,
    mamba_space,
    time_step_rank,
)
from shardwise.core.architectures.templates import Rows, norm, rows, unit
from shardwise.core.config_fields import ConfigFields
from shardwise.core.errors import ScenarioError
from shardwise.core.state_space import StateSpace
from shardwise.core.structure import BlockShape, Module

MAMBA_BLOCK = rows(norm("norm"), mamba_mixer())
MAMBA2_BLOCK = rows(norm("norm"), mamba2_mixer("mixer."))


def build_mamba(fields: ConfigFields, head: str) -> Draft:
    """Embedding, selective scans, norm; the head is tied by default."""
    return _selective(fields, head, "mamba")


def build_falcon_mamba(fields: ConfigFields, head: str) -> Draft:
    """As Mamba; its norms of time steps, B and C have no weights."""
    return _selective(fields, head, "falcon mamba")


def _selective(fields: ConfigFields, head: str, recorded: str) -> Draft:
    hidden = fields.whole("hidden_size")
    inner = fields.optional("intermediate_size")
    inner = inner or fields.whole("expand", maximum=64) * hidden
    rank = time_step_rank(fields, "time_step_rank", hidden)
    space, sizes = mamba_space(inner, fields.whole("state_size"), fields.whole("conv_kernel"), rank)
    return _build(fields, head, MAMBA_BLOCK, space, sizes, recorded)


def build_mamba2(fields: ConfigFields, head: str) -> Draft:
    """Embedding, chunked scans over heads, norm; the head has its own weights by default."""
    inner = fields.whole("expand", maximum=64) * fields.whole("hidden_size")
    names = ("n_groups", "state_size", "conv_kernel", "chunk_size", "head_dim")
    heads = fields.whole("num_heads")
    if heads * fields.whole("head_dim") != inner:
        allowed = f"{inner} (expand x hidden_size) over head_dim"
        raise ScenarioError(fields.spelled("num_heads"), heads, allowed)
    space, sizes = mamba2_space(fields, inner, heads, names)
    return _build(fields, head, MAMBA2_BLOCK, space, {**sizes, "gated_norm": 1}, "mamba2")


def _build(
    fields: ConfigFields,
    head: str,
    block: Rows,
    space: StateSpace,
    mixer: dict[str, int],
    recorded: str,
) -> Draft:
    hidden = fields.whole("hidden_size")
    sizes = mixer | {
        "vocabulary": fields.whole("vocab_size"),
        "hidden": hidden,
        "proj_bias": int(fields.flag("use_bias")),
        "conv_bias": int(fields.flag("use_conv_bias")),
    }
    tied = head == "lm" and fields.flag("tie_word_embeddings")
    base = "" if head == "none" else "backbone."
    shape = BlockShape(
        hidden=hidden,
        activation=fields.text("hidden_act"),
        attention=False,
        mlp_bias=bool(sizes["proj_bias"]),
        mixer=space,
        recorded=recorded,
        fp32_stream=fields.flag("residual_in_fp32", counts=False),
    )
    modules: tuple[Module, ...] = unit(f"{base}embeddings", "embedding", EMBEDDING, sizes)
    for index in range(fields.layer_count()):
        modules += unit(f"{base}layers.{index}", "block", block, sizes, shape)
    modules += unit(f"{base}norm_f", "norm", norm(""), sizes)
    if head == "lm" and not tied:
        modules += unit("lm_head", "head", HEAD, sizes)
    return Draft(modules, hidden, sizes["vocabulary"], 0, tied)


_COMMON: dict[str, Any] = {
    "vocab_size": 50280,
    "hidden_size": 768,
    "state_size": 16,
    "num_hidden_layers": 32,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "residual_in_fp32": True,
    "tie_word_embeddings": True,
}
FAMILIES = (
    Family(
        "mamba",
        "MambaConfig",
        {"MambaForCausalLM": "lm", "MambaModel": "none"},
        _COMMON,
        build_mamba,
    ),
    Family(
        "falcon_mamba",
        "FalconMambaConfig",
        {"FalconMambaForCausalLM": "lm", "FalconMambaModel": "none"},
        _COMMON,
        build_falcon_mamba,
    ),
    Family(
        "mamba2",
        "Mamba2Config",
        {"Mamba2ForCausalLM": "lm", "Mamba2Model": "none"},
        _COMMON
        | {
            "vocab_size": 32768,
            "hidden_size": 4096,
            "state_size": 128,
            "num_hidden_layers": 64,
            "num_heads": 128,
            "head_dim": 64,
            "n_groups": 8,
            "chunk_size": 256,
            "tie_word_embeddings": False,
        },
        build_mamba2,
    ),
)
