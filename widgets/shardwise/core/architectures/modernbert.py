"""ModernBERT: a BERT with rotary positions, gated MLPs, and windows in most layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.core.architectures.bert_relatives import LABELS, classes
from shardwise.core.architectures.decoder import attention_sizes, split_evenly
from shardwise.core.architectures.family import Draft, Family
from shardwise.core.architectures.templates import (
    COLUMN,
    ROW,
    VOCABULARY,
    Rows,
    linear,
    norm,
    rows,
    tensor,
    unit,
)
from shardwise.core.config_fields import ConfigFields
from shardwise.core.structure import BlockShape, Module


def _modern_block(first: bool) -> Rows:
    """ModernBERT: no norm before the first block's attention."""
    before = () if first else norm("attn_norm", bias="norm_bias")
    return rows(
        before,
        linear("attn.Wqkv", "qkv", "hidden", "attention", COLUMN, bias="qkv_bias"),
        linear("attn.Wo", "hidden", "query", "attention", ROW, bias="qkv_bias"),
        norm("mlp_norm", bias="norm_bias"),
        linear("mlp.Wi", "gate_up", "hidden", "mlp", COLUMN, bias="mlp_bias"),
        linear("mlp.Wo", "hidden", "intermediate", "mlp", ROW, bias="mlp_bias"),
    )


_MODERN_HEAD = rows(
    linear("dense", "hidden", "hidden", "head", bias="head_bias"),
    norm("norm", bias="norm_bias"),
)


def modernbert(fields: ConfigFields, head: str) -> Draft:
    """Rotary, gated, local and global attention in turn; a prediction head before the labels."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    width = fields.whole("intermediate_size")
    sizes = attention_sizes(hidden, heads, heads, split_evenly(fields, hidden, heads)) | {
        "intermediate": width,
        "gate_up": 2 * width,
        "vocabulary": fields.whole("vocab_size"),
        "labels": fields.labels() if head in ("sequence", "tokens") else 0,
        "free": int(head == "masked" and not fields.flag("tie_word_embeddings")),
        "qkv_bias": int(fields.flag("attention_bias")),
        "mlp_bias": int(fields.flag("mlp_bias")),
        "norm_bias": int(fields.flag("norm_bias")),
        "head_bias": int(fields.flag("classifier_bias")),
        "decoder_bias": int(fields.flag("decoder_bias")),
    }
    base = "" if head == "none" else "model."
    embeddings = rows(
        tensor("tok_embeddings.weight", "vocabulary", "hidden", part="embedding", cut=VOCABULARY),
        norm("norm", bias="norm_bias"),
    )
    modules = unit(f"{base}embeddings", "embedding", embeddings, sizes)
    shape = _modern_shape(fields, sizes)
    for index, window in enumerate(_modern_windows(fields)):
        own = replace(shape, sliding_window=window)
        block = _modern_block(index == 0)
        modules += unit(f"{base}layers.{index}", "block", block, sizes, own)
    modules += unit(f"{base}final_norm", "norm", norm("", bias="norm_bias"), sizes)
    modules += _modern_head(head, sizes)
    positions = fields.whole("max_position_embeddings")
    tied = head == "masked" and not sizes["free"]
    return Draft(modules, hidden, sizes["vocabulary"], positions, tied)


def _modern_head(head: str, sizes: dict[str, int]) -> tuple[Module, ...]:
    if head == "none":
        return ()
    modules = unit("head", "head", _MODERN_HEAD, sizes)
    if head == "masked":
        decoder = rows(
            tensor("weight", "vocabulary", "hidden", part="head", cut=VOCABULARY, when="free"),
            tensor("bias", "vocabulary", part="head", cut=VOCABULARY, when="decoder_bias"),
        )
        return modules + unit("decoder", "head", decoder, sizes)
    return modules + unit("classifier", "head", LABELS, sizes)


def _modern_windows(fields: ConfigFields) -> tuple[int, ...]:
    """Every third layer sees all, the others `local_attention` tokens, half on either side."""
    layers = fields.layer_count()
    local = fields.whole("local_attention", counts=False) // 2
    every = fields.whole("global_attn_every_n_layers", counts=False)
    types = fields.texts("layer_types", layers)
    if types:
        return tuple(local if kind.startswith("sliding") else 0 for kind in types)
    return tuple(local if index % every else 0 for index in range(layers))


def _modern_shape(fields: ConfigFields, sizes: dict[str, int]) -> BlockShape:
    return BlockShape(
        hidden=sizes["hidden"],
        heads=sizes["heads"],
        kv_heads=sizes["heads"],
        head_dim=sizes["head_dim"],
        value_head_dim=sizes["head_dim"],
        intermediate=sizes["intermediate"],
        gated=True,
        activation=fields.text("hidden_act"),
        norm="layernorm",
        attention_bias=bool(sizes["qkv_bias"]),
        mlp_bias=bool(sizes["mlp_bias"]),
        causal=False,
        upcast_loss=True,
        rotary=True,
        fused_qkv=True,
        fused_gate=True,
        attention_dropout=fields.number("attention_dropout"),
    )


_MODERN: dict[str, Any] = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "norm_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
}
FAMILIES = (Family("modernbert", "ModernBertConfig", classes("ModernBert"), _MODERN, modernbert),)
