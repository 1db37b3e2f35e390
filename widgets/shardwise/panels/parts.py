"""The charts and texts that panels are made of, each over one feed."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from shardwise.charts import (
    bars,
    changes,
    layers,
    path,
    peers,
    phases,
    rule,
    scaling,
    shipped,
    stacked,
    stages,
)
from shardwise.charts.theme import PART_COLORS, PART_LABELS, PART_LETTERS, label_color
from shardwise.panels.controls import Choice
from shardwise.panels.feed import Feed
from shardwise.panels.live_chart import LiveChart
from shardwise.panels.live_table import LiveTable
from shardwise.panels.live_text import LiveText


def rule_chart(feed: Feed) -> LiveChart:
    """Chart (a)."""
    return LiveChart(
        shipped.spec("rule"), feed, "rule", columns=rule.COLUMNS,
        title="What each parameter costs before activations",
    )  # fmt: skip


def bars_chart(feed: Feed) -> LiveChart:
    """Chart (b)."""
    return LiveChart(
        shipped.spec("bars"), feed, "bars", columns=bars.COLUMNS, table=bars.TABLE,
        title="Memory of one GPU, by strategy",
    )  # fmt: skip


def path_chart(feed: Feed) -> LiveChart:
    """Chart (c)."""
    return LiveChart(
        shipped.spec("path"), feed, "path", columns=path.COLUMNS, announce=False,
        title="Five questions, stop at the first yes",
    )  # fmt: skip


def scaling_chart(feed: Feed) -> LiveChart:
    """Chart (d)."""
    return LiveChart(
        shipped.spec("scaling"), feed, "scaling", columns=scaling.COLUMNS,
        title="Memory of one GPU against the number of GPUs",
    )  # fmt: skip


def layers_chart(feed: Feed) -> LiveChart:
    """Chart (e)."""
    return LiveChart(
        shipped.spec("layers"), feed, "layers", columns=layers.COLUMNS,
        title="The largest layers",
    )  # fmt: skip


def whose_layout() -> Choice:
    """Whose step the Memory tab shows; the values are sections."""
    options = [("your layout, as it is set", "phases"), ("the decided layout", "decided phases")]
    return Choice("Phases of", options, "phases")


def step_parts(feed: Feed) -> tuple[widgets.Widget, ...]:
    """Charts (f) and (g) with what their colors and bands mean, ranks, and ways to load."""
    phases_chart = LiveChart(
        shipped.spec("phases"), feed, "phases", columns=phases.COLUMNS, table=phases.TABLE,
        title="Memory of the fullest GPU over the phases of a step",
    )  # fmt: skip
    stages_chart = LiveChart(
        shipped.spec("stages"), feed, "stages", columns=stages.COLUMNS, table=stages.TABLE,
        title="Memory of one GPU at its peak, by pipeline stage", announce=False,
    )  # fmt: skip
    ranks = LiveText(feed, "ranks.text"), LiveTable(feed, "ranks.table")
    return phases_chart, legend(), stages_chart, *ranks, LiveTable(feed, "loading.table")


def changes_parts(feed: Feed, take: Callable[[str], None]) -> tuple[widgets.Widget, ...]:
    """The changes that free most: a table with a button each, then chart (h)."""
    chart = LiveChart(
        shipped.spec("changes"), feed, "changes", columns=changes.COLUMNS, table=changes.TABLE,
        title="What one GPU must have after each change alone, reserve included",
    )  # fmt: skip
    return LiveTable(feed, "changes.table", chosen=take), chart, legend()


def peers_parts(feed: Feed) -> tuple[widgets.Widget, ...]:
    """What other calculators say: chart (i), then why, one row each."""
    chart = LiveChart(
        shipped.spec("peers"), feed, "peers", columns=peers.COLUMNS,
        title="The same question put to other calculators",
    )  # fmt: skip
    return chart, LiveTable(feed, "peers.table"), LiveText(feed, "peers.sources")


def legend() -> widgets.HTML:
    """Letter, color and name of every part, and what the band is; wraps on a narrow screen."""
    entries = "".join(
        f'<span class="sw-key"><b style="background:{color};color:{label_color(color)}">'
        f"{PART_LETTERS[part]}</b> {PART_LABELS[part]}</span>"
        for part, color in PART_COLORS.items()
    )
    band = f'<span class="sw-key"><i class="sw-band"></i> {stacked.BAND}</span>'
    return widgets.HTML(f'<div class="shardwise sw-legend">{entries}{band}</div>')
