"""Stacked bars against the card's line: what the charts of strategies, phases and stages share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardwise.charts.theme import (
    EDGE,
    INK,
    PAPER,
    PART_COLORS,
    PART_LABELS,
    PART_LETTERS,
    label_color,
)
from shardwise.core.memory.reserve import FRAGMENTATION_HIGH
from shardwise.core.units import GIB

PART_COLUMNS = {part: f"{label} (GiB)" for part, label in PART_LABELS.items()}
BAND_COLUMNS = {"from": "Band from (GiB)", "to": "Band to (GiB)"}

CUT = " »"
SHOWN_CARDS = 2.0
"""The axis ends at this many cards' capacity: longer bars are cut and say how long they are."""

BAND = (
    "Band: the line across a bar's end, from no fragmentation to "
    f"{FRAGMENTATION_HIGH:.0%} of what is allocated; a bar fits when all of its band is left of "
    "the card's line."
)


@dataclass(frozen=True)
class Bar:
    """One bar: allocated bytes by part, what the card shows for them, and what is said beside it.

    `device_bytes` is the bar's length, `low_bytes` and `high_bytes` its band; the reserve (context,
    communicators, fragmentation) fills it up, so that it can be held against the capacity line.
    """

    name: str
    parts: Mapping[str, float]
    device_bytes: float
    low_bytes: float
    high_bytes: float
    said: str
    peak: bool = False

    @cached_property
    def stacked(self) -> Mapping[str, float]:
        """The parts, the reserve as the last."""
        return {**self.parts, "reserve": self.device_bytes - sum(self.parts.values())}


def rows(bars: Iterable[Bar], usable_bytes: float) -> dict[str, list[dict[str, object]]]:
    """Datasets `rows` (a segment each), `totals` (a bar each) and `limits` (the card)."""
    limit = usable_bytes / GIB
    segments: list[dict[str, object]] = []
    totals: list[dict[str, object]] = []
    for bar in bars:
        segments += _segments(bar, limit)
        totals.append(_total(bar, limit))
    edge = round(SHOWN_CARDS * limit, 3)
    limits: list[dict[str, object]] = [
        {"gib": round(limit, 3), "edge": edge, "label": f"card: {limit:.1f} GiB"}
    ]
    return {"rows": segments, "totals": totals, "limits": limits}


def _segments(bar: Bar, limit: float) -> list[dict[str, object]]:
    shown, start = SHOWN_CARDS * limit, 0.0
    covered = _label_length(bar) + 2 if _cut(bar, limit) else 0
    segments: list[dict[str, object]] = []
    for part, size_bytes in bar.stacked.items():
        end = start + size_bytes / GIB
        left, right = min(start, shown), min(end, shown)
        segments.append(
            {
                "bar": bar.name,
                "part": PART_LABELS[part],
                "gib": round(size_bytes / GIB, 3),
                "start": round(left, 3),
                "end": round(right, 3),
                "letter": PART_LETTERS[part],
                "edge": round(shown, 3),
                "covered": covered,
            }
        )
        start = end
    return segments


def _cut(bar: Bar, limit: float) -> bool:
    """Whether the bar is longer than the axis; its label then stands inside."""
    return bar.device_bytes / GIB > SHOWN_CARDS * limit


def _label_length(bar: Bar) -> int:
    """Characters of a cut bar's label."""
    return len(f"{label_of(bar.device_bytes / GIB)}{bar.said}{CUT}")


def _total(bar: Bar, limit: float) -> dict[str, object]:
    total, shown = bar.device_bytes / GIB, SHOWN_CARDS * limit
    low, high = bar.low_bytes / GIB, bar.high_bytes / GIB
    cut = CUT if _cut(bar, limit) else ""
    return {
        "bar": bar.name,
        "gib": round(total, 2),
        "end": round(min(total, shown), 3),
        "low": round(min(low, shown), 3),
        "high": round(min(high, shown), 3),
        "from": round(low, 2),
        "to": round(high, 2),
        "label": f"{label_of(total)}{bar.said}{cut}",
        "short": label_of(total) + cut,
        "share": round(min(high, shown) / shown, 4),
        "limit": round(limit, 3),
        "outline": 3 if bar.peak else 0,
        **{part: round(size / GIB, 3) for part, size in bar.stacked.items()},
    }


def label_of(gib: float) -> str:
    """A size as it stands beside a bar.

    >>> label_of(148.9), label_of(23.52), label_of(2.34)
    ('149 GiB', '23.5 GiB', '2.3 GiB')
    """
    return f"{gib:,.0f} GiB" if round(gib, 1) >= 100 else f"{gib:,.1f} GiB"


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


def labels(base: Any, y: Any) -> Any:
    """Totals beside bars, and inside those that leave no room, each with a halo.

    Rows have `share`, how much of the axis bar and band take; letters are 7 pixels wide at most.
    One that the card's line would cross stands right of the line. Where there is no room beside the
    bar, the `short` one stands there, and where that has none either, the label goes inside.
    """
    import altair as alt

    most, line = "7 * length(datum.label)", f"width / {SHOWN_CARDS:g}"
    end = "datum.share * width + 6 + 6 * length(datum.label)"  # 6 is what most letters take
    crossed = f"datum.share * width < {line} && {end} > {line}"
    wide = f"(({crossed}) ? {line} : datum.share * width)"
    inside = f"{wide} + 7 * length(datum.short) > width"
    beside = f"{wide} + {most} <= width"
    said = f"({beside}) || ({inside} && {most} <= {wide}) ? datum.label : datum.short"
    place = f"({crossed}) ? datum.limit : datum.high"
    look = {"fontSize": 11, "fontWeight": "bold"}
    layers = []
    for side, shift, field, shown, around in (
        ("left", 6, "place:Q", f"!({inside})", 4),
        ("right", -6, "end:Q", inside, 8),  # more, as it covers the letters of segments
    ):
        here = base.transform_calculate(said=said, place=place).transform_filter(shown)
        for halo in ({"stroke": PAPER, "strokeWidth": around, "strokeJoin": "round"}, {}):
            mark = here.mark_text(align=side, dx=shift, **look, **halo)
            layers.append(mark.encode(x=field, y=y, text="said:N"))
    return alt.layer(*layers)


def _stack(y: Any, kind: str) -> list[Any]:
    """The segments, and their letters, in the middle of what a label inside the bar leaves free."""
    import altair as alt

    base = alt.Chart(alt.NamedData("rows"))
    x = alt.X("start:Q", title="GiB on one GPU", scale=alt.Scale(nice=False, zero=True))
    segments = base.mark_bar(stroke=EDGE, strokeWidth=0.7).encode(
        x=x,
        x2="end:Q",
        y=y,
        color=_part_color(),
        tooltip=[
            alt.Tooltip("bar:N", title=kind),
            alt.Tooltip("part:N", title="part"),
            alt.Tooltip("gib:Q", title="GiB"),
        ],
    )
    free = "min(datum.end, datum.edge * (1 - 6.5 * datum.covered / width))"
    here = base.transform_calculate(place=f"(datum.start + {free}) / 2")
    pixels = f"({free} - datum.start) / datum.edge * width"
    wide = alt.condition(f"{pixels} > 11", alt.Text("letter:N"), alt.value(""))
    letters = here.mark_text(fontSize=11, fontWeight="bold").encode(
        x="place:Q", y=y, text=wide, fill=_ink()
    )
    return [segments, letters]


def _outline(y: Any) -> Any:
    """A thick edge around the bar that decides."""
    import altair as alt

    return (
        alt.Chart(alt.NamedData("totals"))
        .mark_bar(filled=False, stroke=INK, tooltip=None)
        .encode(
            x=alt.X("end:Q"),
            x2=alt.datum(0),
            y=y,
            strokeWidth=alt.StrokeWidth("outline:Q", scale=None),
        )
    )


def spec(kind: str, *, outlined: bool = False) -> Any:
    """Stacked bars with letters, totals and bands, and the capacity as a dashed line.

    `kind` is what a bar stands for, in tooltips; `outlined` draws a thick edge where `peak` is set.
    """
    import altair as alt

    y = alt.Y("bar:N", sort=None, title=None, axis=alt.Axis(labelLimit=120))
    totals = alt.Chart(alt.NamedData("totals"))
    limits = alt.Chart(alt.NamedData("limits"))
    line = limits.mark_rule(strokeDash=[6, 3], strokeWidth=2).encode(x="gib:Q")
    name = limits.mark_text(align="center", baseline="bottom", dy=-3, fontSize=11).encode(
        x="gib:Q", y=alt.value(0), text="label:N"
    )
    edge = limits.mark_point(opacity=0).encode(x="edge:Q")
    return alt.layer(
        *_stack(y, kind),
        *([_outline(y)] if outlined else []),
        totals.mark_rule(strokeWidth=2, yOffset=7).encode(x="low:Q", x2="high:Q", y=y),
        line,
        name,
        edge,
        labels(totals, y),
    ).properties(width=400, height=alt.Step(26))
