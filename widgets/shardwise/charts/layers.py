"""Chart (e): which layer is largest: what one GPU must hold whole while it is gathered."""

from __future__ import annotations

from typing import Any

from shardwise.charts.theme import EDGE, MODULE_COLORS, PAPER
from shardwise.core.model import Model, Module
from shardwise.core.scenario import Scenario
from shardwise.core.units import GIB, format_count, format_gib

MOST = 8
COLUMNS = {
    "layer": "Layer",
    "kind": "Kind",
    "count": "How many",
    "parameters": "Parameters each",
    "gib": "Gathered, each (GiB)",
}


def distinct(model: Model) -> list[tuple[str, Module, int]]:
    """(name, module, how many alike), largest first: blocks of one size are one entry."""
    counted: dict[tuple[str, int], list[Module]] = {}
    for module in model.modules:
        if module.parameters:
            counted.setdefault((module.kind, module.parameters), []).append(module)
    listed = []
    for alike in counted.values():
        first, last = alike[0].name, alike[-1].name.rsplit(".", 1)[-1]
        name = first if len(alike) == 1 else f"{first} … {last}"
        listed.append((name, alike[0], len(alike)))
    return sorted(listed, key=lambda entry: -entry[1].parameters)


def rows(scenario: Scenario) -> list[dict[str, object]]:
    """The largest layers, at most eight, with what each takes in the compute type."""
    element = scenario.training.precision.compute_bytes
    listed: list[dict[str, object]] = []
    shown = distinct(scenario.model)[:MOST]
    for name, module, count in shown:
        size = module.parameters * element / GIB
        kind = module.kind if module.kind in MODULE_COLORS else "other"
        listed.append(
            {
                "layer": name,
                "kind": kind,
                "count": count,
                "parameters": module.parameters,
                "gib": round(size, 4),
                "share": module.parameters / shown[0][1].parameters,
                "label": format_gib(size * GIB) + (f" x {count}" if count > 1 else ""),
                "color": MODULE_COLORS[kind],
            }
        )
    return listed


def sentence(scenario: Scenario) -> str:
    """The largest layer against the card."""
    largest = scenario.model.largest_layer
    size = largest.parameters * scenario.training.precision.compute_bytes
    share = size / scenario.cluster.gpu.usable_bytes
    return (
        f"The largest layer is {largest.name or largest.kind} with "
        f"{format_count(largest.parameters)} parameters: {format_gib(size)} when gathered, "
        f"{share:.1%} of the card."
    )


def spec() -> Any:
    """Bars, largest on top, each with its size beside it or, without room, at the plot's edge.

    Rows have `share`, how much of the axis a bar takes; 6 pixels are what most letters take.
    """
    import altair as alt

    base = alt.Chart(alt.NamedData("rows"), width=400, height=alt.Step(24))
    y = alt.Y("layer:N", sort=None, title=None, axis=alt.Axis(labelLimit=150))
    bars = base.mark_bar(stroke=EDGE, strokeWidth=0.7).encode(
        x=alt.X(
            "gib:Q",
            title="GiB when gathered",
            scale=alt.Scale(zero=True, nice=False),
            axis=alt.Axis(labelBound=True),
        ),
        y=y,
        color=alt.Color("color:N", scale=None),
        tooltip=[
            alt.Tooltip("layer:N"),
            alt.Tooltip("parameters:Q", format=","),
            alt.Tooltip("gib:Q", title="GiB"),
        ],
    )
    room = "datum.share * width + 8 + 6 * length(datum.label) <= width"
    beside = base.transform_filter(room).mark_text(align="left", dx=4, fontSize=11)
    inside = base.transform_filter(f"!({room})")
    at_edge = [
        inside.mark_text(align="right", dx=-4, fontSize=11, **halo).encode(
            x=alt.value("width"), y=y, text="label:N"
        )
        for halo in ({"stroke": PAPER, "strokeWidth": 8, "strokeJoin": "round"}, {})
    ]
    return alt.layer(bars, beside.encode(x="gib:Q", y=y, text="label:N"), *at_edge)
