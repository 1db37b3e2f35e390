"""Chart (b): memory of one GPU by part, one bar a strategy, against the card's capacity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardwise.charts import stacked
from shardwise.core.memory import MemoryReport
from shardwise.core.units import format_gib

COLUMNS = {
    "bar": "Strategy",
    "gib": "Memory (GiB)",
    "verdict": "Verdict",
    **stacked.BAND_COLUMNS,
    **stacked.PART_COLUMNS,
}
TABLE = "totals"
"""The dataset that the table and the CSV show: a strategy a row, its parts in columns."""


def rows(bars: Iterable[tuple[str, MemoryReport]]) -> dict[str, list[dict[str, object]]]:
    """Datasets `rows` (a segment each), `totals` (a bar each) and `limits` (the card)."""
    listed = tuple(bars)
    usable = max((report.usable_bytes for _, report in listed), default=0)
    made = stacked.rows([bar_of(name, report) for name, report in listed], usable)
    for total, (_, report) in zip(made["totals"], listed, strict=True):
        total["verdict"] = report.verdict
    return made


def bar_of(name: str, report: MemoryReport) -> stacked.Bar:
    """A report's peak as a bar, with its verdict."""
    mark = "no" if report.verdict == "does not fit" else report.verdict
    return stacked.Bar(
        name,
        report.parts,
        report.needed_bytes,
        report.low_bytes,
        report.needed_high_bytes,
        f", {mark}",
    )


def sentence(name: str, report: MemoryReport) -> str:
    """The chosen bar in words."""
    return (
        f"{name}: {format_gib(report.needed_bytes)} of {format_gib(report.usable_bytes)} on the "
        f"fullest GPU, at {report.binding_phase} ({report.verdict}; band "
        f"{format_gib(report.low_bytes)} to {format_gib(report.needed_high_bytes)})."
    )


def spec() -> Any:
    """Stacked bars with letters, totals and bands, and the capacity as a dashed line."""
    return stacked.spec("strategy")
