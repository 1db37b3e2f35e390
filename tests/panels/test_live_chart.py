"""The Python half of the charts and texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorder import Recorder

from shardwise.panels.feed import Feed
from shardwise.panels.live_chart import LiveChart, chart_spec
from shardwise.panels.live_text import LiveText, details, facts, heading, paragraph, step, steps

SPEC = {"data": {"name": "rows"}, "mark": "bar", "encoding": {"x": {"field": "gib"}}}


def made(spec: Any = SPEC) -> LiveChart:
    """A chart on a feed of its own."""
    return LiveChart(spec, Feed(), "memory", title="Memory", columns={"part": "Part"})


def test_an_altair_chart_and_its_dict_give_one_spec() -> None:
    """A spec may be written by Altair here or be shipped as JSON."""
    import altair as alt

    chart = alt.Chart(alt.NamedData("rows")).mark_bar().encode(x="gib:Q")
    assert chart_spec(chart, "Memory") == chart_spec(json.loads(chart.to_json()), "Memory")


@pytest.mark.parametrize("width", ["container", {"step": 20}, None])
def test_a_width_becomes_a_number(width: object) -> None:
    """Only a numeric width with fit-x can follow its box later."""
    spec = chart_spec(SPEC if width is None else {**SPEC, "width": width}, "Memory")
    assert spec["width"] == 400
    assert spec["autosize"] == {"type": "fit-x", "contains": "padding"}


@pytest.mark.parametrize(
    "spec",
    [
        {"data": {"name": "rows"}, "hconcat": [SPEC, SPEC]},
        {"facet": {"field": "a"}, "spec": SPEC},
        {**SPEC, "encoding": {"row": {"field": "a"}}},
    ],
)
def test_composed_views_keep_their_sizes(spec: dict[str, Any]) -> None:
    """Vega-Lite fits neither facets nor concatenations, so they are not asked to."""
    assert "autosize" not in chart_spec(spec, "Memory")


def test_the_spec_given_is_left_alone() -> None:
    """A spec may be shared between charts."""
    before = json.dumps(SPEC)
    chart_spec(SPEC, "Memory")
    assert json.dumps(SPEC) == before


def test_a_chart_has_a_description() -> None:
    """A picture has words for those who cannot see it."""
    assert chart_spec(SPEC, "Memory")["description"] == "Memory"


def test_a_move_sends_nothing_through_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows travel in the feed; the chart's own model stays silent."""
    feed = Feed()
    chart = LiveChart(SPEC, feed, "memory", title="Memory", columns={})
    sent = Recorder(chart, monkeypatch)
    feed.push({"memory": [{"gib": 1}]})
    assert sent.messages == []


def test_the_bundle_is_carried_once() -> None:
    """Five charts do not carry Vega five times."""
    assert len(made().get_state()["_esm"]) < 30_000
    assert len(Feed().get_state()["library"]) > 500_000


def test_blocks_are_json() -> None:
    """Texts are plain values that a feed can carry."""
    blocks = [
        heading("ZeRO-1"),
        paragraph("why"),
        facts([("Weights", "13 GiB")]),
        steps([step("DDP", "failed", "104 GiB")]),
        details("Formula", [paragraph("2 bytes a parameter")]),
    ]
    feed = Feed({"words": blocks})
    text = LiveText(feed, "words")
    assert feed.data["words"] == json.loads(json.dumps(blocks))
    assert text.channel == feed.channel
