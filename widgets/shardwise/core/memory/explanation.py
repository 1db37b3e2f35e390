"""One number opened up: formula, values and source, and the words that all of them share."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.memory.report import PARTS, MemoryReport
from shardwise.core.memory.stages import Stage, stages_of
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib


@dataclass(frozen=True)
class Explanation:
    """One part's number: `result_bytes` at the peak; `values` are (what, value with its unit)."""

    part: str
    formula: str
    values: tuple[tuple[str, str], ...]
    result_bytes: float
    source: str

    def __str__(self) -> str:
        """The formula, one line a value, the result and the source."""
        lines = [f"{PARTS[self.part]} = {self.formula}"]
        lines += [f"  {name}: {value}" for name, value in self.values]
        lines += [f"  = {format_gib(self.result_bytes)}", f"  source: {self.source}"]
        return "\n".join(lines)


Opened = tuple[str, tuple[tuple[str, str], ...], str]
"""Formula, (what, value with its unit) pairs, source."""


def plural(count: int | float, noun: str) -> str:
    """A count with its noun: 1 rank, 8 ranks."""
    return f"{count:,g} {noun}" + ("" if count == 1 else "s")


def sharing(scenario: Scenario, from_stage: int) -> tuple[str, str]:
    """Over how many ranks something is cut that ZeRO shards from `from_stage` on."""
    layout = scenario.layout
    ranks = scenario.shard if layout.zero_stage >= from_stage else 1
    why = f"{layout.engine}, ZeRO stage {layout.zero_stage}, tensor {layout.tensor_parallel}"
    return ("sharded over", f"{plural(ranks, 'rank')} ({why})")


def worst_stage(report: MemoryReport) -> Stage:
    """The stage whose peak decides."""
    scenario = report.scenario
    stages = stages_of(scenario.model, scenario.layout, scenario.training.trainable)
    return stages[report.worst.index]
