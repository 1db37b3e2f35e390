"""Chart (h): memory of one GPU now and after each change that frees much, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.charts import bars, stacked
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.sensitivity import Change
from shardwise.core.units import format_gib

COLUMNS = {**bars.COLUMNS, "bar": "Change"}
TABLE = bars.TABLE
NOW = "as set"


def rows(report: MemoryReport, changes: Sequence[Change]) -> dict[str, list[dict[str, object]]]:
    """The bars of chart (b), one for the scenario as it is and one for it with each change alone.

    They are numbered, as in the table of changes, since long names are cut beside a bar.
    """
    after = [
        (f"{number} {change.label}", estimate(change.scenario))
        for number, change in enumerate(changes, 1)
    ]
    return bars.rows([(NOW, report), *after])


def sentence(report: MemoryReport, changes: Sequence[Change]) -> str:
    """The first change, and the first one after which it fits."""
    now = f"As set, the card must have {format_gib(report.needed_bytes)} of "
    now += f"{format_gib(report.usable_bytes)} ({report.verdict})."
    if not changes:
        return f"{now} No single change that is known here frees memory."
    most = changes[0]
    said = f"{now} {_capital(most.label)} frees most: {format_gib(most.freed_bytes)} allocated."
    if report.verdict == "fits":
        return said
    fitting = [change.label for change in changes if change.verdict == "fits"]
    if fitting:
        return f"{said} Enough by itself: {'; '.join(fitting)}."
    return f"{said} None of them is enough by itself: apply one, and look again."


def _capital(label: str) -> str:
    return label[:1].upper() + label[1:]


def spec() -> Any:
    """Stacked bars with letters, totals and bands, and the capacity as a dashed line."""
    return stacked.spec("change")
