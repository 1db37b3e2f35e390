"""A chart that is embedded once and then only given rows, with its table, sentence and files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import anywidget
import traitlets

from shardwise.panels.assets import STYLE, script
from shardwise.panels.feed import Feed

_COMPOSED = ("facet", "hconcat", "vconcat", "concat", "repeat")


def chart_spec(chart: Any, description: str) -> dict[str, Any]:
    """The Vega-Lite spec of an Altair chart or of a dict, made to follow the width of its box.

    A numeric width with `autosize: fit-x` is what can be changed later without a new embedding;
    `width="container"` stays blank in hidden tabs and rows. Composed views keep their own sizes.
    """
    spec = copy.deepcopy(chart) if isinstance(chart, Mapping) else chart.to_dict()
    spec = dict(spec)
    spec.setdefault("description", description)
    faceted = {"row", "column", "facet"} & set(spec.get("encoding", {}))
    if not faceted and not any(kind in spec for kind in _COMPOSED):
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
        if not isinstance(spec.get("width"), (int, float)):
            spec["width"] = 400
    return spec


class LiveChart(anywidget.AnyWidget):
    """Shows `feed.data[key]` with one Vega-Lite spec; new rows redraw, nothing is rebuilt.

    The spec names its data (`alt.Chart(alt.NamedData("rows"))`). `columns` maps fields to the
    headings of the table and of the CSV, units included.

    Example:
        chart = alt.Chart(alt.NamedData("rows")).mark_bar().encode(x="gib:Q", y="part:N")
        LiveChart(chart, feed, "memory", title="Memory per GPU",
                  columns={"part": "Part", "gib": "Memory (GiB)"})
    """

    _esm = script("channel.js", "elements.js", "files.js", "vega_view.js", "live_chart.js")
    _css = STYLE
    channel = traitlets.Unicode(read_only=True).tag(sync=True)
    key = traitlets.Unicode(read_only=True).tag(sync=True)
    spec = traitlets.Dict().tag(sync=True, echo_update=False)
    title = traitlets.Unicode().tag(sync=True, echo_update=False)
    columns = traitlets.List().tag(sync=True, echo_update=False)
    table = traitlets.Unicode("rows").tag(sync=True, echo_update=False)
    announce = traitlets.Bool(True).tag(sync=True, echo_update=False)

    def __init__(
        self,
        chart: Any,
        feed: Feed,
        key: str,
        *,
        title: str,
        columns: Mapping[str, str],
        table: str = "rows",
        announce: bool = True,
    ) -> None:
        """`table` names the dataset of the table and the CSV; `announce` speaks the sentence."""
        self.set_trait("channel", feed.channel)
        self.set_trait("key", key)
        super().__init__(
            spec=chart_spec(chart, title),
            title=title,
            columns=[list(column) for column in columns.items()],
            table=table,
            announce=announce,
        )

    def replace(self, chart: Any) -> None:
        """Another chart in the same place; the old picture stays until the new one is drawn."""
        self.spec = chart_spec(chart, self.title)
