"""The worst moment of backward: block by block from the last, activations go and gradients come."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.core.arrays import least, most
from shardwise.core.memory.moments import Moment
from shardwise.core.memory.spots import Pass, Spot


class BlockMemory(NamedTuple):
    """One kind of block: bytes kept until its backward, recomputed in it, and its moments."""

    kept: float
    recomputed: float
    hidden_bytes: float
    moments: tuple[Moment, ...]


class Point(NamedTuple):
    """Bytes at one moment of backward, over everything that is there all the time.

    `heads` is how many gradients of all logits there are beside them.
    """

    gradients: float
    gathered: float
    activations: float
    extra: float
    heads: float = 0.0

    @property
    def besides(self) -> float:
        """All but activations and logits, which alone grow with tokens."""
        return self.gradients + self.gathered + self.extra


def backward_points(
    run: Pass,
    memories: tuple[BlockMemory, ...],
    early: float,
    shared: tuple[float, float] = (0.0, 0.0),
) -> list[Point]:
    """The moments at which backward may be highest.

    Args:
        run: the stage's pass.
        memories: one for each kind of block of the pass's walk.
        early: bytes saved before the first block, kept to the end.
        shared: bytes of those that blocks read: gone with the first block's backward, or (the
            second figure of the first) with the decoder's first block's.
    """
    gradients, gathered, extra = run.closing
    points = [Point(gradients, gathered, early - shared[0], extra)]
    for spot in run.spots:
        block = memories[spot.step.kind]
        before = early - shared[1] if spot.step.kind in run.encoder else early
        for count, memory in zip(spot.step.before, memories, strict=True):
            before = before + count * memory.kept
        whole = before + block.kept + block.recomputed
        points += [_inside(run, spot, moment, whole + moment.extra) for moment in block.moments]
        if spot.entering is not None:
            saved = before + block.kept + block.hidden_bytes
            points.append(Point(spot.gradients, spot.entering, saved, spot.extra))
        if spot.leaving is not None:
            saved = before + block.hidden_bytes
            points.append(Point(spot.gradients, spot.leaving, saved, spot.reduced))
    return points


def _inside(run: Pass, spot: Spot, moment: Moment, saved: float) -> Point:
    """One moment inside a block's backward, with the gradients of its weights made by then."""
    made = moment.feed_forward * spot.feed_forward + moment.attention * spot.others
    extra = spot.extra + spot.passing if moment.product else spot.extra
    if run.fsdp or run.apart:
        return Point(spot.gradients, spot.gathered, saved, extra + made)
    gradients = spot.gradients + made
    # Less than nothing: more of the weights' copies went than gradients came.
    gathered = spot.gathered + least(gradients, 0.0)
    return Point(most(gradients, 0.0), gathered, saved, extra)
