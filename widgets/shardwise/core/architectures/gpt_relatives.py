"""Decoders with GPT-2's or GPT-J's blocks and other attention: StarCoder's, CodeGen's, XGLM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwise.core.architectures.decoder import (
    EMBEDDING,
    Frame,
    Style,
    attention_sizes,
    split_evenly,
    whole_heads,
)
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.gpt_like import (
    FINAL_NORM,
    GPT2,
    GPTJ,
    LEARNED,
    four_times,
)
from shardwise.core.architectures.layers import plain_mlp
from shardwise.core.architectures.opt import OPT_ATTENTION
from shardwise.core.architectures.templates import (
    ALWAYS,
    COLUMN,
    ROW,
    linear,
    norm,
    rows,
)
from shardwise.core.config_fields import ConfigFields


def _one_or_all(fields: ConfigFields) -> dict[str, int]:
    """One head of keys and values for all queries, unless `multi_query` is false."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    kv_heads = 1 if fields.flag("multi_query") else heads
    return attention_sizes(hidden, heads, kv_heads, split_evenly(fields, hidden, heads))


def _own_attention(fields: ConfigFields, sizes: dict[str, int]) -> dict[str, int]:
    fields.guess("XGLM has attention of its own, whose scores are not followed.")
    return {}


def _mask_table(fields: ConfigFields, layers: int) -> Sequence[Mapping[str, Any]]:
    return ({"mask_table": fields.whole("max_position_embeddings")},) * layers


BIGCODE = replace(
    GPT2,
    block=rows(
        norm("ln_1", bias=ALWAYS),
        linear("attn.c_attn", "qkv", "hidden", "attention", COLUMN, bias=ALWAYS),
        linear("attn.c_proj", "hidden", "query", "attention", ROW, bias=ALWAYS),
        norm("ln_2", bias=ALWAYS),
        plain_mlp("mlp.c_fc", "mlp.c_proj", bias=ALWAYS),
    ),
    shape={**LEARNED, "fused_qkv": True},
    attention=_one_or_all,
    pattern=_mask_table,
)
CODEGEN = replace(
    GPTJ,
    block=rows(
        norm("ln_1", bias=ALWAYS),
        linear("attn.out_proj", "hidden", "query", "attention", ROW),
        linear("attn.qkv_proj", "qkv", "hidden", "attention", COLUMN),
        plain_mlp("mlp.fc_in", "mlp.fc_out", bias=ALWAYS),
    ),
    shape={**GPTJ.shape, "fused_qkv": True, "rotary_cat": True},
)
# Its positions are sines: no table is trained.
XGLM = Style(
    rows(
        OPT_ATTENTION,
        norm("self_attn_layer_norm", bias=ALWAYS),
        plain_mlp("fc1", "fc2", bias=ALWAYS),
        norm("final_layer_norm", bias=ALWAYS),
    ),
    frame=Frame(
        before=(("embed_tokens", "embedding", EMBEDDING),),
        after=(("layer_norm", "norm", FINAL_NORM),),
    ),
    switches={"qkv_bias": True, "mlp_bias": True},
    shape=LEARNED,
    attention=whole_heads,
    width=four_times,
    more=_own_attention,
)

_DROPOUTS: dict[str, Any] = {"dropout": 0.1, "attention_dropout": 0.1}
FAMILIES = (
    Family(
        "gpt_bigcode",
        "GPTBigCodeConfig",
        decoder_classes("GPTBigCode"),
        defaults(50257, 768, None, 12, 12, tied=True, multi_query=True, **_DROPOUTS)
        | {"hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 1024},
        BIGCODE.build,
    ),
    Family(
        "codegen",
        "CodeGenConfig",
        decoder_classes("CodeGen", heads=()),
        defaults(50400, 4096, None, 28, 16, hidden_act="gelu_new"),
        CODEGEN.build,
    ),
    Family(
        "xglm",
        "XGLMConfig",
        decoder_classes("XGLM", heads=()),
        defaults(256008, 1024, 4096, 24, 16, tied=True, hidden_act="gelu", **_DROPOUTS),
        XGLM.build,
    ),
)
