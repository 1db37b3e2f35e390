"""T5, Flan-T5 and mT5: an encoder and a decoder with cross attention, RMSNorm, no biases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

_TABLE = tensor("weight", "vocabulary", "hidden", part="embedding", cut=VOCABULARY)


def _attention(name: str) -> Rows:
    return rows(
        linear(f"{name}.q", "query", "hidden", "attention", COLUMN),
        linear(f"{name}.k", "query", "hidden", "attention", COLUMN),
        linear(f"{name}.v", "query", "hidden", "attention", COLUMN),
        linear(f"{name}.o", "hidden", "query", "attention", ROW),
    )


def _self_attention() -> Rows:
    """The first block of a stack holds the relative position bias for all of them."""
    bias = tensor(
        "layer.0.SelfAttention.relative_attention_bias.weight",
        "buckets",
        "heads",
        part="position",
        when="first",
    )
    return rows(_attention("layer.0.SelfAttention"), bias, norm("layer.0.layer_norm"))


def _mlp(layer: int) -> Rows:
    name = f"layer.{layer}.DenseReluDense"
    return rows(
        linear(f"{name}.wi", "intermediate", "hidden", "mlp", COLUMN, when="plain"),
        linear(f"{name}.wi_0", "intermediate", "hidden", "mlp", COLUMN, when="gated"),
        linear(f"{name}.wi_1", "intermediate", "hidden", "mlp", COLUMN, when="gated"),
        linear(f"{name}.wo", "hidden", "intermediate", "mlp", ROW),
        norm(f"layer.{layer}.layer_norm"),
    )


ENCODER_BLOCK = rows(_self_attention(), _mlp(1))
DECODER_BLOCK = rows(
    _self_attention(), _attention("layer.1.EncDecAttention"), norm("layer.1.layer_norm"), _mlp(2)
)


def build(fields: ConfigFields, head: str) -> Draft:
    """Shared embedding, encoder and, except for `T5EncoderModel`, decoder; the head is tied."""
    sizes, shape = _sizes(fields), _shape(fields)
    encoder_layers = fields.layer_count()
    decoder_layers = encoder_layers
    if fields.has("num_decoder_layers"):
        decoder_layers = fields.layer_count("num_decoder_layers")
    modules: tuple[Module, ...] = unit("shared", "embedding", _TABLE, sizes)
    encoder_shape = replace(shape, causal=False, tokens="encoder")
    modules += _stack("encoder", ENCODER_BLOCK, encoder_layers, sizes, encoder_shape)
    if head != "encoder":
        decoder_shape = replace(shape, cross_attention=True)
        modules += _stack("decoder", DECODER_BLOCK, decoder_layers, sizes, decoder_shape)
    # T5Config sets tie_word_embeddings whatever the file says, also where 1.1 stores it as false.
    if fields.config.get("tie_word_embeddings") is False and head == "lm":
        fields.assume(
            "tie_word_embeddings is false in the file, but transformers ties T5's head to the "
            "embedding all the same, so it is counted once."
        )
    return Draft(modules, sizes["hidden"], sizes["vocabulary"], 0, head == "lm")


def _stack(
    name: str, template: Rows, layers: int, sizes: dict[str, int], shape: BlockShape
) -> tuple[Module, ...]:
    modules: tuple[Module, ...] = ()
    for index in range(layers):
        first = {**sizes, "first": int(index == 0)}
        modules += unit(f"{name}.block.{index}", "block", template, first, shape)
    return modules + unit(f"{name}.final_layer_norm", "norm", norm(""), sizes)


def _gated(fields: ConfigFields) -> tuple[bool, str]:
    gate, _, activation = fields.text("feed_forward_proj", counts=True).rpartition("-")
    return gate == "gated", activation


def _sizes(fields: ConfigFields) -> dict[str, int]:
    gated, _ = _gated(fields)
    heads = fields.whole("num_attention_heads")
    return {
        "vocabulary": fields.whole("vocab_size"),
        "hidden": fields.whole("hidden_size"),
        "heads": heads,
        "query": heads * fields.whole("head_dim", maximum=65_536),
        "intermediate": fields.whole("intermediate_size"),
        "buckets": fields.whole("relative_attention_num_buckets"),
        "gated": int(gated),
        "plain": int(not gated),
    }


def _shape(fields: ConfigFields) -> BlockShape:
    gated, activation = _gated(fields)
    heads, head_dim = fields.whole("num_attention_heads"), fields.whole("head_dim")
    return BlockShape(
        hidden=fields.whole("hidden_size"),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        value_head_dim=head_dim,
        intermediate=fields.whole("intermediate_size"),
        gated=gated,
        # T5Config reads gated-gelu as the written-out GELU of GPT-2.
        activation="gelu_new" if gated and activation == "gelu" else activation,
        dropout=fields.number("dropout"),
        attention_dropout=fields.number("dropout"),
        softmax_in_fp32=False,
        position_bias=True,
    )


def _family(
    model_type: str, prefix: str, vocabulary: int, width: int, depth: tuple[int, int], mlp: str
) -> Family:
    defaults: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 512,
        "head_dim": 64,
        "intermediate_size": width,
        "num_hidden_layers": depth[0],
        "num_attention_heads": depth[1],
        "relative_attention_num_buckets": 32,
        "feed_forward_proj": mlp,
        "dropout": 0.1,
    }
    classes = {
        f"{prefix}ForConditionalGeneration": "lm",
        f"{prefix}Model": "none",
        f"{prefix}EncoderModel": "encoder",
    }
    return Family(model_type, f"{prefix}Config", classes, defaults, build)


FAMILIES = (
    _family("t5", "T5", 32128, 2048, (6, 8), "relu"),
    _family("mt5", "MT5", 250112, 1024, (8, 6), "gated-gelu"),
)
