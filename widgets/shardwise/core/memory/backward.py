"""The worst moment of backward: block by block from the last, activations go and gradients come."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.core.arrays import first_highest, least, most
from shardwise.core.memory.moments import Moment
from shardwise.core.memory.spots import Pass


class BlockMemory(NamedTuple):
    """One kind of block: bytes kept until its backward, recomputed in it, and its moments."""

    kept: float
    recomputed: float
    hidden_bytes: float
    moments: tuple[Moment, ...]


class Point(NamedTuple):
    """Bytes at one moment of backward, over everything that is there all the time."""

    gradients: float
    gathered: float
    activations: float
    extra: float


def worst_point(
    run: Pass,
    memories: tuple[BlockMemory, ...],
    early: float,
    shared: tuple[float, float] = (0.0, 0.0),
) -> Point:
    """The highest moment of backward.

    Args:
        run: the stage's pass.
        memories: one for each kind of block of the pass's walk.
        early: bytes saved before the first block, kept to the end.
        shared: bytes of those that blocks read: gone with the first block's backward, or (the
            second figure of the first) with the decoder's first block's.
    """
    return Point(*first_highest(_points(run, memories, early, shared))[1:])


def _points(
    run: Pass, memories: tuple[BlockMemory, ...], early: float, shared: tuple[float, float]
) -> list[tuple[float, float, float, float, float]]:
    """(total, gradients, gathered, activations, extra) of every candidate."""
    gradients, gathered, extra = run.closing
    after = early - shared[0]
    rows = [(gradients + gathered + after + extra, gradients, gathered, after, extra)]
    apart = run.fsdp or run.apart
    for spot in run.spots:
        block = memories[spot.step.kind]
        before = early - shared[1] if spot.step.kind in run.encoder else early
        for count, memory in zip(spot.step.before, memories, strict=True):
            before = before + count * memory.kept
        whole = before + block.kept + block.recomputed
        for moment in block.moments:
            made = moment.feed_forward * spot.feed_forward + moment.attention * spot.others
            saved, gradients, extra = whole + moment.extra, spot.gradients, spot.extra
            if moment.product:
                extra = extra + spot.passing
            if apart:
                extra = extra + made
            else:
                gradients = gradients + made
            # Less than nothing: more of the weights' copies went than gradients came.
            gathered = spot.gathered + least(gradients, 0.0)
            gradients = most(gradients, 0.0)
            total = gradients + gathered + saved + extra
            rows.append((total, gradients, gathered, saved, extra))
        gradients = spot.gradients
        if spot.entering is not None:
            saved, extra = before + block.kept + block.hidden_bytes, spot.extra
            total = gradients + spot.entering + saved + extra
            rows.append((total, gradients, spot.entering, saved, extra))
        if spot.leaving is not None:
            saved, extra = before + block.hidden_bytes, spot.reduced
            total = gradients + spot.leaving + saved + extra
            rows.append((total, gradients, spot.leaving, saved, extra))
    return rows
