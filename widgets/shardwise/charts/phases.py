"""Chart (f): memory of the fullest GPU from load to the next step, phase by phase."""

from __future__ import annotations

from typing import Any

from shardwise.charts import stacked
from shardwise.core.memory import MemoryReport
from shardwise.core.memory.reserve import DeviceBytes, device_bytes
from shardwise.core.memory.timeline import PhaseRow
from shardwise.core.units import GIB, format_gib

COLUMNS = {
    "bar": "Phase",
    "allocated": "Allocated (GiB)",
    "first": "In the first step (GiB)",
    "gib": "On the device (GiB)",
    **stacked.BAND_COLUMNS,
    **stacked.PART_COLUMNS,
}
TABLE = "totals"
"""The dataset that the table and the CSV show: a phase a row, its parts in columns."""


def rows(report: MemoryReport) -> dict[str, list[dict[str, object]]]:
    """Datasets `rows`, `totals` and `limits`: a bar a phase of the worst stage, in order of time.

    Each bar is what the card would show if the run went no further than that phase: the reserve
    grows with what is allocated. The allocator gives nothing back between phases, so nvidia-smi
    shows the longest bar until the process ends.
    """
    binding = report.binding_phase
    named = [row for row in report.timeline if row.name.startswith(binding)]
    peak = max(named[::-1], key=lambda row: row.total_bytes)
    bars = [_bar(report, row, row is peak) for row in report.timeline]
    made = stacked.rows(bars, report.usable_bytes)
    for total, row in zip(made["totals"], report.timeline, strict=True):
        total["allocated"] = round(row.total_bytes / GIB, 3)
        first = row.first_step_bytes
        total["first"] = None if first is None else round(first / GIB, 3)
    return made


def _bar(report: MemoryReport, row: PhaseRow, peak: bool) -> stacked.Bar:
    figures = figures_of(report, row.total_bytes)
    return stacked.Bar(
        row.name,
        row.parts,
        figures.device,
        figures.low,
        figures.high,
        ", peak" if peak else "",
        peak,
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
        f"{format_gib(report.usable_bytes)}: {report.verdict}. {first_step(report)}"
    )


def first_step(report: MemoryReport) -> str:
    """What is there before the first step, what that step lacks, and what the numbers mean."""
    loaded, timeline = report.timeline[0], report.timeline
    said = f"After load and wrap {format_gib(loaded.total_bytes)} are there"
    lacking = max(row.total_bytes - (row.first_step_bytes or row.total_bytes) for row in timeline)
    if lacking:
        peak = max(row.first_step_bytes or 0.0 for row in timeline)
        said += (
            "; the optimizer makes its state at the end of the first step, which until then takes "
            f"{format_gib(lacking)} less than the bars (its peak: {format_gib(peak)})"
        )
    if report.scenario.micro_batches > 1:
        said += (
            ". 1 is the first micro-batch, 2+ any later one, which finds the gradients of the "
            "earlier ones"
        )
    return said + ". Forward is shown at its end."


def spec() -> Any:
    """Stacked bars, the phase that decides with a thick edge, and the capacity as a dashed line."""
    return stacked.spec("phase", outlined=True)
