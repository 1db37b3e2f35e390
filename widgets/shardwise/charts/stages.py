"""Chart (g): memory of each pipeline stage's fullest GPU at its peak, part by part."""

from __future__ import annotations

from typing import Any

from shardwise.charts import stacked
from shardwise.charts.phases import figures_of
from shardwise.core.memory import MemoryReport
from shardwise.core.memory.report import StageReport
from shardwise.core.units import format_gib

COLUMNS = {
    "bar": "Stage",
    "layers": "Layers",
    "flight": "Micro-batches in flight",
    "phase": "Peak at",
    "gib": "On the device (GiB)",
    **stacked.BAND_COLUMNS,
    **stacked.PART_COLUMNS,
}
TABLE = "totals"
"""The dataset that the table and the CSV show: a stage a row, its parts in columns."""

MOST = 16
"""As many stages are drawn; more would not fit on a screen."""


def rows(report: MemoryReport) -> dict[str, list[dict[str, object]]]:
    """Datasets `rows`, `totals` and `limits`: a bar a stage, at the stage's own peak."""
    shown = drawn(report)
    made = stacked.rows([_bar(report, stage) for stage in shown], report.usable_bytes)
    for total, stage in zip(made["totals"], shown, strict=True):
        total["layers"] = stage.layers
        total["flight"] = round(stage.in_flight, 2)
        total["phase"] = stage.binding_phase
    return made


def drawn(report: MemoryReport) -> tuple[StageReport, ...]:
    """The stages that the chart shows: all, or the first ones, the fullest and the last."""
    if len(report.stages) <= MOST:
        return report.stages
    kept = {*range(MOST - 2), report.worst.index, len(report.stages) - 1}
    return tuple(stage for stage in report.stages if stage.index in kept)


def _bar(report: MemoryReport, stage: StageReport) -> stacked.Bar:
    figures = figures_of(report, stage.peak_bytes)
    worst = stage is report.worst and len(report.stages) > 1
    return stacked.Bar(
        f"stage {stage.index}",
        stage.phases[stage.binding_phase],
        figures.device,
        figures.low,
        figures.high,
        f", {stage.in_flight:.3g} in flight" if len(report.stages) > 1 else "",
        worst,
    )


def sentence(report: MemoryReport) -> str:
    """The fullest and the emptiest stage, and why they differ."""
    if len(report.stages) == 1:
        return "One stage: without pipeline parallelism every GPU runs all layers."
    worst, least = report.worst, min(report.stages, key=lambda stage: stage.peak_bytes)
    said = f"{_said(worst, 'fullest')} {_said(least, 'emptiest')}"
    if len(report.stages) > MOST:
        said += f" Drawn are {len(drawn(report))} of {len(report.stages)} stages: the first, "
        said += "the fullest and the last."
    return said


def _said(stage: StageReport, which: str) -> str:
    flight = "1 micro-batch" if stage.in_flight == 1 else f"{stage.in_flight:.3g} micro-batches"
    return (
        f"Stage {stage.index} is the {which}: {format_gib(stage.peak_bytes)} allocated at "
        f"{stage.binding_phase}, with {stage.layers} layers and {flight} in flight."
    )


def spec() -> Any:
    """Stacked bars, the fullest stage with a thick edge, and the capacity as a dashed line."""
    return stacked.spec("stage", outlined=True)
