"""Replays traced steps through torch's caching allocator: what it reserves for each case.

    python tests/accuracy/trace_reserved.py              # cases that aren't in the file yet
    python tests/accuracy/trace_reserved.py --only qwen  # cases whose name has `qwen`

Writes `data/traces/reserved.csv`, after every case: the allocated and the reserved peak on a device
without end, and the smallest device (in half percents of the allocated peak) on which the same
steps run when the allocator gives cached segments back before it fails.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from trace_cases import cases, config_of

from shardwise.core.memory.allocator import held_for
from shardwise.lab.tracing.events import Event, traced_events

TARGET = Path(__file__).parents[2] / "data" / "traces" / "reserved.csv"
FIELDS = ("case", "peak_bytes", "reserved_bytes", "needed_bytes")
STEPS = 200
"""Steps of half a percent that are tried: up to twice the allocated peak."""


def runs_on(events: Sequence[Event], capacity: int) -> bool:
    """Whether the steps run on a device of this size."""
    try:
        held_for(events, capacity)
    except MemoryError:
        return False
    return True


def needed_bytes(events: Sequence[Event], peak: int, reserved: int) -> int:
    """The smallest device found by halving; where none up to twice the peak runs, `reserved`."""
    low, high = -1, STEPS
    if not runs_on(events, peak * (200 + STEPS) // 200):
        return reserved
    while high - low > 1:
        middle = (low + high) // 2
        fits = runs_on(events, peak * (200 + middle) // 200)
        low, high = (low, middle) if fits else (middle, high)
    return min(reserved, peak * (200 + high) // 200)


def row_of(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """One case."""
    _, events = traced_events(config_of(case["model"], case["layers"]), **case["arguments"])
    memory = held_for(events)
    needed = needed_bytes(events, memory.peak_allocated, memory.peak_reserved)
    return dict(
        zip(FIELDS, (name, memory.peak_allocated, memory.peak_reserved, needed), strict=True)
    )


def main() -> None:
    """Trace, replay, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    rows: list[dict[str, Any]] = []
    if TARGET.exists():
        with TARGET.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    done = {row["case"] for row in rows}
    with (TARGET.parent / "cases.csv").open(encoding="utf-8", newline="") as file:
        traced = {row["case"] for row in csv.DictReader(file)}  # torch refuses some draws
    wanted = cases()
    names = [name for name in wanted if only in name and name in traced - done]
    Random(0).shuffle(names)  # an interrupted run is still a fair sample
    for name in names:
        rows.append(row_of(name, wanted[name]))
        print(rows[-1], flush=True)
        with TARGET.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
