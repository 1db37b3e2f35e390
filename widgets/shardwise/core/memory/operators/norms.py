"""Norms: what their inputs, statistics and results keep."""

from __future__ import annotations

from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.structure import BlockShape


def norm_count(shape: BlockShape) -> int:
    """Norms whose result is a linear layer's input."""
    if shape.cross_attention:
        return 3
    if shape.parallel:
        return shape.parallel_norms
    return 2 if shape.attention else 1


def norms(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """Bytes that a block's norms keep, their results (the next linear layer's input) not counted.

    Fused modules keep each norm's input: 2 x 2sbh for a GPT layer (Korthikanti et al. 2022,
    section 4.1). transformers' modules, traced (`data/traces/ACTIVATIONS.md`): see `norm_bytes`.
    """
    count = norm_count(shape)
    if not kernel.followed:
        count = 1 if shape.parallel else shape.branches
        return count * kernel.element_bytes * tokens.count * shape.hidden
    own = norm_bytes(shape, tokens.count, shape.hidden, kernel)
    if not shape.norm_first:
        return count * norm_behind(shape, tokens.count, kernel)
    if shape.parallel:  # norms side by side read one residual
        return count * own - (count - 1) * kernel.residual * tokens.count * shape.hidden
    return count * own + shape.post_norms * norm_behind(shape, tokens.count, kernel)


def norm_bytes(shape: BlockShape, tokens: float, width: int, kernel: Kernel) -> float:
    """Bytes that one norm keeps over vectors of `width`, without its result.

    One kernel (torch's `_fused_rms_norm`, flash-attn's Triton norm, a compiled one): its input and
    one fp32 rsqrt, 2h + 4. transformers' modules are written out:

    RMSNorm (`LlamaRMSNorm.forward`): an fp32 copy of the input, the normalized product in the
    input's type and one fp32 rsqrt: 6h + 4 a token in bf16, 8h + 4 in fp32 (the input itself and
    the product). Gemma's and OLMo 2's multiply in fp32: 8h + 4, and 4h once. T5's keeps
    the bf16 input too. Cohere's LayerNorm: the input less its mean twice, and that over the
    deviation, in fp32: 12h + 4. LayerNorm: its input (fp32 under autocast and in OLMo) and two fp32
    statistics: 2h + 8.

    >>> norm_bytes(BlockShape(hidden=4096), 1, 4096, Kernel(2, 1, False, "flash", "transformers"))
    24580.0
    """
    if shape.norm == "layernorm":
        stream = 4 if shape.norm_in_fp32 or kernel.autocasts else kernel.residual
        return 1.0 * tokens * (stream * width + 8)
    if not kernel.eager_modules:
        return 1.0 * tokens * (kernel.residual * width + 4)
    if shape.norm == "written-layernorm":
        return 1.0 * tokens * (12 * width + 4) + 4 * width
    product = 4 if shape.norm_in_fp32 else kernel.residual
    if kernel.frozen is not None and "norm" not in kernel.frozen.trained:
        product = 0  # for the weight's gradient only
    once = 4 * width if shape.norm_in_fp32 else 0
    stream = kernel.residual if shape.position_bias and kernel.residual < 4 else 0
    return 1.0 * tokens * ((4 + product + stream) * width + 4) + once


def norm_behind(shape: BlockShape, tokens: float, kernel: Kernel) -> float:
    """Bytes of one norm over what attention or the MLP hands back, 16 bits also under autocast."""
    return norm_bytes(shape, tokens, shape.hidden, _inside(kernel))


def _inside(kernel: Kernel) -> Kernel:
    """The kernel as seen by a norm over a matrix product's result, which autocast makes 16 bits."""
    return Kernel(
        kernel.element_bytes, 1, False, kernel.attention, kernel.model_code, frozen=kernel.frozen
    )


def head_norms(shape: BlockShape, tokens: float, kernel: Kernel) -> float:
    """Bytes of the norms over queries and keys: 6d + 4 for each head (Gemma 8d + 4), traced."""
    if not shape.qk_norm:
        return 0.0
    heads = (shape.heads + shape.kv_heads) / kernel.tensor
    width = shape.head_dim
    return norm_bytes(shape, tokens * heads, width, _inside(kernel))


def norm_backward(shape: BlockShape, tokens: float, kernel: Kernel) -> float:
    """Gradients and temporaries alive inside the backward of one norm.

    RMSNorm in fp32 over bf16: 22h a token (gradient, two products, pow, scale, the mean's spread,
    and the bf16 residual gradient: `data/traces/ACTIVATIONS.md`, peak moments), less the product
    that only the weight's gradient needed; LayerNorm and norms of one kernel: the gradients in and
    out and the residual's.
    """
    if shape.norm == "layernorm" or not kernel.eager_modules:
        return tokens * shape.hidden * (2 * kernel.residual + kernel.residual)
    product = 4 if shape.norm_in_fp32 else kernel.residual
    if kernel.frozen is not None and "norm" not in kernel.frozen.trained:
        product = 0
    return tokens * shape.hidden * (20 + kernel.residual - product)
