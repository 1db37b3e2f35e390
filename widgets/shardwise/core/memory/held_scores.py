"""BLOOM's attention, whose variables hold raw and masked scores until it returns.

transformers/models/bloom/modeling_bloom.py, `BloomAttention.forward`: `attention_scores` and
`attn_weights` live beside the weights until the output is projected, dropped and added, and the
block hands its weights on, so that `BloomModel.forward` holds one block's while the next one runs.
Backward finds none of them, but the forward pass and each recomputation do (traced).
"""

from __future__ import annotations

from shardwise.core.arrays import least, most
from shardwise.core.memory.activations import Saved
from shardwise.core.memory.moments import Moment
from shardwise.core.memory.operators.attention import softmax_bytes
from shardwise.core.memory.operators.norms import norm_bytes
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.structure import BlockShape

_BEFORE_SCORES = ("attention input", "queries, keys, values")
_INSIDE = (*_BEFORE_SCORES, "attention output", "attention scores")


def run_again(
    shape: BlockShape, tokens: Tokens, kernel: Kernel, saved: Saved
) -> tuple[Moment, ...]:
    """Moments of a recomputed block's attention, beside the gradient of the stream.

    At the softmax, and as attention's result is added to the stream.
    """
    if not _holds(shape, kernel):
        return ()
    gradient = saved.input_bytes - saved.total
    softmax = _at_softmax(shape, tokens, kernel, saved) + gradient
    added = _as_added(shape, tokens, kernel, saved) + gradient
    return Moment(softmax, 0.0, 0.0), Moment(added, 0.0, 0.0)


def forward_bytes(
    shape: BlockShape, tokens: Tokens, kernel: Kernel, saved: Saved, kinds: tuple[str, str]
) -> float:
    """Bytes of the last block's attention in forward, over what the block keeps; else 0.

    `kinds` is how the block before and this one are checkpointed ("": there is none before): what
    a block saves is there anyway, and its weights are among it.

    In fp32 with dropout 21as² a sample: the weights before, raw and masked scores, the softmax,
    dropout's result and mask.
    """
    before, own = kinds
    if not _holds(shape, kernel) or own not in ("none", "full"):
        return 0.0
    handed_on = kernel.element_bytes if before not in ("", "none") else 0
    extra = handed_on * _cells(shape, tokens, kernel)
    if own == "none":
        moments = (moment(shape, tokens, kernel, saved) for moment in (_at_softmax, _as_added))
        return extra + most(*moments) - saved.total
    sizes = dict(saved.operators)
    inputs = sum([sizes.get(name, 0.0) for name in _BEFORE_SCORES])
    softmax, element = softmax_bytes(shape, kernel), kernel.element_bytes
    cast = element + (softmax if element < softmax else 0)
    dropped = 2 * element + 1 if shape.attention_dropout else 0
    highest = max(_softmax_copies(shape, kernel), cast, dropped)
    held = (_held(kernel) + highest) * _cells(shape, tokens, kernel)
    return extra + held + inputs + _fused(shape, tokens, kernel)


def _holds(shape: BlockShape, kernel: Kernel) -> bool:
    return shape.holds_scores and kernel.eager_modules


def _cells(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    return shape.heads / kernel.tensor * tokens.count * tokens.attended


def _held(kernel: Kernel) -> int:
    """Bytes of a raw and of a masked score; the mask has the stream's type."""
    return kernel.element_bytes + kernel.residual


def _softmax_copies(shape: BlockShape, kernel: Kernel) -> int:
    """Bytes of the softmax's result and of its input, which 16 bits are first copied to fp32.

    aten/src/ATen/native/SoftMax.cpp, `softmax`: only fp16 goes to fp32 inside CUDA's kernel.
    """
    result = softmax_bytes(shape, kernel)
    return result + (result if kernel.residual < result else 0)


def _fused(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """The fused projection's result, held by a variable too.

    Queries, keys and values are copies of it, but for a single sample, where they are views.
    """
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim / kernel.tensor
    copied = least(tokens.samples - 1, 1)
    return copied * kernel.element_bytes * tokens.count * width


def _at_softmax(shape: BlockShape, tokens: Tokens, kernel: Kernel, saved: Saved) -> float:
    """All of the block that lives as the softmax is made and everything is saved."""
    sizes = dict(saved.operators)
    inputs = sum([sizes.get(name, 0.0) for name in _BEFORE_SCORES])
    scores = (_held(kernel) + _softmax_copies(shape, kernel)) * _cells(shape, tokens, kernel)
    norm = norm_bytes(shape, tokens.count, shape.hidden, kernel)
    return norm + inputs + scores + _fused(shape, tokens, kernel)


def _as_added(shape: BlockShape, tokens: Tokens, kernel: Kernel, saved: Saved) -> float:
    """All of the block that lives as attention's result is added and everything is saved.

    The projection's result, dropout's with its mask, and the sum.
    """
    sizes = dict(saved.operators)
    inside = sum([sizes.get(name, 0.0) for name in _INSIDE])
    results = 2 * kernel.element_bytes + 1 if shape.dropout else kernel.element_bytes
    stream = (results + kernel.residual) * tokens.count * shape.hidden
    norm = norm_bytes(shape, tokens.count, shape.hidden, kernel)
    held = _held(kernel) * _cells(shape, tokens, kernel)
    return norm + inside + stream + held + _fused(shape, tokens, kernel)
