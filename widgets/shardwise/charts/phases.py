"""Chart (f): memory of the fullest GPU over the phases of one step, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.charts import stacked
from shardwise.core.memory import MemoryReport
from shardwise.core.memory.reserve import DeviceBytes, device_bytes
from shardwise.core.units import GIB, format_gib

COLUMNS = {
    "bar": "Phase",
    "allocated": "Allocated (GiB)",
    "gib": "On the device (GiB)",
    **stacked.BAND_COLUMNS,
    **stacked.PART_COLUMNS,
}
TABLE = "totals"
"""The dataset that the table and the CSV show: a phase a row, its parts in columns."""


def rows(report: MemoryReport) -> dict[str, list[dict[str, object]]]:
    """Datasets `rows`, `totals` and `limits`: a bar a phase of the worst stage, in order of time.

    Each bar is what the card would show if the step went no further than that phase: the reserve
    grows with what is allocated. The allocator gives nothing back between phases, so nvidia-smi
    shows the longest bar until the process ends.
    """
    bars = [_bar(report, phase, parts) for phase, parts in report.phases.items()]
    made = stacked.rows(bars, report.usable_bytes)
    for total, size in zip(made["totals"], report.worst.totals.values(), strict=True):
        total["allocated"] = round(size / GIB, 3)
    return made


def _bar(report: MemoryReport, phase: str, parts: Mapping[str, float]) -> stacked.Bar:
    figures = figures_of(report, sum(parts.values()))
    peak = phase == report.binding_phase
    return stacked.Bar(
        phase, parts, figures.device, figures.low, figures.high, ", peak" if peak else "", peak
    )


def figures_of(report: MemoryReport, allocated_bytes: float) -> DeviceBytes:
    """What the card must have for so many allocated bytes in this report's scenario."""
    return device_bytes(allocated_bytes, report.scenario.layout.process_groups)


def sentence(report: MemoryReport) -> str:
    """Which phase decides, by how much, and what fills it."""
    totals = sorted(report.worst.totals.values())
    largest = max(report.parts, key=lambda part: report.parts[part])
    where = ""
    if len(report.stages) > 1:
        where = f" (stage {report.worst.index}, the fullest of {len(report.stages)})"
    return (
        f"The peak is at {report.binding_phase}{where}: {format_gib(report.peak_bytes)} allocated, "
        f"mostly {largest} ({format_gib(report.parts[largest])}); the next phase has "
        f"{format_gib(totals[-2])}. Between steps {format_gib(report.steady_bytes)} stay. "
        f"With the reserve the card must have {format_gib(report.needed_bytes)} of "
        f"{format_gib(report.usable_bytes)}: {report.verdict}."
    )


def spec() -> Any:
    """Stacked bars, the phase that decides with a thick edge, and the capacity as a dashed line."""
    return stacked.spec("phase", outlined=True)
