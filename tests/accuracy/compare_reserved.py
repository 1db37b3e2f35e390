"""Holds the reserve against traced steps that torch's caching allocator replayed.

    python tests/accuracy/compare_reserved.py            # by engine and checkpointing
    python tests/accuracy/compare_reserved.py --all      # every case too

Cases are those of `data/traces/reserved.csv` (`trace_reserved.py`). Two questions: how far is the
reserved estimate (the allocated peak, idle pools and 3 %) from what the allocator reserves where
there is no end; and how much over its allocated peak must a device have for the steps to run.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from compare_traces import CASES, inexpressible, load_cases, quantile, scenario_of

from shardwise.core.memory import estimate
from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.pools import stranded_bytes
from shardwise.core.memory.reserve import FRAGMENTATION, FRAGMENTATION_HIGH

RESERVED = CASES.parent / "reserved.csv"


@dataclass(frozen=True)
class Held:
    """One case: reserved and needed bytes over the allocated peak, and the estimate's error.

    `allowed` is what the estimate says may be needed with the default allocator, over its peak.
    """

    case: str
    engine: str
    checkpointing: str
    reserved: float
    needed: float
    error: float
    allowed: float

    @property
    def runs(self) -> bool:
        """Whether a device with what `default_allocator_bytes` says has room for the steps."""
        return self.needed <= self.allowed


def held_of(row: dict[str, str], case: dict[str, Any]) -> Held:
    """One replayed case beside its estimate."""
    report = estimate(scenario_of(case))
    stage, kind = report.worst, case["activation_checkpointing"]
    frame = frame_of(report.scenario, stage.index)
    idle = stranded_bytes(report.scenario, frame, stage.phases, stage.binding_phase)
    peak, reserved = float(row["peak_bytes"]), float(row["reserved_bytes"])
    return Held(
        row["case"],
        case["engine"],
        kind if isinstance(kind, str) else "every k-th",
        reserved / peak - 1,
        float(row["needed_bytes"]) / peak - 1,
        (report.peak_bytes * (1 + FRAGMENTATION) + idle) / reserved - 1,
        max(FRAGMENTATION_HIGH, FRAGMENTATION + report.largest_bytes / report.peak_bytes),
    )


def compared() -> list[Held]:
    """Every replayed case that a scenario describes."""
    cases = {case["case"]: case for case in load_cases()}
    with RESERVED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        held_of(row, cases[row["case"]]) for row in rows if not inexpressible(cases[row["case"]])
    ]


def summary(held: Iterable[Held]) -> str:
    """Medians and 95 %, and how many need more than the band's end, or a largest tensor's block."""
    found = list(held)
    reserved, needed = [each.reserved for each in found], [each.needed for each in found]
    errors = [each.error for each in found]
    over = sum(value > FRAGMENTATION_HIGH for value in needed) / len(needed)
    return (
        f"{len(found):4} cases  reserved over allocated {median(reserved):5.1%}, "
        f"95 % {quantile(reserved, 0.95):6.1%}  estimate of it {median(errors):+6.1%}, "
        f"5 % {quantile(errors, 0.05):+6.1%}  needed {median(needed):5.1%}, "
        f"95 % {quantile(needed, 0.95):5.1%}, over {FRAGMENTATION_HIGH:.0%}: {over:4.0%}, "
        f"over one more block: {sum(not each.runs for each in found) / len(found):4.0%}"
    )


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    held = compared()
    print(f"{'all':24}{summary(held)}")
    keys: tuple[Callable[[Held], str], ...] = (lambda h: h.engine, lambda h: h.checkpointing)
    for key in keys:
        groups: dict[str, list[Held]] = defaultdict(list)
        for each in held:
            groups[key(each)].append(each)
        for name, group in sorted(groups.items()):
            print(f"{name:24}{summary(group)}")
    if parser.parse_args().all:
        for each in sorted(held, key=lambda h: -h.needed):
            print(
                f"{each.needed:6.1%} needed  {each.reserved:6.1%} reserved  "
                f"{each.error:+6.1%}  {each.case}"
            )


if __name__ == "__main__":
    main()
