"""Collectives that the ranks of a group did not call alike."""

from __future__ import annotations

from shardwise.lab.journal import SAME_SIZE, Entry
from shardwise.lab.program import Program
from shardwise.lab.result import Cause, RankResult, rank_names


def at_line(program: Program, line: int) -> str:
    """` at line 4 (`dist.barrier()`)`; nothing when no line is known."""
    if not line:
        return ""
    text = program.line(line)
    return f" at line {line}" + (f" (`{text[:80]}`)" if text else "")


def mismatch(program: Program, ranks: tuple[RankResult, ...]) -> Cause | None:
    """The first collective of a group that its ranks did not call alike."""
    calls: dict[tuple[str, int], dict[int, Entry]] = {}
    for rank in ranks:
        for entry in rank.journal:
            if not entry.point_to_point:
                calls.setdefault((entry.group, entry.number), {})[rank.rank] = entry
    for (_, number), by_rank in sorted(calls.items(), key=lambda item: item[0][1]):
        kinds: dict[tuple[object, ...], list[int]] = {}
        for rank, entry in by_rank.items():
            kinds.setdefault(_kind(entry), []).append(rank)
        if len(kinds) > 1:
            return _mismatch_cause(program, number, by_rank, list(kinds.values()))
    return None


def _kind(entry: Entry) -> tuple[object, ...]:
    if entry.operation in SAME_SIZE:
        return (entry.operation, entry.elements, entry.dtype)
    return (entry.operation,)


def _mismatch_cause(
    program: Program, number: int, by_rank: dict[int, Entry], kinds: list[list[int]]
) -> Cause:
    """Names the smallest camp first: most likely the one that strayed."""
    kinds.sort(key=lambda members: (len(members), members))
    said = [
        f"{rank_names(members)} called {by_rank[members[0]]}"
        f"{at_line(program, by_rank[members[0]].line)}"
        for members in kinds
    ]
    odd = by_rank[kinds[0][0]]
    return Cause(
        "mismatch", tuple(kinds[0]), odd.line, odd.operation,
        f"Mismatched collective number {number}: {'; '.join(said)}. Every rank of a group must "
        "call the same collectives in the same order with the same sizes.",
    )  # fmt: skip
