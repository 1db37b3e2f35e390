"""Mamba: state-space blocks without attention, heads or MLP (arXiv 2312.00752)."""

from __future__ import annotations

from shardwise.core.architectures.decoder import EMBEDDING, HEAD
from shardwise.core.architectures.family import Draft, Family
from shardwise.core.architectures.templates import (
    ALWAYS,
    COLUMN,
    ROW,
    linear,
    norm,
    rows,
    tensor,
    unit,
)
from shardwise.core.config_fields import ConfigFields
from shardwise.core.state_space import StateSpace
from shardwise.core.structure import BlockShape, Module

BLOCK = rows(
    norm("norm"),
    tensor("mixer.A_log", "inner", "state", part="other", cut=COLUMN),
    tensor("mixer.D", "inner", part="other", cut=COLUMN),
    tensor("mixer.conv1d.weight", "inner", 1, "kernel", part="other", cut=COLUMN),
    tensor("mixer.conv1d.bias", "inner", part="other", cut=COLUMN, when="conv_bias"),
    linear("mixer.in_proj", "twice_inner", "hidden", "other", COLUMN, bias="bias"),
    linear("mixer.x_proj", "rank_and_states", "inner", "other", ROW),
    linear("mixer.dt_proj", "inner", "rank", "other", COLUMN, bias=ALWAYS),
    linear("mixer.out_proj", "hidden", "inner", "other", ROW, bias="bias"),
)


def build(fields: ConfigFields, head: str) -> Draft:
    """Embedding, mixers, norm; the head is tied by default."""
    sizes = _sizes(fields)
    tied = head == "lm" and fields.flag("tie_word_embeddings")
    base = "" if head == "none" else "backbone."
    # The mixer's inner width stands where other blocks have their MLP's.
    shape = BlockShape(
        hidden=sizes["hidden"],
        intermediate=sizes["inner"],
        gated=True,
        activation=fields.text("hidden_act"),
        attention=False,
        mlp_bias=bool(sizes["bias"]),
        mixer=StateSpace(
            "mamba", sizes["inner"], sizes["state"], sizes["kernel"], rank=sizes["rank"]
        ),
    )
    modules: tuple[Module, ...] = unit(f"{base}embeddings", "embedding", EMBEDDING, sizes)
    for index in range(fields.layer_count()):
        modules += unit(f"{base}layers.{index}", "block", BLOCK, sizes, shape)
    modules += unit(f"{base}norm_f", "norm", norm(""), sizes)
    if head == "lm" and not tied:
        modules += unit("lm_head", "head", HEAD, sizes)
    return Draft(modules, sizes["hidden"], sizes["vocabulary"], 0, tied)


def _sizes(fields: ConfigFields) -> dict[str, int]:
    hidden = fields.whole("hidden_size")
    inner = fields.optional("intermediate_size")
    inner = inner or fields.whole("expand", maximum=64) * hidden
    rank = -(-hidden // 16)
    if fields.config.get("time_step_rank", "auto") != "auto":
        rank = fields.whole("time_step_rank")
    state = fields.whole("state_size")
    return {
        "vocabulary": fields.whole("vocab_size"),
        "hidden": hidden,
        "inner": inner,
        "twice_inner": 2 * inner,
        "state": state,
        "rank": rank,
        "rank_and_states": rank + 2 * state,
        "kernel": fields.whole("conv_kernel"),
        "bias": int(fields.flag("use_bias")),
        "conv_bias": int(fields.flag("use_conv_bias")),
    }


FAMILIES = (
    Family(
        "mamba",
        "MambaConfig",
        {"MambaForCausalLM": "lm", "MambaModel": "none"},
        {
            "vocab_size": 50280,
            "hidden_size": 768,
            "state_size": 16,
            "num_hidden_layers": 32,
            "expand": 2,
            "conv_kernel": 4,
            "use_bias": False,
            "use_conv_bias": True,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
        },
        build,
    ),
)
