"""Chart (c): the five questions as a path, lit as far as it was walked."""

from __future__ import annotations

from typing import Any

from shardwise.charts.stacked import label_of
from shardwise.charts.theme import EDGE, STATE_COLORS, label_color
from shardwise.core.decision import Decision, Question
from shardwise.core.memory import estimate
from shardwise.core.units import GIB, format_gib

SHORT = (
    "DDP:\na replica fits\non one GPU",
    "ZeRO-1/2:\nshard the\noptimizer",
    "ZeRO-3/FSDP:\nshard the\nparameters",
    "offload, or TP:\nsplit a layer\nin a node",
    "pipeline/3D, or\na split model\n+ offload",
)
TINY = ("DDP", "ZeRO-1/2", "ZeRO-3", "offload\nor TP", "PP, 3D")
"""The same where the chart is narrow."""

COLUMNS = {
    "number": "Question",
    "question": "Asked",
    "verdict": "Answer",
    "needed": "Needed a GPU",
    "available": "The card has",
}


def rows(decision: Decision) -> list[dict[str, object]]:
    """One row a question: its place, verdict, and the bytes needed and at hand."""
    listed: list[dict[str, object]] = []
    names = zip(decision.questions, SHORT, TINY, strict=True)
    for number, (question, short, tiny) in enumerate(names, 1):
        asked = question.verdict != "not asked"
        needed = format_gib(question.needed_bytes) if question.needed_bytes else "–"
        said = label_of(question.needed_bytes / GIB) if question.needed_bytes else "–"
        if host := short_host(question):
            needed, said = f"{needed}, host {format_gib(host)}", f"host {label_of(host / GIB)}"
        color = STATE_COLORS[question.verdict]
        listed.append(
            {
                "number": number,
                "question": question.question,
                "verdict": question.verdict,
                "needed": needed,
                "available": format_gib(question.available_bytes),
                "from": max(1, number - 1),
                "lit": 1 if asked else 0,
                "short": short,
                "tiny": tiny,
                "state": f"{question.verdict}\n{said}" if asked else "–",
                "color": color,
                "ink": label_color(color),
            }
        )
    return listed


def short_host(question: Question) -> float:
    """Host memory of a node that an offload lacks, where the card alone would do; else 0."""
    if question.verdict != "no" or question.needed_bytes > question.available_bytes:
        return 0.0
    for attempt in question.attempts:
        host = estimate(attempt.scenario).host_bytes_per_node
        if attempt.needed_bytes == question.needed_bytes:
            return host if host > attempt.scenario.cluster.host_memory_bytes else 0.0
    return 0.0


def sentence(decision: Decision) -> str:
    """The decision's headline."""
    return decision.headline


def spec() -> Any:
    """Five numbered stations on a line; a word under each says what came out."""
    import altair as alt

    base = alt.Chart(alt.NamedData("rows"), width=400, height=130)
    x = alt.X("number:Q", axis=None, scale=alt.Scale(domain=[0.5, 5.5], nice=False, zero=False))
    way = base.mark_rule(strokeWidth=4, color="#999999").encode(
        x=x,
        x2="from:Q",
        y=alt.value(24),
        opacity=alt.Opacity("lit:Q", scale=alt.Scale(domain=[0, 1], range=[0.25, 1]), legend=None),
    )
    stations = base.mark_point(
        size=700, filled=True, opacity=1, stroke=EDGE, strokeWidth=1.5
    ).encode(
        x=x,
        y=alt.value(24),
        shape=alt.Shape(
            "verdict:N",
            scale=alt.Scale(
                domain=["no", "yes", "not asked"], range=["square", "circle", "circle"]
            ),
            legend=None,
        ),
        fill=alt.Fill("color:N", scale=None),
        tooltip=[
            alt.Tooltip("question:N", title="question"),
            alt.Tooltip("verdict:N", title="answer"),
            alt.Tooltip("needed:N", title="needed a GPU"),
        ],
    )
    numbers = base.mark_text(fontSize=14, fontWeight="bold").encode(
        x=x, y=alt.value(24), text="number:Q", color=alt.Color("ink:N", scale=None)
    )
    verdicts = base.mark_text(
        fontSize=11, fontWeight="bold", lineBreak="\n", baseline="top"
    ).encode(x=x, y=alt.value(46), text="state:N")
    shorts = _names(base, x, "short:N", "width > 480", 10)
    tinies = _names(base, x, "tiny:N", "width <= 480", 11)
    return alt.layer(way, stations, numbers, verdicts, shorts, tinies)


def _names(base: Any, x: Any, field: str, shown: str, size: int) -> Any:
    """Station names, where there is room for them."""
    import altair as alt

    return base.mark_text(fontSize=size, lineBreak="\n", baseline="top").encode(
        x=x, y=alt.value(80), text=alt.condition(shown, alt.Text(field), alt.value(""))
    )
