"""Where in a stage's blocks memory can peak, and what lies before each such block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shardwise.core.hashed import hashed_once
from shardwise.core.structure import BlockShape


@dataclass(frozen=True)
class Step:
    """A block at which backward may peak: its position, its kind, and the blocks before it by kind.

    `kind` is an index of `Walk.kinds`.
    """

    position: int
    kind: int
    before: tuple[int, ...]


@hashed_once
@dataclass(frozen=True)
class Walk:
    """A stage's blocks by kind, (shape, checkpointing) each, with the steps worth looking at."""

    kinds: tuple[tuple[BlockShape, str], ...]
    counts: tuple[int, ...]
    steps: tuple[Step, ...]


@lru_cache(maxsize=1024)
def walk_of(blocks: tuple[tuple[BlockShape, int], ...], checkpointing: str, every: int = 0) -> Walk:
    """The walk over runs of blocks.

    With checkpointing of every k-th block, blocks 0, k, 2k ... are recomputed.

    >>> walk = walk_of(((BlockShape(8), 32),), "every", 4)
    >>> walk.counts, walk.steps[-1]
    ((8, 24), Step(position=31, kind=1, before=(8, 23)))
    """
    shapes = [shape for shape, count in blocks for _ in range(count)]
    listed = [(shape, kind_at(checkpointing, every, i)) for i, shape in enumerate(shapes)]
    wanted = _wanted(listed)
    kinds: dict[tuple[BlockShape, str], int] = {}
    seen: list[int] = []
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for position, kind in enumerate(listed):
        index = kinds.setdefault(kind, len(kinds))
        if index == len(seen):
            seen.append(0)
        if position in wanted:
            found.append((position, index, tuple(seen)))
        seen[index] += 1
    padded = (
        Step(position, index, before + (0,) * (len(seen) - len(before)))
        for position, index, before in found
    )
    return Walk(tuple(kinds), tuple(seen), tuple(padded))


def kind_at(checkpointing: str, every: int, position: int) -> str:
    """How one block is checkpointed."""
    if checkpointing != "every":
        return checkpointing
    return "none" if position % every else "full"


def _wanted(listed: list[tuple[BlockShape, str]]) -> set[int]:
    """Positions at which a stage's backward can peak.

    From one block to the next of a repeating pattern (one kind, every k-th recomputed, local and
    global attention in turn) everything changes by the same amount, so the highest of them lies in
    the first or the last period. Without a pattern it lies at the ends of runs of one kind.
    """
    total = len(listed)
    period = next((p for p in range(1, total // 2) if listed[p:] == listed[:-p]), 0)
    if period:
        return {*range(period + 1), *range(total - period - 1, total)}
    ends = {0, total - 1} | {i for i in range(1, total) if listed[i] != listed[i - 1]}
    near = {end + step for end in ends for step in (-2, -1, 0, 1)}
    return {position for position in near if 0 <= position < total}
