"""The worst moment of backward: block by block from the last, activations go and gradients come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from shardwise.core.layout import Layout
from shardwise.core.memory.buffers import gathered_element
from shardwise.core.memory.moments import Moment
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.states import Units
from shardwise.core.precision import Precision


@dataclass(frozen=True)
class BlockMemory:
    """One block of a stage: bytes kept until its backward, recomputed in it, and its moments."""

    kept: float
    recomputed: float
    hidden_bytes: float
    moments: tuple[Moment, ...]


@dataclass(frozen=True)
class Point:
    """Bytes at one moment of backward, over everything that is there all the time."""

    gradients: float
    gathered: float
    activations: float
    extra: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.gradients + self.gathered + self.activations + self.extra


@dataclass(frozen=True)
class Pass:
    """What a backward pass runs over: the stage, its engine, its units and its blocks' memory."""

    stage: Stage
    layout: Layout
    precision: Precision
    units: Units
    blocks: tuple[BlockMemory, ...]
    early: float
    held: float
    copies: float

    @property
    def fsdp(self) -> bool:
        """Whether blocks are gathered and their gradients reduced one by one."""
        return self.layout.engine in ("fsdp1", "fsdp2")


def worst_point(run: Pass) -> Point:
    """The highest moment inside the blocks' backward.

    Between two neighbouring blocks of one shape everything changes by the same amount, so the
    candidates are the ends of each run of equal blocks and their neighbours.
    """
    positions = _positions(run)
    before = list(accumulate((block.kept for block in run.blocks), initial=0.0))
    points = (
        point
        for position in positions
        for point in (
            _fsdp_points(run, position, before[position])
            if run.fsdp
            else _plain_points(run, position, before[position])
        )
    )
    return max(_embedding_point(run), *points, key=lambda point: point.total)


def _embedding_point(run: Pass) -> Point:
    """The embedding's backward, after all blocks: its gradient, and as a tied head's also the sum.

    Under FSDP the root is still gathered and the first block's reduce-scatter input held.
    """
    compute, precision, stage = gathered_element(run.precision), run.precision, run.stage
    if not run.fsdp:
        weights = sum(stage.units) + stage.root
        gradients = run.held or precision.gradient_bytes * weights
        # Over earlier gradients the three are temporaries; else the sum becomes the gradient.
        extra = precision.compute_bytes * (3 if run.held else 2) * stage.tied
        return Point(gradients, 0.0, run.early, extra)
    made = compute * (stage.root + 2 * stage.tied)
    reduced = run.held or precision.gradient_bytes * sum(run.units.shares)
    before = precision.reduce_bytes * run.units.blocks[0]
    gathered = compute * run.units.root + run.copies
    return Point(reduced, gathered, run.early, made + before)


def _positions(run: Pass) -> list[int]:
    count = len(run.blocks)
    found = {0, 1, count - 2, count - 1}
    start = 0
    for _, length in run.stage.blocks:
        found |= {start, start + 1, start + length - 2, start + length - 1}
        start += length
    return sorted(position for position in found if 0 <= position < count)


def _worst_moment(run: Pass, position: int, element: int) -> tuple[float, float]:
    """(bytes over what the block saved, elements of its gradients) at its worst moment."""
    feed_forward = run.units.feed_forward[position]
    other = run.stage.units[position] - feed_forward
    pairs = [
        (moment.extra, moment.feed_forward * feed_forward + moment.attention * other)
        for moment in run.blocks[position].moments
    ]
    return max(pairs, key=lambda pair: pair[0] + element * pair[1])


def _fsdp_points(run: Pass, position: int, before: float) -> Iterator[Point]:
    """A block's moments, then its reduction, under FSDP.

    Gathered: the root, the block, and the one before it (prefetched; without resharding all that
    are left). The previous block's reduce-scatter input lives until this block's is made; the
    head's gradient, unsharded, until the root is reduced
    (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
    """
    units, block = run.units, run.blocks[position]
    compute, reduce = gathered_element(run.precision), run.precision.reduce_bytes
    left = sum(units.blocks[:position])
    ahead = units.blocks[position - 1] if position else 0
    ahead = ahead if run.layout.zero_stage == 3 else left
    behind = units.blocks[position + 1] if position + 1 < len(units.blocks) else 0
    reduced = run.held
    if not run.held:
        reduced = run.precision.gradient_bytes * sum(units.shares[position + 1 :])
    whole = run.early + before + block.kept + block.recomputed
    extra, new = _worst_moment(run, position, compute)
    made = compute * (run.stage.late + new)
    gathered = compute * (units.root + units.blocks[position] + ahead) + run.copies
    yield Point(reduced, gathered, whole + extra, made + reduce * behind)
    if run.layout.zero_stage == 3:
        # The block's all-gather buffer is copied out before it is freed.
        twice = compute * (units.root + 2 * units.blocks[position]) + run.copies
        entering = run.early + before + block.kept + block.hidden_bytes
        yield Point(reduced, twice, entering, compute * run.stage.late + reduce * behind)
    made = compute * (run.stage.late + run.stage.units[position])
    yield Point(
        reduced,
        compute * (units.root + ahead) + run.copies,
        run.early + before + block.hidden_bytes,
        made + reduce * units.blocks[position],
    )


def _plain_points(run: Pass, position: int, before: float) -> Iterator[Point]:
    """A block's moments where weights are whole: gradients pile up from the head down."""
    block, precision = run.blocks[position], run.precision
    done = run.stage.late + sum(run.stage.units[position + 1 :])
    weights = sum(run.stage.units) + run.stage.root
    left = run.copies * min(1.0, sum(run.stage.units[: position + 1]) / max(weights, 1))
    whole = run.early + before + block.kept + block.recomputed
    extra, new = _worst_moment(run, position, 0 if run.held else precision.gradient_bytes)
    gradients = run.held or precision.gradient_bytes * (done + new)
    waiting = precision.compute_bytes * run.stage.tied if run.held else 0.0
    yield Point(gradients, left, whole + extra, waiting)
