"""One published measurement beside the estimate of the scenario that describes it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.pools import stranded_bytes
from shardwise.core.memory.replayed import replayed
from shardwise.core.memory.reserve import device_bytes, with_cached
from shardwise.core.scenario import Scenario

MEASURED = Path(__file__).parents[3] / "data" / "measured"
METRICS = ("steady_allocated", "peak_allocated", "peak_reserved", "device", "oom")


@dataclass(frozen=True)
class Published:
    """A measurement that somebody published, and the scenario that describes its run.

    `metric` is one of `METRICS`; `measured_bytes` is nan for `oom`, where the run died.
    `stage` is the pipeline stage whose rank was read; None means the one that needs most.
    `outside_bytes` come from a setting of the run that no scenario has; its module says which.
    """

    id: str
    source: str
    what: str
    metric: str
    measured_bytes: float
    scenario: Scenario
    stage: int | None = None
    outside_bytes: float = 0.0

    def __post_init__(self) -> None:
        """A metric that nobody reads would be left out in silence."""
        assert self.metric in METRICS, self.metric

    @cached_property
    def report(self) -> MemoryReport:
        """The estimate for the run."""
        return estimate(self.scenario)

    @property
    def estimated_bytes(self) -> float:
        """The estimate of what the metric measures; what the card must have for a run that died."""
        report = self.report
        stage = report.worst if self.stage is None else report.stages[self.stage]
        steady = report.steady_bytes if self.stage is None else stage.steady_bytes
        needed = device_bytes(stage.peak_bytes, self.scenario.layout.process_groups)
        memory = replayed(self.scenario, stage.index)
        usable = self.scenario.cluster.gpu.usable_bytes
        frame = frame_of(self.scenario, stage.index)
        idle = stranded_bytes(self.scenario, frame, stage.phases, stage.binding_phase)
        figures = with_cached(needed, idle, usable)
        if memory is not None:
            extra = memory.peak_reserved - figures.reserved
            figures = figures._replace(
                reserved=figures.reserved + extra, device=figures.device + extra
            )
        return (
            self.outside_bytes
            + {
                "steady_allocated": steady,
                "peak_allocated": stage.peak_bytes,
                "peak_reserved": figures.reserved,
                "device": figures.device,
                "oom": needed.device,
            }[self.metric]
        )

    @property
    def verdict(self) -> str:
        """fits, tight, uncertain or does not fit."""
        return self.report.verdict

    @property
    def error(self) -> float:
        """Estimate over measurement, less one; nan for a run that died."""
        return self.estimated_bytes / self.measured_bytes - 1


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of data/measured/<name>.csv as they stand in the file."""
    with (MEASURED / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def reason_in_file(row: Mapping[str, str]) -> str:
    """Why the file itself says that a row cannot be compared; empty where it can."""
    return row["left_out"]


def compared_rows(
    name: str, reason: Callable[[Mapping[str, str]], str] = reason_in_file
) -> list[dict[str, str]]:
    """The rows of a file that a scenario describes."""
    return [row for row in rows_of(name) if not reason(row)]


def left_out_rows(
    name: str, reason: Callable[[Mapping[str, str]], str] = reason_in_file
) -> dict[str, str]:
    """The others by their id, each with the reason."""
    return {row["id"]: why for row in rows_of(name) if (why := reason(row))}
