"""Chart (b): memory of one GPU by part, one bar a strategy, against the card's capacity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shardwise.charts.theme import EDGE, PAPER, PART_COLORS, PART_LABELS, PART_LETTERS, label_color
from shardwise.core.memory import MemoryReport
from shardwise.core.units import GIB, format_gib

COLUMNS = {
    "bar": "Strategy",
    "gib": "Memory (GiB)",
    "verdict": "Verdict",
    **{part: f"{label} (GiB)" for part, label in PART_LABELS.items()},
}
TABLE = "totals"
"""The dataset that the table and the CSV show: a strategy a row, its parts in columns."""

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
    for name, report in bars:
        limit = report.usable_bytes / GIB
        parts = {**report.parts, "reserve": report.device_bytes - report.peak_bytes}
        segments += _segments(name, parts, limit)
        totals.append(_total(name, report, limit) | _in_gib(parts))
    edge = round(SHOWN_CARDS * limit, 3)
    limits: list[dict[str, object]] = [
        {"gib": round(limit, 3), "edge": edge, "label": f"card: {limit:.1f} GiB"}
    ]
    return {"rows": segments, "totals": totals, "limits": limits}


def _in_gib(parts: Mapping[str, float]) -> dict[str, object]:
    return {part: round(size / GIB, 3) for part, size in parts.items()}


def _segments(name: str, parts: Mapping[str, float], limit: float) -> list[dict[str, object]]:
    shown, start = SHOWN_CARDS * limit, 0.0
    segments: list[dict[str, object]] = []
    for part, size_bytes in parts.items():
        end = start + size_bytes / GIB
        left, right = min(start, shown), min(end, shown)
        segments.append(
            {
                "bar": name,
                "part": PART_LABELS[part],
                "gib": round(size_bytes / GIB, 3),
                "start": round(left, 3),
                "end": round(right, 3),
                "middle": round((left + right) / 2, 3),
                "letter": PART_LETTERS[part] if right - left > _LETTER_SHARE * limit else "",
            }
        )
        start = end
    return segments


def _total(name: str, report: MemoryReport, limit: float) -> dict[str, object]:
    total, shown = report.device_bytes / GIB, SHOWN_CARDS * limit
    mark = {"fits": "fits", "tight": "tight", "uncertain": "uncertain"}.get(report.verdict, "no")
    return {
        "bar": name,
        "gib": round(total, 2),
        "verdict": report.verdict,
        "end": round(min(total, shown), 3),
        "low": round(min(report.low_bytes / GIB, shown), 3),
        "high": round(min(report.high_bytes / GIB, shown), 3),
        "label": f"{total:,.0f} GiB, {mark}" + (" »" if total > shown else ""),
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


def _ink() -> Any:
    """Black or white letters, by the color under them."""
    import altair as alt

    colors = [label_color(PART_COLORS[part]) for part in PART_COLORS]
    scale = alt.Scale(domain=[PART_LABELS[part] for part in PART_COLORS], range=colors)
    return alt.Fill("part:N", scale=scale, legend=None)


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

    y = alt.Y("bar:N", sort=None, title=None, axis=alt.Axis(labelLimit=120))
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
        .encode(x="middle:Q", y=y, text="letter:N", fill=_ink())
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
