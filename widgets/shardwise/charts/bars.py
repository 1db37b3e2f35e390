"""Chart (b): memory of one GPU by part, one bar a strategy, against the card's capacity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardwise.charts.theme import EDGE, PAPER, PART_COLORS, PART_LABELS, PART_LETTERS, label_color
from shardwise.core.memory import MemoryReport
from shardwise.core.units import GIB, format_gib

COLUMNS = {
    "bar": "Strategy",
    "part": "Part",
    "gib": "Memory (GiB)",
    "total": "Total (GiB)",
    "verdict": "Verdict",
}
SHOWN_CARDS = 2.0
"""The axis ends at this many cards' capacity: longer bars are cut and say how long they are."""

_LETTER_SHARE = 0.05


def rows(bars: Iterable[tuple[str, MemoryReport]]) -> dict[str, list[dict[str, object]]]:
    """Datasets `rows` (a segment each), `totals` (a bar each) and `limits` (the card).

    The reserve (context, communicators, fragmentation) is a part like any other, so that a bar's
    length is the device figure, which is what the capacity line is to be compared with.
    """
    segments: list[dict[str, object]] = []
    totals: list[dict[str, object]] = []
    limit = 0.0
    for order, (name, report) in enumerate(bars):
        limit = report.usable_bytes / GIB
        segments += _segments(name, order, report, limit)
        totals.append(_total(name, order, report, limit))
    limits: list[dict[str, object]] = [
        {"gib": round(limit, 2), "edge": SHOWN_CARDS * limit, "label": f"card: {limit:.1f} GiB"}
    ]
    return {"rows": segments, "totals": totals, "limits": limits}


def _segments(name: str, order: int, report: MemoryReport, limit: float) -> list[dict[str, object]]:
    shown, start = SHOWN_CARDS * limit, 0.0
    segments: list[dict[str, object]] = []
    parts = {**report.parts, "reserve": report.device_bytes - report.peak_bytes}
    for part, size_bytes in parts.items():
        size = size_bytes / GIB
        end = start + size
        left, right = min(start, shown), min(end, shown)
        segments.append(
            {
                "bar": name,
                "order": order,
                "part": PART_LABELS[part],
                "gib": round(size, 3),
                "total": round(report.device_bytes / GIB, 2),
                "verdict": report.verdict,
                "start": left,
                "end": right,
                "middle": (left + right) / 2,
                "letter": PART_LETTERS[part] if right - left > _LETTER_SHARE * limit else "",
                "ink": label_color(PART_COLORS[part]),
            }
        )
        start = end
    return segments


def _total(name: str, order: int, report: MemoryReport, limit: float) -> dict[str, object]:
    total, shown = report.device_bytes / GIB, SHOWN_CARDS * limit
    mark = {"fits": "fits", "tight": "tight", "uncertain": "uncertain"}.get(report.verdict, "no")
    cut = total > shown
    return {
        "bar": name,
        "order": order,
        "end": min(total, shown),
        "low": min(report.low_bytes / GIB, shown),
        "high": min(report.high_bytes / GIB, shown),
        "label": f"{total:,.0f} GiB, {mark}" + (" »" if cut else ""),
        "align": "right" if min(total, shown) > 1.3 * limit else "left",
    }


def sentence(name: str, report: MemoryReport) -> str:
    """The chosen bar in words."""
    return (
        f"{name}: {format_gib(report.device_bytes)} of {format_gib(report.usable_bytes)} on the "
        f"fullest GPU, at {report.binding_phase} ({report.verdict}; band "
        f"{format_gib(report.low_bytes)} to {format_gib(report.high_bytes)})."
    )


def _part_color() -> Any:
    """Colors by part; the legend stands under the chart as text, where it can wrap."""
    import altair as alt

    colors = [PART_COLORS[part] for part in PART_COLORS]
    scale = alt.Scale(domain=[PART_LABELS[part] for part in PART_COLORS], range=colors)
    return alt.Color("part:N", scale=scale, legend=None)


def _label(totals: Any, y: Any, side: str) -> Any:
    """Totals beside short bars and inside long ones, with a halo so that no line crosses them."""
    import altair as alt

    field, shift = ("high:Q", 6) if side == "left" else ("end:Q", -6)
    look = {"align": side, "dx": shift, "fontSize": 11, "fontWeight": "bold"}
    here = totals.transform_filter(f"datum.align == '{side}'")
    halo = here.mark_text(**look, stroke=PAPER, strokeWidth=4).encode(x=field, y=y, text="label:N")
    return alt.layer(halo, here.mark_text(**look).encode(x=field, y=y, text="label:N"))


def spec() -> Any:
    """Stacked bars with letters, totals and bands, and the capacity as a dashed line."""
    import altair as alt

    y = alt.Y(
        "bar:N", sort=alt.EncodingSortField("order"), title=None, axis=alt.Axis(labelLimit=120)
    )
    x = alt.X("start:Q", title="GiB on one GPU", scale=alt.Scale(nice=False, zero=True))
    segments = (
        alt.Chart(alt.NamedData("rows"))
        .mark_bar(stroke=EDGE, strokeWidth=0.7)
        .encode(
            x=x,
            x2="end:Q",
            y=y,
            color=_part_color(),
            tooltip=[
                alt.Tooltip("bar:N", title="strategy"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("gib:Q", title="GiB"),
            ],
        )
    )
    letters = (
        alt.Chart(alt.NamedData("rows"))
        .mark_text(fontSize=11, fontWeight="bold")
        .encode(x="middle:Q", y=y, text="letter:N", color=alt.Color("ink:N", scale=None))
    )
    totals = alt.Chart(alt.NamedData("totals"))
    bands = totals.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q", y=y)
    limits = alt.Chart(alt.NamedData("limits"))
    line = limits.mark_rule(strokeDash=[6, 3], strokeWidth=2).encode(x="gib:Q")
    name = limits.mark_text(align="center", baseline="bottom", dy=-3, fontSize=11).encode(
        x="gib:Q", y=alt.value(0), text="label:N"
    )
    edge = limits.mark_point(opacity=0).encode(x="edge:Q")
    return alt.layer(
        segments,
        letters,
        bands,
        line,
        name,
        edge,
        _label(totals, y, "left"),
        _label(totals, y, "right"),
    ).properties(width=400, height=alt.Step(26))
