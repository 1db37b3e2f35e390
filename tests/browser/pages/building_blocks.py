"""The page of the browser tests: five charts, a text, fields, a permalink and downloads.

The specs are plain Vega-Lite, so that the page costs what a page costs that ships its specs.
"""

from __future__ import annotations

import ipywidgets

from shardwise.core.errors import ScenarioError
from shardwise.panels.download import Download
from shardwise.panels.feed import Feed
from shardwise.panels.live_chart import LiveChart
from shardwise.panels.live_text import LiveText, facts, paragraph, step, steps
from shardwise.panels.number_field import NumberField
from shardwise.panels.permalink import Permalink

PARTS = ("weights", "gradients", "master weights", "momentum", "variance")
STRATEGIES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
COLUMNS = {"strategy": "Strategy", "part": "Part", "gib": "Memory (GiB)"}
SHARES = {"DDP": 0, "ZeRO-1": 3, "ZeRO-2": 4, "ZeRO-3": 5}


def bars() -> dict[str, object]:
    """Stacked bars of 20 rows: four strategies, five parts, with the figure in words."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": {"name": "rows"},
        "mark": {"type": "bar", "stroke": "var(--sw-ink, #000)", "strokeWidth": 0.5},
        "height": 120,
        "encoding": {
            "y": {"field": "strategy", "type": "nominal", "sort": None, "title": None},
            "x": {
                "field": "gib",
                "type": "quantitative",
                "title": "GiB per GPU",
                "scale": {"domain": [0, 120]},
            },
            "color": {
                "field": "part",
                "type": "nominal",
                "sort": None,
                "scale": {
                    "domain": list(PARTS),
                    "range": ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"],
                },
            },
            "order": {"field": "order", "type": "quantitative"},
        },
    }


def rows(gpus: float) -> list[dict[str, object]]:
    """Model states of 7e9 parameters over `gpus` (ZeRO, Rajbhandari et al. 2020, figure 1)."""
    sizes = (2, 2, 4, 4, 4)
    result = []
    for strategy in STRATEGIES:
        for order, (part, size) in enumerate(zip(PARTS, sizes, strict=True)):
            sharded = order >= len(PARTS) - SHARES[strategy]
            gib = 7e9 * size / 2**30 / (gpus if sharded else 1)
            result.append({"strategy": strategy, "part": part, "order": order, "gib": gib})
    return result


class Page:
    """The widgets of one page, wired as a panel wires them."""

    def __init__(self, charts: int = 5) -> None:
        """A page of that many charts, all driven by one field."""
        self.feed = Feed()
        self.keys = [f"memory{i}" for i in range(charts)]
        self.field = NumberField(
            "Number of GPUs",
            8,
            1,
            1024,
            steps=range(1, 1025),
            unit="GPUs",
            help="The model states are divided over them.",
            field="gpus",
        )
        self.link = Permalink(self.feed)
        self.charts = [
            LiveChart(bars(), self.feed, key, title=f"Memory by strategy {i + 1}", columns=COLUMNS)
            for i, key in enumerate(self.keys)
        ]
        self.text = LiveText(self.feed, "words", announce=True)
        self.downloads = ipywidgets.HBox(
            [
                Download("Numbers", "numbers.csv", lambda: f"gpus\r\n{self.field.value}\r\n"),
                Download("Bytes", "numbers.bin", lambda: bytes([0, 255, 1])),
                Download("Refused", "never.txt", self._refuse),
            ]
        )
        self.field.observe(lambda _: self.show(), "value")
        self.link.observe(self._reopen, "search")
        self.show()

    def _refuse(self) -> str:
        raise ScenarioError("scenario", "<b>x</b>", "a scenario that fits", "choose more GPUs")

    def _reopen(self, change: dict[str, str]) -> None:
        for pair in change["new"].removeprefix("?").split("&"):
            if pair.startswith("gpus="):
                self.field.text = pair.removeprefix("gpus=")

    def show(self) -> None:
        """One move: all charts and words in one message."""
        gpus = self.field.value
        data: dict[str, object] = {}
        for key in self.keys:
            data[key] = rows(gpus)
            data[f"{key}.text"] = f"On {gpus} GPUs the states take {112e9 / 2**30 / gpus:.1f} GiB."
        data["words"] = [
            paragraph(f"{gpus} GPUs <img src=x onerror=alert(1)>"),
            facts([("Model states", "112 GB")]),
            steps([step("DDP", "failed", "112 GB on one GPU"), step("ZeRO-3", "chosen")]),
        ]
        data["permalink"] = f"v=1&gpus={gpus}"
        self.feed.push(data)

    def widget(self) -> ipywidgets.Widget:
        """Field first, then the charts in a grid, then the rest."""
        grid = ipywidgets.GridBox(
            self.charts,
            layout={
                "grid_template_columns": "repeat(auto-fit, minmax(min(100%, 360px), 1fr))",
                "grid_gap": "8px",
            },
        )
        return ipywidgets.VBox([self.field, grid, self.text, self.downloads, self.link])
