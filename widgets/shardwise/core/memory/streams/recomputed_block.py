"""A checkpointed block of Megatron-LM before FlashAttention, operator by operator.

Read from megatron/model/transformer.py and fused_softmax.py of Megatron-LM 2.x, which
Megatron-DeepSpeed kept: `ParallelAttention.forward` holds the scores in a local name until it
returns, the fused softmax makes a tensor of its own, `bias_dropout_add_fused_train` keeps a mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shardwise.core.memory.streams.tape import Tape
from shardwise.core.structure import BlockShape


@dataclass(frozen=True)
class BlockBytes:
    """Bytes of a block's tensors on one rank, for one micro-batch.

    `hidden` is a whole layer input; `query`, `key` (as large as the values), `wide` and `inner`
    (the MLP before and after its activation) and `scores` are a tensor rank's parts. Weights are
    those of the four products, `small` all biases and norms.
    """

    hidden: float
    query: float
    key: float
    scores: float
    wide: float
    inner: float
    mask: float
    score_mask: float
    weights: tuple[float, float, float, float]
    small: tuple[float, ...]

    @classmethod
    def of(
        cls, shape: BlockShape, samples: float, length: float, element: int, tensor: int
    ) -> BlockBytes:
        """The sizes of one block of this shape."""
        tokens = samples * length
        query = shape.heads * shape.head_dim / tensor
        key = max(shape.kv_heads, tensor) * shape.head_dim / tensor
        inner = shape.intermediate / tensor
        wide = inner * (2 if shape.gated else 1)
        hidden = shape.hidden
        products = (query + 2 * key, query, wide, inner)
        small = (hidden,) * 6 + (products[0], wide)
        cells = tokens * length * shape.heads / tensor
        return cls(
            hidden=element * tokens * hidden,
            query=element * tokens * query,
            key=element * tokens * key,
            scores=element * cells,
            wide=element * tokens * wide,
            inner=element * tokens * inner,
            mask=tokens * hidden if shape.dropout else 0.0,
            score_mask=cells if shape.attention_dropout else 0.0,
            weights=tuple(element * hidden * width for width in products),  # type: ignore[arg-type]
            small=tuple(element * width for width in small),
        )


class Saved(NamedTuple):
    """Tensors of a recomputed block that its backward reads."""

    normed: int
    projected: int
    softmax: int
    dropped: int
    score_mask: int
    context: int
    middle: int
    mask: int
    second: int
    wide: int
    inner: int
    last_mask: int


def forward(tape: Tape, size: BlockBytes, keep: bool) -> tuple[int, Saved | None]:
    """One block's forward: its output, and what backward reads if the graph is kept.

    Without a graph (the checkpoint's first pass) tensors go as soon as their last reader is done.
    """

    def unless_kept(*tensors: int) -> None:
        if not keep:
            tape.drop(*tensors)

    normed = tape.take(size.hidden)
    projected = tape.take(size.query + 2 * size.key)
    scores, softmax = tape.take(size.scores), tape.take(size.scores)
    dropped = tape.take(size.scores) if size.score_mask else softmax
    score_mask = tape.take(size.score_mask) if size.score_mask else 0
    if size.score_mask:
        unless_kept(softmax, score_mask)
    by_head, context = tape.take(size.query), tape.take(size.query)
    tape.drop(by_head)
    attended = tape.take(size.hidden)
    tape.drop(scores)
    unless_kept(projected, dropped, context, normed)
    middle, mask = tape.take(size.hidden), tape.take(size.mask) if size.mask else 0
    tape.drop(attended)
    unless_kept(mask)
    second, wide, inner = tape.take(size.hidden), tape.take(size.wide), tape.take(size.inner)
    unless_kept(wide)
    narrow = tape.take(size.hidden)
    unless_kept(inner)
    output, last_mask = tape.take(size.hidden), tape.take(size.mask) if size.mask else 0
    tape.drop(narrow)
    unless_kept(last_mask, middle, second)
    if not keep:
        return output, None
    saved = Saved(
        normed, projected, softmax, dropped if size.score_mask else 0, score_mask, context,
        middle, mask, second, wide, inner, last_mask,
    )  # fmt: skip
    return output, saved


class Gradients:
    """Weight gradients: the first becomes the parameter's, later ones are added and go."""

    def __init__(self, tape: Tape) -> None:
        """None yet."""
        self.tape = tape
        self.held: dict[tuple[int, int], tuple[int, float]] = {}

    def add(self, weight: tuple[int, int], size: float) -> None:
        """One more micro-batch's gradient of a weight: (block, product)."""
        made = self.tape.take(size)
        if weight in self.held:
            self.tape.drop(made)
        else:
            self.held[weight] = made, size

    def clear(self, but: float = 0.0) -> list[float]:
        """`grad = None` for all but the model's first, up to so many bytes: their sizes."""
        kept, left = [], but
        for weight in sorted(self.held):
            tensor, size = self.held[weight]
            if left > 0:
                kept.append(min(left, size))
                left -= size
                continue
            self.tape.drop(tensor)
            del self.held[weight]
        return kept


def backward(tape: Tape, size: BlockBytes, index: int, arriving: int, grads: Gradients) -> int:
    """Recompute block `index` and run its backward; the gradient of its input."""
    output, saved = forward(tape, size, keep=True)
    assert saved is not None
    residual = _mlp_backward(tape, size, index, saved, grads)
    masked = tape.take(size.hidden)
    tape.drop(saved.mask)
    context = tape.take(size.query)
    grads.add((index, 1), size.weights[1])
    tape.drop(masked, saved.context)
    by_head = tape.take(size.query)
    tape.drop(context)
    probabilities, values = tape.take(size.scores), tape.take(size.key)
    tape.drop(saved.dropped, by_head)
    if size.score_mask:
        undropped = tape.take(size.scores)
        tape.drop(probabilities, saved.score_mask)
        probabilities = undropped
    tape.drop(saved.softmax)  # the fused softmax's backward writes into its gradient
    queries, keys = tape.take(size.query), tape.take(size.key)
    tape.drop(probabilities)
    projected = tape.take(size.query + 2 * size.key)
    tape.drop(queries, keys, values, saved.projected)
    normed = tape.take(size.hidden)
    grads.add((index, 0), size.weights[0])
    tape.drop(projected, saved.normed)
    through = tape.take(size.hidden)
    tape.drop(normed)
    total = tape.take(size.hidden)
    tape.drop(through, residual, output, arriving)
    return total


def _mlp_backward(tape: Tape, size: BlockBytes, index: int, saved: Saved, grads: Gradients) -> int:
    masked = tape.take(size.hidden)
    tape.drop(saved.last_mask)
    inner = tape.take(size.inner)
    grads.add((index, 3), size.weights[3])
    tape.drop(masked, saved.inner)
    wide = tape.take(size.wide)
    tape.drop(inner, saved.wide)
    second = tape.take(size.hidden)
    grads.add((index, 2), size.weights[2])
    tape.drop(wide, saved.second)
    through = tape.take(size.hidden)
    tape.drop(second)
    total = tape.take(size.hidden)
    tape.drop(through, saved.middle)
    return total
