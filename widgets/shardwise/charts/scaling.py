"""Chart (d): memory of one GPU against the number of GPUs, one line a data-parallel strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.charts.theme import PAPER, STRATEGY_COLORS
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import STRATEGIES, layout_for
from shardwise.core.training import Training
from shardwise.core.units import GIB

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COLUMNS = {"gpus": "GPUs", "strategy": "Strategy", "gib": "Memory (GiB)"}
_KEYS = ("ddp", "zero-1", "zero-2", "zero-3")


def rows(scenario: Scenario) -> dict[str, list[dict[str, object]]]:
    """Datasets `rows` (strategy, GPUs, GiB) and `limits` (the card); degrees other than data are 1.

    The global batch is left open, so that each count keeps its micro-batch.
    """
    listed: list[dict[str, object]] = []
    training = replace(scenario.training, global_batch=None)
    for key in _KEYS:
        for count in COUNTS:
            size = _memory(scenario, key, count, training)
            if size is not None:
                name = STRATEGIES[key].name
                listed.append({"gpus": count, "strategy": name, "gib": round(size, 3)})
    limit = scenario.cluster.gpu.usable_bytes / GIB
    return {"rows": listed, "limits": [{"gib": limit, "label": f"card: {limit:.1f} GiB"}]}


def _memory(scenario: Scenario, key: str, count: int, training: Training) -> float | None:
    per_node = min(count, scenario.cluster.gpus_per_node)
    nodes = -(-count // per_node)
    cluster = replace(scenario.cluster, gpus_per_node=per_node, nodes=nodes)
    layout = layout_for(replace(scenario, cluster=cluster), key)  # checked with the rest below
    try:
        laid = Scenario.of(scenario.model, cluster, training, layout, scenario.model_source)
    except ScenarioError:
        return None
    return estimate(laid).needed_bytes / GIB


def sentence(data: dict[str, list[dict[str, object]]]) -> str:
    """From how many GPUs on each strategy is under the card's line; the others in one breath."""
    limit = data["limits"][0]["gib"]
    assert isinstance(limit, float)
    parts, never = [], []
    for name in dict.fromkeys(str(row["strategy"]) for row in data["rows"]):
        own = [row for row in data["rows"] if row["strategy"] == name]
        under = [row["gpus"] for row in own if float(str(row["gib"])) <= limit]
        if not under:
            never.append(name)
        else:
            few = "GPU" if under[0] == 1 else "GPUs"
            parts.append(f"{name} is under the line from {under[0]} {few} on")
    if not parts:
        return "no strategy is under the line at any number of GPUs shown."
    if never:
        parts.append(f"{', '.join(never)} at no number of GPUs shown")
    return "; ".join(parts) + "."


def spec() -> Any:
    """Lines on logarithmic axes that do not move, each with its own point shape."""
    import altair as alt

    base = alt.Chart(alt.NamedData("rows"), width=400, height=220)
    x = alt.X(
        "gpus:Q",
        title="GPUs",
        scale=alt.Scale(type="log", base=2, domain=[1, 1024], nice=False),
        axis=alt.Axis(values=list(COUNTS), format="d"),
    )
    y = alt.Y(
        "gib:Q",
        title="GiB on one GPU",
        scale=alt.Scale(type="log", base=2, domain=[1, 16384], nice=False, clamp=True),
        axis=alt.Axis(values=[1, 4, 16, 64, 256, 1024, 4096, 16384], format=",d"),
    )
    return alt.layer(*_strategies(base.encode(x=x, y=y)), *_limit())


def _strategies(base: Any) -> tuple[Any, Any]:
    """A line and points a strategy, told apart by color and shape."""
    import altair as alt

    names, shapes = list(STRATEGY_COLORS), ["circle", "square", "triangle-up", "diamond"]
    legend = alt.Legend(title=None, orient="top", columns=2)
    colors = alt.Scale(domain=names, range=list(STRATEGY_COLORS.values()))
    color = alt.Color("strategy:N", scale=colors, legend=legend)
    shape = alt.Shape("strategy:N", scale=alt.Scale(domain=names, range=shapes), legend=legend)
    said = [
        alt.Tooltip("strategy:N"),
        alt.Tooltip("gpus:Q", title="GPUs"),
        alt.Tooltip("gib:Q", title="GiB"),
    ]
    points = base.mark_point(filled=True, size=60, opacity=1)
    return base.mark_line().encode(color=color), points.encode(
        color=color, shape=shape, tooltip=said
    )


def _limit() -> tuple[Any, ...]:
    """The card's line, its name with a halo."""
    import altair as alt

    limits = alt.Chart(alt.NamedData("limits"))
    line = limits.mark_rule(strokeDash=[6, 3], strokeWidth=2).encode(y="gib:Q")
    look = {"align": "left", "baseline": "bottom", "dx": 4, "dy": -2, "fontSize": 11}
    halo, name = (
        limits.mark_text(**look, **more).encode(y="gib:Q", x=alt.value(0), text="label:N")
        for more in ({"stroke": PAPER, "strokeWidth": 4}, {})
    )
    return line, halo, name
