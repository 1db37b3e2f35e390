"""Holds each phase of the memory model against the traced steps, micro-batch by micro-batch.

    python tests/accuracy/compare_phases.py              # the errors of each phase, its worst cases
    python tests/accuracy/compare_phases.py --strange    # those of the strange set only

What a trace's window is held against: `init`, after load and wrap; `loss` (or forward, where no
loss function is announced), the end of forward with the loss made; `backward`, the worst of the
loss's gradient, the blocks' backward and the reduction that ends it; `optimizer` and `steady`. A
later micro-batch's are `forward 2`, `backward 2` and so on. The batch itself and the model's small
buffers are in no estimate and are left out (a causal mask is in both); so are AdamW's step counters
where CUDA keeps them on the CPU (all but fused: torch/optim/adam.py, `_init_group`), which a trace
on fake CPU tensors counts.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from compare_traces import inexpressible, load_cases, quantile, scenario_of, uncounted

from shardwise.core.memory import estimate
from shardwise.core.memory.allocator import ROUNDING
from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.report import MemoryReport

BEFORE = "after load and wrap"
ENDS = ("loss", "backward", "gradients complete")
Errors = dict[str, list[tuple[float, str]]]


def step_counters(case: Mapping[str, Any], report: MemoryReport) -> int:
    """Bytes of step counters that a trace has on its device and a CUDA run on the CPU."""
    if case["optimizer"] != "adamw" or case["optimizer_implementation"] == "fused":
        return 0
    return ROUNDING * sum(t.count for t in frame_of(report.scenario, 0).stage.tensors)


def traced(case: Mapping[str, Any], window: str, others: float, counters: int) -> float:
    """The highest total of a window, without batch, uncounted buffers and counters."""
    total: float = sum(case["phases"][window].values()) - others
    return total - (0 if window == "init" else counters)


def pairs(case: Mapping[str, Any], report: MemoryReport) -> Iterator[tuple[str, float, float]]:
    """(phase, estimated, traced) of one case."""
    rows = {row.name: row.total_bytes for row in report.timeline}
    left_out = uncounted(case, report), step_counters(case, report)
    yield BEFORE, rows[BEFORE], traced(case, "init", *left_out)
    for window, row in (("optimizer", "optimizer step"), ("steady", "between steps")):
        yield row, rows[row], traced(case, window, *left_out)
    several = case["micro_batches"] > 1
    for number, suffix in ((1, ""), (2, " 2")):
        if "backward" + suffix not in case["phases"]:
            continue
        own = {1: " 1", 2: " 2+"}[number] if several else ""
        windows = [name + suffix for name in ("forward", "loss") if name + suffix in case["phases"]]
        made = max(traced(case, window, *left_out) for window in windows)
        yield f"forward {number}", rows["forward" + own], made
        ends = [rows.get(name + own, 0.0) for name in ENDS]
        if not several or number == 2:
            ends.append(rows["gradients complete"])
        yield f"backward {number}", max(ends), traced(case, "backward" + suffix, *left_out)


def compare(strange: bool = False) -> Errors:
    """Relative errors (estimate / trace - 1) by phase, with the case; `strange`: of that set."""
    found: Errors = defaultdict(list)
    for case in load_cases():
        if (strange and not case["set"].startswith("strange")) or inexpressible(case):
            continue
        for phase, estimated, measured in pairs(case, estimate(scenario_of(case))):
            found[phase].append((estimated / measured - 1, case["case"]))
    return found


def report_lines(shown: int, strange: bool = False) -> list[str]:
    """The errors of each phase, and its worst cases."""
    lines = []
    for phase, errors in compare(strange).items():
        sizes = [abs(error) for error, _ in errors]
        lines.append(
            f"{phase:20} {len(errors):4} cases  median {median(sizes):8.4%}  "
            f"95 % {quantile(sizes, 0.95):7.3%}  worst {max(sizes):7.3%}"
        )
        worst = sorted(errors, key=lambda each: -abs(each[0]))[:shown]
        lines += [f"    {error:+8.3%}  {case}" for error, case in worst]
    return lines


if __name__ == "__main__":
    print("\n".join(report_lines(3, "--strange" in sys.argv)))
