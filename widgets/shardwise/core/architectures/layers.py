"""Templates that many decoders share, under transformers' names."""

from __future__ import annotations

from shardwise.core.architectures.templates import (
    COLUMN,
    EXPERT,
    ROW,
    Rows,
    linear,
    norm,
    rows,
    tensor,
)


def attention(output: str = "o_proj", where: str = "self_attn.") -> Rows:
    """Separate query, key, value and output projections, biases by `qkv_bias`, `output_bias`."""
    return rows(
        linear(f"{where}q_proj", "query", "hidden", "attention", COLUMN, bias="qkv_bias"),
        linear(f"{where}k_proj", "key_value", "hidden", "attention", COLUMN, bias="qkv_bias"),
        linear(f"{where}v_proj", "key_value", "hidden", "attention", COLUMN, bias="qkv_bias"),
        linear(f"{where}{output}", "hidden", "query", "attention", ROW, bias="output_bias"),
    )


def gated_mlp(name: str = "mlp", width: str = "intermediate", *, when: str = "") -> Rows:
    """SwiGLU's three projections, biases by `mlp_bias`."""
    bias = "" if when else "mlp_bias"
    return rows(
        linear(f"{name}.gate_proj", width, "hidden", "mlp", COLUMN, bias=bias, when=when),
        linear(f"{name}.up_proj", width, "hidden", "mlp", COLUMN, bias=bias, when=when),
        linear(f"{name}.down_proj", "hidden", width, "mlp", ROW, bias=bias, when=when),
    )


def plain_mlp(up: str, down: str, *, bias: str) -> Rows:
    """Two projections with a nonlinearity between them."""
    return rows(
        linear(up, "intermediate", "hidden", "mlp", COLUMN, bias=bias),
        linear(down, "hidden", "intermediate", "mlp", ROW, bias=bias),
    )


def fused_experts(name: str = "mlp.experts") -> Rows:
    """All experts of a layer as two 3-dimensional tensors, as transformers 5 holds them."""
    return rows(
        tensor(
            f"{name}.gate_up_proj",
            "experts",
            "expert_gate_up",
            "hidden",
            part="experts",
            cut=EXPERT,
        ),
        tensor(
            f"{name}.down_proj",
            "experts",
            "hidden",
            "expert_intermediate",
            part="experts",
            cut=EXPERT,
        ),
    )


def router(name: str = "mlp.gate", *, bias: str = "") -> Rows:
    """The linear layer that scores the experts; every rank holds it."""
    return linear(name, "experts", "hidden", "router", bias=bias)


def head_norms(size: str = "head_dim", key_size: str = "head_dim", *, when: str = "") -> Rows:
    """RMSNorm of queries and keys before the rotary embedding."""
    return rows(
        norm("self_attn.q_norm", size, when=when),
        norm("self_attn.k_norm", key_size, when=when),
    )


def two_norms(*, bias: str = "") -> Rows:
    """LLaMA's norm before attention and norm before the MLP."""
    return rows(norm("input_layernorm", bias=bias), norm("post_attention_layernorm", bias=bias))


def four_norms() -> Rows:
    """Gemma's norms before and after attention and the MLP."""
    return rows(two_norms(), norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm"))
