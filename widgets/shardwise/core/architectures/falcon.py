"""Falcon: multi-query or grouped attention in parallel with the MLP."""

from __future__ import annotations

from shardwise.core.architectures.decoder import (
    EMBEDDING,
    Frame,
    Style,
    attention_sizes,
    grouped_query,
    split_evenly,
)
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.gpt_like import FINAL_NORM, PLAIN, four_times
from shardwise.core.architectures.layers import plain_mlp
from shardwise.core.architectures.templates import COLUMN, ROW, linear, norm, rows
from shardwise.core.config_fields import ConfigFields


def _falcon_attention(fields: ConfigFields) -> dict[str, int]:
    """Falcon: grouped by `num_kv_heads` in the new decoder, else one key-value head or all."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    head_dim = split_evenly(fields, hidden, heads)
    if fields.flag("new_decoder_architecture"):
        return grouped_query(fields) | {"head_dim": head_dim}
    kv_heads = 1 if fields.flag("multi_query") else heads
    return attention_sizes(hidden, heads, kv_heads, head_dim)


def _falcon_switches(fields: ConfigFields, sizes: dict[str, int]) -> dict[str, int]:
    """Which LayerNorms a block has: before both branches, one for both, or one after the other."""
    parallel = fields.flag("parallel_attn")
    new = fields.flag("new_decoder_architecture")
    if fields.flag("alibi", counts=False):
        fields.guess("alibi is true: the bias that attention gets as its mask is not counted.")
    norms = fields.optional("num_ln_in_parallel_attn", maximum=2) or (2 if new else 1)
    return {
        "parallel": int(parallel or new),
        "rotary": int(not fields.flag("alibi", counts=False)),
        "parallel_norms": norms,
        "two_norms": int(parallel and norms == 2),
        "one_norm": int(parallel and norms != 2),
        "in_sequence": int(not parallel),
    }


FALCON = Style(
    rows(
        linear(
            "self_attention.query_key_value", "qkv", "hidden", "attention", COLUMN, bias="qkv_bias"
        ),
        linear("self_attention.dense", "hidden", "query", "attention", ROW, bias="qkv_bias"),
        plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias="qkv_bias"),
        norm("post_attention_layernorm", bias="in_sequence", when="in_sequence"),
        norm("input_layernorm", bias="in_sequence", when="in_sequence"),
        norm("ln_attn", bias="two_norms", when="two_norms"),
        norm("ln_mlp", bias="two_norms", when="two_norms"),
        norm("input_layernorm", bias="one_norm", when="one_norm"),
    ),
    frame=Frame(
        base="transformer",
        before=(("word_embeddings", "embedding", EMBEDDING),),
        layers="h",
        after=(("ln_f", "norm", FINAL_NORM),),
    ),
    switches={"qkv_bias": "bias", "mlp_bias": "bias"},
    shape={**PLAIN, "masked": True},
    attention=_falcon_attention,
    width=four_times,
    more=_falcon_switches,
)

FAMILIES = (
    Family(
        "falcon",
        "FalconConfig",
        decoder_classes("Falcon", heads=("classify",)),
        defaults(65024, 4544, None, 32, 71, tied=True, hidden_act="gelu")
        | {
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
            "alibi": False,
            "bias": False,
        },
        FALCON.build,
    ),
)
