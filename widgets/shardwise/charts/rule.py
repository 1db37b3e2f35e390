"""Chart (a), the rule of 16: bytes a parameter by part, and what they add up to for this model."""

from __future__ import annotations

from typing import Any

from shardwise.charts.theme import EDGE, PART_COLORS, label_color
from shardwise.core.adapters import trained_parameters
from shardwise.core.memory.rule_of_sixteen import bytes_per_parameter, rule_of_sixteen
from shardwise.core.scenario import Scenario
from shardwise.core.units import GB, format_count, format_gb

AXIS_BYTES = 24
_NAMES = (
    ("parameters", "parameters", "parameters"),
    ("gradients", "gradients", "gradients"),
    ("master weights", "master weights", "master_weights"),
    ("momentum", "optimizer state", "momentum"),
    ("variance", "optimizer state", "variance"),
)
COLUMNS = {"part": "Part", "bytes": "Bytes a parameter", "gb": "This model (GB)"}


def rows(scenario: Scenario) -> list[dict[str, object]]:
    """One row a part: its segment from `start` to `end` bytes a parameter, and its GB."""
    training, model = scenario.training, scenario.model
    each = bytes_per_parameter(model, training.precision, training.optimizer)
    listed, start = [], 0.0
    for name, part, field in _NAMES:
        size = getattr(each, field)
        color = PART_COLORS[part]
        listed.append(
            {
                "part": name,
                "bytes": round(size, 3),
                "gb": round(size * model.parameters / GB, 2),
                "start": start,
                "end": start + size,
                "middle": start + size / 2,
                "label": f"{size:g}" if size >= 0.75 else "",
                "color": color,
                "ink": label_color(color),
            }
        )
        start += size
    return listed


def sentence(scenario: Scenario) -> str:
    """The rule in words, with the model's numbers put in."""
    training, model = scenario.training, scenario.model
    each = bytes_per_parameter(model, training.precision, training.optimizer)
    parts = [getattr(each, field) for _, _, field in _NAMES]
    total = sum(parts)
    added = " + ".join(f"{part:.3g}" for part in parts if part)
    weights = format_gb(model.parameters * each.parameters)
    needed = format_gb(rule_of_sixteen(model, training.precision, training.optimizer))
    text = (
        f"{added} = {total:.4g} bytes a parameter: {format_count(model.parameters)} parameters "
        f"need {needed} before activations, though the weights alone are {weights}."
    )
    if training.trainable.everything:
        return text
    trained = format_count(trained_parameters(model, training.trainable))
    return f"{text} That is full training; here {trained} are trained, the rest is frozen."


def spec() -> Any:
    """One stacked bar, labelled with its bytes; the axis does not move."""
    import altair as alt

    base = alt.Chart(alt.NamedData("rows"), height=44, width=400)
    x = alt.X(
        "start:Q",
        title="bytes a parameter",
        scale=alt.Scale(domain=[0, AXIS_BYTES], nice=False, clamp=True),
    )
    bars = base.mark_bar(stroke=EDGE, strokeWidth=1).encode(
        x=x,
        x2="end:Q",
        color=alt.Color("color:N", scale=None),
        description="part:N",
        tooltip=[
            alt.Tooltip("part:N", title="part"),
            alt.Tooltip("bytes:Q", title="bytes a parameter"),
        ],
    )
    labels = base.mark_text(fontWeight="bold", fontSize=13, dy=-7).encode(
        x=alt.X("middle:Q"), text="label:N", color=alt.Color("ink:N", scale=None)
    )
    names = base.mark_text(fontSize=10, dy=8, limit=90).encode(
        x=alt.X("middle:Q"),
        text=alt.condition(
            f"datum.bytes * width / {AXIS_BYTES} > 7 * length(datum.part)",
            alt.Text("part:N"),
            alt.value(""),
        ),
        color=alt.Color("ink:N", scale=None),
    )
    return alt.layer(bars, labels, names)
