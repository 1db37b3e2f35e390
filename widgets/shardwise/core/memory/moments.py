"""The moments inside one block's backward at which memory can peak."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from shardwise.core.memory.activations import Saved, block_saved
from shardwise.core.memory.operators.attention import attention_kernel
from shardwise.core.memory.operators.mlp import mlp_backward_widths
from shardwise.core.memory.operators.norms import norm_backward, norm_bytes
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.structure import BlockShape


@dataclass(frozen=True)
class Moment:
    """One moment of a block's backward.

    `extra` are bytes over what the block saved (gradients and temporaries, less what is freed);
    `feed_forward` and `attention` are the shares of those weights that have their gradients.
    """

    extra: float
    feed_forward: float
    attention: float


@lru_cache(maxsize=4096)
def block_moments(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> tuple[Moment, ...]:
    """The candidates for a block's peak in backward, in order of time.

    transformers' modules, traced (`data/traces/ACTIVATIONS.md`, peak moments): the MLP (6f + 2h a
    token in gradients, less the down projection's input), grouped experts, the norm before the MLP
    (22h in fp32), attention (eager scores: gradient and result of the softmax), the first norm.
    Fused modules: the widest gradients of the MLP, or of a norm, over all that was saved.
    """
    saved = block_saved(shape, tokens, kernel)
    if not kernel.eager_modules:
        sizes = dict(saved.operators)
        widest = max(sizes.get("MLP", 0.0), sizes.get("experts", 0.0))
        return (Moment(max(0.75 * widest, saved.input_bytes) + saved.input_bytes, 1.0, 1.0),)
    freed, moments = _feed_forward(shape, tokens, kernel, saved)
    outside = kernel.tensor if kernel.sequence_parallel else 1
    norm = norm_backward(shape, tokens.count, kernel) / outside
    moments.append(Moment(norm - freed, 1.0, 0.0))
    freed += norm_bytes(shape, tokens.count, shape.hidden, kernel) / outside
    if shape.attention:
        moments.append(Moment(_attention(shape, tokens, kernel) - freed, 1.0, 0.5))
    own = norm_bytes(shape, tokens.count, shape.hidden, kernel) / outside
    moments.append(Moment(norm - saved.total + own, 1.0, 1.0))
    if not shape.position_bias:
        return tuple(moments)
    # All blocks read one position bias (T5): its gradient is summed up from block to block.
    bias = kernel.element_bytes * shape.heads / kernel.tensor * tokens.length * tokens.attended
    return tuple(replace(moment, extra=moment.extra + bias) for moment in moments)


def _feed_forward(
    shape: BlockShape, tokens: Tokens, kernel: Kernel, saved: Saved
) -> tuple[float, list[Moment]]:
    """(bytes that are freed once the MLP's backward is over, its moments)."""
    rows, residual = kernel.element_bytes * tokens.count, saved.input_bytes
    sizes = dict(saved.operators)
    moments: list[Moment] = []
    if shape.intermediate:
        width = rows * shape.intermediate / kernel.tensor
        grads, gone = mlp_backward_widths(shape)
        first = 1 / 3 if shape.gated else 1 / 2
        moments.append(Moment((grads - gone) * width + residual, first, 0.0))
        after = (2 if shape.gated else 1) * width + residual - sizes["MLP"]
        moments.append(Moment(after, 1.0, 0.0))
    if shape.experts:
        chosen = shape.experts_per_token * rows
        gate_up = 2 * chosen * shape.expert_intermediate / kernel.tensor
        freed = sizes["experts"] + sizes["expert outputs"]
        inputs = chosen * shape.hidden
        moments.append(Moment(gate_up + inputs + residual - freed, 1.0, 0.0))
    names = ("MLP", "MLP input", "experts", "expert inputs", "expert outputs", "shared experts")
    return sum(sizes.get(name, 0.0) for name in (*names, "router")), moments


def _attention(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """Gradients inside attention's backward, over what it saved.

    Eager: gradient and result of the fp32 softmax, 8as², while its 16-bit cast is freed; flash:
    gradients of q, k, v and of its output.
    """
    rows = kernel.element_bytes * tokens.count
    cells = shape.heads / kernel.tensor * tokens.count * tokens.attended
    ran, element = attention_kernel(shape, tokens, kernel), kernel.element_bytes
    width = shape.heads * (2 * shape.head_dim + 2 * shape.value_head_dim) / kernel.tensor
    gradients = rows * (width + shape.hidden)
    if ran == "eager" and (shape.sinks or not shape.softmax_in_fp32):
        return gradients + 2 * element * cells
    if ran == "eager":
        return gradients + (8 - (element if element < 4 else 0)) * cells
    return gradients + (8 * cells if ran == "math" else 0.0)
