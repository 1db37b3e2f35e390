"""Whisper: a convolutional front, an encoder of fixed length and a decoder with cross attention."""

from __future__ import annotations

from shardwise.core.architectures.decoder import split_evenly
from shardwise.core.architectures.family import Draft, Family
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
    unit,
)
from shardwise.core.config_fields import ConfigFields
from shardwise.core.structure import BlockShape, Module


def _attention(name: str) -> Rows:
    """Keys have no bias; the norm follows the projections by name."""
    return rows(
        linear(f"{name}.k_proj", "hidden", "hidden", "attention", COLUMN),
        linear(f"{name}.v_proj", "hidden", "hidden", "attention", COLUMN, bias=ALWAYS),
        linear(f"{name}.q_proj", "hidden", "hidden", "attention", COLUMN, bias=ALWAYS),
        linear(f"{name}.out_proj", "hidden", "hidden", "attention", ROW, bias=ALWAYS),
        norm(f"{name}_layer_norm", bias=ALWAYS),
    )


_MLP = rows(
    linear("fc1", "intermediate", "hidden", "mlp", COLUMN, bias=ALWAYS),
    linear("fc2", "hidden", "intermediate", "mlp", ROW, bias=ALWAYS),
    norm("final_layer_norm", bias=ALWAYS),
)
BLOCKS = {
    "encoder": rows(_attention("self_attn"), _MLP),
    "decoder": rows(_attention("self_attn"), _attention("encoder_attn"), _MLP),
}
_CONVOLUTIONS = {
    "conv1": rows(
        tensor("weight", "hidden", "mel", 3, part="embedding"),
        tensor("bias", "hidden", part="embedding"),
    ),
    "conv2": rows(
        tensor("weight", "hidden", "hidden", 3, part="embedding"),
        tensor("bias", "hidden", part="embedding"),
    ),
}
_TABLE = tensor("weight", "vocabulary", "hidden", part="embedding", cut=VOCABULARY)
_HEAD = tensor("weight", "vocabulary", "hidden", part="head", cut=VOCABULARY)
_FRAMES = tensor("weight", "frames", "hidden", part="position")
_POSITIONS = tensor("weight", "positions", "hidden", part="position")
_NORM = norm("", bias=ALWAYS)


def build(fields: ConfigFields, head: str) -> Draft:
    """Encoder over `max_source_positions` frames, decoder over `max_target_positions` tokens."""
    sizes = {
        "vocabulary": fields.whole("vocab_size"),
        "hidden": fields.whole("hidden_size"),
        "mel": fields.whole("num_mel_bins"),
        "frames": fields.whole("max_source_positions"),
        "positions": fields.whole("max_target_positions"),
    }
    base = "" if head == "none" else "model."
    tied = head == "lm" and fields.flag("tie_word_embeddings")
    modules: tuple[Module, ...] = ()
    for name, template in _CONVOLUTIONS.items():
        modules += unit(f"{base}encoder.{name}", "embedding", template, sizes)
    modules += unit(f"{base}encoder.embed_positions", "embedding", _FRAMES, sizes)
    modules += _stack(fields, "encoder", sizes, base)
    modules += unit(f"{base}decoder.embed_tokens", "embedding", _TABLE, sizes)
    modules += unit(f"{base}decoder.embed_positions", "embedding", _POSITIONS, sizes)
    modules += _stack(fields, "decoder", sizes, base)
    if head == "lm" and not tied:
        modules += unit("proj_out", "head", _HEAD, sizes)
    return Draft(
        modules, sizes["hidden"], sizes["vocabulary"], sizes["positions"], tied, sizes["frames"]
    )


def _stack(fields: ConfigFields, side: str, sizes: dict[str, int], base: str) -> tuple[Module, ...]:
    heads = fields.whole(f"{side}_attention_heads")
    head_dim = split_evenly(fields, sizes["hidden"], heads)
    width = fields.whole(f"{side}_ffn_dim")
    shape = BlockShape(
        hidden=sizes["hidden"],
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        value_head_dim=head_dim,
        intermediate=width,
        activation=fields.text("hidden_act"),
        norm="layernorm",
        attention_bias=True,
        mlp_bias=True,
        cross_attention=side == "decoder",
        causal=side == "decoder",
        dropout=fields.number("dropout"),
        attention_dropout=fields.number("attention_dropout"),
        tokens="encoder" if side == "encoder" else "sequence",
    )
    inner = {**sizes, "intermediate": width}
    modules: tuple[Module, ...] = ()
    for index in range(fields.layer_count(f"{side}_layers")):
        modules += unit(f"{base}{side}.layers.{index}", "block", BLOCKS[side], inner, shape)
    return modules + unit(f"{base}{side}.layer_norm", "norm", _NORM, sizes)


FAMILIES = (
    Family(
        "whisper",
        "WhisperConfig",
        {"WhisperForConditionalGeneration": "lm", "WhisperModel": "none"},
        {
            "vocab_size": 51865,
            "num_mel_bins": 80,
            "encoder_layers": 4,
            "encoder_attention_heads": 6,
            "decoder_layers": 4,
            "decoder_attention_heads": 6,
            "decoder_ffn_dim": 1536,
            "encoder_ffn_dim": 1536,
            "hidden_act": "gelu",
            "hidden_size": 384,
            "max_source_positions": 1500,
            "max_target_positions": 448,
            "tie_word_embeddings": True,
        },
        build,
        required=("hidden_size", "encoder_layers", "decoder_layers"),
    ),
)
