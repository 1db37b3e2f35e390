"""Play a pipeline's order of work out, without a pipeline: does it end, when, with what alive?

A forward takes one unit, a backward two. A forward needs the stage before to have done its own, a
backward the stage after; a stage does its work strictly in the given order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UNITS = {"F": 1, "B": 2}


@dataclass(frozen=True)
class Played:
    """How an order went: `stuck` names the work each waiting stage cannot do, empty if it ended."""

    units: int
    live: tuple[int, ...]
    stuck: tuple[str, ...]


def play(orders: Sequence[Sequence[str]]) -> Played:
    """Play one order a stage, such as `["F0", "F1", "B0", "B1"]`, first stage first.

    >>> play([["F0", "B0"], ["F0", "B0"]])
    Played(units=6, live=(1, 1), stuck=())
    >>> play([["F0", "B0"], ["B0", "F0"]]).stuck
    ('stage 0: B0', 'stage 1: B0')
    """
    done: dict[tuple[int, str], int] = {}
    at, clock = [0] * len(orders), [0] * len(orders)
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                work = order[at[stage]]
                needed = _needed(stage, work, len(orders))
                if any(each not in done for each in needed):
                    break
                start = max([clock[stage], *(done[each] for each in needed)])
                clock[stage] = done[stage, work] = start + UNITS[work[0]]
                at[stage] += 1
                moved = True
    waiting = [
        f"stage {stage}: {order[at[stage]]}"
        for stage, order in enumerate(orders)
        if at[stage] < len(order)
    ]
    return Played(max(clock, default=0), tuple(_live(order) for order in orders), tuple(waiting))


def _needed(stage: int, work: str, stages: int) -> list[tuple[int, str]]:
    """What must be done before this work of this stage."""
    if work[0] == "F":
        return [(stage - 1, work)] if stage else []
    later = [(stage + 1, work)] if stage + 1 < stages else []
    return [(stage, f"F{work[1:]}"), *later]


def _live(order: Sequence[str]) -> int:
    """The most forwards whose backward is still to come."""
    live = most = 0
    for work in order:
        live += 1 if work[0] == "F" else -1
        most = max(most, live)
    return most
