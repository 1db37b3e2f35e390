"""Encoders with BERT's names: BERT, RoBERTa, XLM-RoBERTa."""

from __future__ import annotations

from functools import partial
from typing import Any

from shardwise.core.architectures.decoder import attention_sizes, split_evenly
from shardwise.core.architectures.family import Draft, Family
from shardwise.core.architectures.templates import (
    ALWAYS,
    COLUMN,
    ROW,
    VOCABULARY,
    Row,
    Rows,
    linear,
    norm,
    rows,
    tensor,
    unit,
)
from shardwise.core.config_fields import ConfigFields
from shardwise.core.structure import BlockShape, Module

BLOCK = rows(
    linear("attention.self.query", "query", "hidden", "attention", COLUMN, bias=ALWAYS),
    linear("attention.self.key", "key_value", "hidden", "attention", COLUMN, bias=ALWAYS),
    linear("attention.self.value", "key_value", "hidden", "attention", COLUMN, bias=ALWAYS),
    linear("attention.output.dense", "hidden", "query", "attention", ROW, bias=ALWAYS),
    norm("attention.output.LayerNorm", bias=ALWAYS),
    linear("intermediate.dense", "intermediate", "hidden", "mlp", COLUMN, bias=ALWAYS),
    linear("output.dense", "hidden", "intermediate", "mlp", ROW, bias=ALWAYS),
    norm("output.LayerNorm", bias=ALWAYS),
)
_WORDS = tensor("word_embeddings.weight", "vocabulary", "hidden", part="embedding", cut=VOCABULARY)
_POSITIONS = tensor("position_embeddings.weight", "positions", "hidden", part="position")
_TYPES = tensor("token_type_embeddings.weight", "types", "hidden", part="embedding")
_NORM = norm("LayerNorm", bias=ALWAYS)
# transformers 5 lists RoBERTa's position table last.
EMBEDDINGS = {
    "bert": rows(_WORDS, _POSITIONS, _TYPES, _NORM),
    "roberta": rows(_WORDS, _TYPES, _NORM, _POSITIONS),
}


def _untied(name: str) -> Rows:
    """The output projection, which exists by itself only when it is not tied."""
    return rows(
        tensor(f"{name}.weight", "vocabulary", "hidden", part="head", cut=VOCABULARY, when="free"),
        tensor(f"{name}.bias", "vocabulary", part="head", cut=VOCABULARY, when="free"),
    )


# The decoder adds a bias of its own, which is this one only where weights are tied
# (modeling_bert.py, `_tied_weights_keys`).
_BIAS = (Row("bias", ("vocabulary",), "head", VOCABULARY, unread="free"),)
_MASKED = {
    "bert": (
        "cls.predictions",
        rows(
            _BIAS,
            linear("transform.dense", "hidden", "hidden", "head", bias=ALWAYS),
            norm("transform.LayerNorm", bias=ALWAYS),
            _untied("decoder"),
        ),
    ),
    "roberta": (
        "lm_head",
        rows(
            _BIAS,
            linear("dense", "hidden", "hidden", "head", bias=ALWAYS),
            norm("layer_norm", bias=ALWAYS),
            _untied("decoder"),
        ),
    ),
}
_LABELS = linear("", "labels", "hidden", "head", bias=ALWAYS)
_HEADS: dict[tuple[str, str], tuple[tuple[str, Rows], ...]] = {
    ("bert", "masked"): (_MASKED["bert"],),
    ("roberta", "masked"): (_MASKED["roberta"],),
    ("bert", "pretraining"): (
        _MASKED["bert"],
        ("cls.seq_relationship", linear("", 2, "hidden", "head", bias=ALWAYS)),
    ),
    ("bert", "sequence"): (("classifier", _LABELS),),
    ("roberta", "sequence"): (
        (
            "classifier",
            rows(
                linear("dense", "hidden", "hidden", "head", bias=ALWAYS),
                linear("out_proj", "labels", "hidden", "head", bias=ALWAYS),
            ),
        ),
    ),
    ("bert", "tokens"): (("classifier", _LABELS),),
    ("roberta", "tokens"): (("classifier", _LABELS),),
    ("bert", "answers"): (("qa_outputs", _LABELS),),
    ("roberta", "answers"): (("qa_outputs", _LABELS),),
}
_POOLED = {("bert", head) for head in ("none", "pretraining", "sequence")} | {("roberta", "none")}


def build(fields: ConfigFields, head: str, kind: str) -> Draft:
    """The encoder with one head; `kind` says whose embeddings and heads it has."""
    sizes = sizes_of(fields, head)
    tied = head in ("masked", "pretraining") and not sizes["free"]
    base = "" if head == "none" else f"{kind}."
    shape = shape_of(fields, sizes)
    modules: tuple[Module, ...] = unit(f"{base}embeddings", "embedding", EMBEDDINGS[kind], sizes)
    for index in range(fields.layer_count()):
        modules += unit(f"{base}encoder.layer.{index}", "block", BLOCK, sizes, shape)
    if (kind, head) in _POOLED:
        pooler = linear("dense", "hidden", "hidden", "other", bias=ALWAYS)
        modules += unit(f"{base}pooler", "other", pooler, sizes)
    for name, template in _HEADS.get((kind, head), ()):
        modules += unit(name, "head", template, sizes)
    return Draft(modules, sizes["hidden"], sizes["vocabulary"], sizes["positions"], tied)


def sizes_of(fields: ConfigFields, head: str) -> dict[str, int]:
    """Sizes of BERT's blocks, tables and heads."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    labelled = head in ("sequence", "tokens", "answers")
    language = head in ("masked", "pretraining")
    return attention_sizes(hidden, heads, heads, split_evenly(fields, hidden, heads)) | {
        "intermediate": fields.whole("intermediate_size"),
        "vocabulary": fields.whole("vocab_size"),
        "positions": fields.whole("max_position_embeddings"),
        "types": fields.whole("type_vocab_size"),
        "labels": fields.labels() if labelled else 0,
        "free": int(language and not fields.flag("tie_word_embeddings")),
    }


def shape_of(fields: ConfigFields, sizes: dict[str, int]) -> BlockShape:
    """BERT's block: norms after the residual, biases, dropout."""
    return BlockShape(
        hidden=sizes["hidden"],
        heads=sizes["heads"],
        kv_heads=sizes["kv_heads"],
        head_dim=sizes["head_dim"],
        value_head_dim=sizes["head_dim"],
        intermediate=sizes["intermediate"],
        activation=fields.text("hidden_act"),
        norm="layernorm",
        softmax_in_fp32=False,
        attention_bias=True,
        mlp_bias=True,
        causal=False,
        dropout=fields.number("dropout"),
        attention_dropout=fields.number("attention_dropout"),
    )


def _classes(prefix: str) -> dict[str, str]:
    return {
        f"{prefix}ForMaskedLM": "masked",
        f"{prefix}Model": "none",
        f"{prefix}ForSequenceClassification": "sequence",
        f"{prefix}ForTokenClassification": "tokens",
        f"{prefix}ForQuestionAnswering": "answers",
    }


DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "tie_word_embeddings": True,
}
FAMILIES = (
    Family(
        "bert",
        "BertConfig",
        {**_classes("Bert"), "BertForPreTraining": "pretraining"},
        DEFAULTS,
        partial(build, kind="bert"),
    ),
    Family(
        "roberta",
        "RobertaConfig",
        _classes("Roberta"),
        {**DEFAULTS, "vocab_size": 50265},
        partial(build, kind="roberta"),
    ),
    Family(
        "xlm-roberta",
        "XLMRobertaConfig",
        _classes("XLMRoberta"),
        DEFAULTS,
        partial(build, kind="roberta"),
    ),
)
