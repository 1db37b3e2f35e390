"""Dense decoders with plain MLPs and LayerNorm: GPT-2, GPT-J, GPT-NeoX, BLOOM, Phi."""

from __future__ import annotations

from typing import Any

from shardwise.core.architectures.decoder import (
    EMBEDDING,
    Frame,
    Style,
    whole_heads,
)
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.layers import attention, plain_mlp
from shardwise.core.architectures.templates import (
    ALWAYS,
    COLUMN,
    ROW,
    VOCABULARY,
    Rows,
    linear,
    norm,
    rows,
    tensor,
)
from shardwise.core.config_fields import ConfigFields

PLAIN: dict[str, Any] = {"norm": "layernorm", "gated": False}
LEARNED: dict[str, Any] = {**PLAIN, "rotary": False}
_BIASED = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
_HEAD_WITH_BIAS = linear("", "vocabulary", "hidden", "head", VOCABULARY, bias=ALWAYS)
FINAL_NORM = norm("", bias=ALWAYS)


def four_times(fields: ConfigFields, hidden: int) -> int:
    """The MLP's width, 4 hidden sizes where the config leaves it open."""
    return fields.optional("intermediate_size") or 4 * hidden


def _position_table(fields: ConfigFields, sizes: dict[str, int]) -> dict[str, int]:
    return {"positions": fields.whole("max_position_embeddings")}


def _conv1d(name: str, inputs: str, outputs: str, part: str, cut: str) -> Rows:
    """GPT-2's `Conv1D`: a linear layer whose weight is stored (in, out)."""
    swapped = {COLUMN: ROW, ROW: COLUMN}[cut]
    bias = (outputs,)
    return rows(
        tensor(f"{name}.weight", inputs, outputs, part=part, cut=swapped),
        tensor(f"{name}.bias", *bias, part=part, cut=COLUMN if cut == COLUMN else "replicated"),
    )


GPT2 = Style(
    rows(
        norm("ln_1", bias=ALWAYS),
        _conv1d("attn.c_attn", "hidden", "qkv", "attention", COLUMN),
        _conv1d("attn.c_proj", "query", "hidden", "attention", ROW),
        norm("ln_2", bias=ALWAYS),
        _conv1d("mlp.c_fc", "hidden", "intermediate", "mlp", COLUMN),
        _conv1d("mlp.c_proj", "intermediate", "hidden", "mlp", ROW),
    ),
    frame=Frame(
        base="transformer",
        before=(
            ("wte", "embedding", EMBEDDING),
            ("wpe", "embedding", tensor("weight", "positions", "hidden", part="position")),
        ),
        layers="h",
        after=(("ln_f", "norm", FINAL_NORM),),
    ),
    switches=_BIASED,
    shape={**LEARNED, "fused_qkv": True, "softmax_in_fp32": False},
    attention=whole_heads,
    width=four_times,
    more=_position_table,
)
GPTJ = Style(
    rows(
        norm("ln_1", bias=ALWAYS),
        linear("attn.k_proj", "key_value", "hidden", "attention", COLUMN),
        linear("attn.v_proj", "key_value", "hidden", "attention", COLUMN),
        linear("attn.q_proj", "query", "hidden", "attention", COLUMN),
        linear("attn.out_proj", "hidden", "query", "attention", ROW),
        plain_mlp("mlp.fc_in", "mlp.fc_out", bias=ALWAYS),
    ),
    frame=Frame(
        base="transformer",
        before=(("wte", "embedding", EMBEDDING),),
        layers="h",
        after=(("ln_f", "norm", FINAL_NORM),),
        head=_HEAD_WITH_BIAS,
    ),
    switches={"mlp_bias": True},
    shape={**PLAIN, "parallel": True},
    attention=whole_heads,
    width=four_times,
)
NEOX = Style(
    rows(
        norm("input_layernorm", bias=ALWAYS),
        norm("post_attention_layernorm", bias=ALWAYS),
        linear("attention.query_key_value", "qkv", "hidden", "attention", COLUMN, bias="qkv_bias"),
        linear("attention.dense", "hidden", "query", "attention", ROW, bias="qkv_bias"),
        plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=ALWAYS),
    ),
    frame=Frame(
        base="gpt_neox",
        before=(("embed_in", "embedding", EMBEDDING),),
        after=(("final_layer_norm", "norm", FINAL_NORM),),
    ),
    switches={
        "qkv_bias": "attention_bias",
        "mlp_bias": True,
        "parallel": "use_parallel_residual",
    },
    shape={**PLAIN, "fused_qkv": True, "rotary_cat": True, "parallel_norms": 2},
    attention=whole_heads,
)
BLOOM = Style(
    rows(
        norm("input_layernorm", bias=ALWAYS),
        linear("self_attention.query_key_value", "qkv", "hidden", "attention", COLUMN, bias=ALWAYS),
        linear("self_attention.dense", "hidden", "query", "attention", ROW, bias=ALWAYS),
        norm("post_attention_layernorm", bias=ALWAYS),
        plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=ALWAYS),
    ),
    frame=Frame(
        base="transformer",
        before=(
            ("word_embeddings", "embedding", EMBEDDING),
            ("word_embeddings_layernorm", "norm", norm("", bias=ALWAYS)),
        ),
        layers="h",
        after=(("ln_f", "norm", FINAL_NORM),),
    ),
    switches=_BIASED,
    shape={
        **LEARNED,
        "fused_qkv": True,
        "sdpa": False,
        "embedding_dropout": False,
        "holds_scores": True,
    },
    attention=whole_heads,
    # transformers reads no other width for BLOOM.
    width=lambda fields, hidden: 4 * hidden,
)
PHI = Style(
    rows(
        attention("dense"),
        norm("self_attn.q_layernorm", "head_dim", bias="qk_layernorm", when="qk_layernorm"),
        norm("self_attn.k_layernorm", "head_dim", bias="qk_layernorm", when="qk_layernorm"),
        plain_mlp("mlp.fc1", "mlp.fc2", bias=ALWAYS),
        norm("input_layernorm", bias=ALWAYS),
    ),
    frame=Frame(after=(("final_layernorm", "norm", FINAL_NORM),), head=_HEAD_WITH_BIAS),
    switches={**_BIASED, "qk_layernorm": "qk_layernorm"},
    shape={**PLAIN, "parallel": True, "rotary_cat": True},
)


_CLASSIFY = ("classify",)
_DROPOUTS: dict[str, Any] = {"dropout": 0.1, "attention_dropout": 0.1}
FAMILIES = (
    Family(
        "gpt2",
        "GPT2Config",
        decoder_classes("GPT2", causal="LMHeadModel", heads=_CLASSIFY),
        defaults(50257, 768, None, 12, 12, tied=True, hidden_act="gelu_new", **_DROPOUTS)
        | {"max_position_embeddings": 1024},
        GPT2.build,
    ),
    Family(
        "gptj",
        "GPTJConfig",
        decoder_classes("GPTJ", heads=_CLASSIFY),
        defaults(50400, 4096, None, 28, 16, hidden_act="gelu_new"),
        GPTJ.build,
    ),
    Family(
        "gpt_neox",
        "GPTNeoXConfig",
        decoder_classes("GPTNeoX", heads=_CLASSIFY),
        defaults(50432, 6144, 24576, 44, 64, attention_bias=True, use_parallel_residual=True),
        NEOX.build,
    ),
    Family(
        "bloom",
        "BloomConfig",
        decoder_classes("Bloom", heads=_CLASSIFY),
        defaults(250880, 64, None, 2, 8, tied=True, hidden_act="gelu"),
        BLOOM.build,
    ),
    Family(
        "phi",
        "PhiConfig",
        decoder_classes("Phi"),
        defaults(51200, 2048, 8192, 24, 32, hidden_act="gelu_new", qk_layernorm=False),
        PHI.build,
    ),
)
