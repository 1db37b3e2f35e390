"""The charts and texts that panels are made of, each over one feed."""

from __future__ import annotations

import ipywidgets as widgets

from shardwise.charts import bars, layers, path, rule, scaling, shipped
from shardwise.charts.theme import PART_COLORS, PART_LABELS, PART_LETTERS, label_color
from shardwise.panels.feed import Feed
from shardwise.panels.live_chart import LiveChart


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


def legend() -> widgets.HTML:
    """Letter, color and name of every part; wraps on a narrow screen."""
    entries = "".join(
        f'<span class="sw-key"><b style="background:{color};color:{label_color(color)}">'
        f"{PART_LETTERS[part]}</b> {PART_LABELS[part]}</span>"
        for part, color in PART_COLORS.items()
    )
    return widgets.HTML(f'<div class="shardwise sw-legend">{entries}</div>')
