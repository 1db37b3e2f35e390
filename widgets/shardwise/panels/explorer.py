"""The explorer: everything on one page, over one scenario."""

from __future__ import annotations

import csv
import io
import json

import ipywidgets as widgets

from shardwise.charts import bars
from shardwise.core.decision import decide
from shardwise.core.memory.report import PARTS, MemoryReport
from shardwise.export import export
from shardwise.panels import parts
from shardwise.panels.calibration import Calibration
from shardwise.panels.comparison import compared
from shardwise.panels.download import Download
from shardwise.panels.files_text import PROGRAMS, refusal
from shardwise.panels.live_text import LiveText
from shardwise.panels.panel import Panel
from shardwise.panels.small import COLUMN, WIDE, side_by_side
from shardwise.panels.tabs import Tabs, View, view


class Explorer(Panel):
    """Model, GPUs and training in; what runs out, why, and the strategy that fixes it out.

    Example:
        explorer = Explorer({"model": "llama-3-70b", "cluster": {"gpu": "a100-sxm-80gb"}})
        explorer                      # in a cell: shows it
        explorer.decision.strategy    # 'zero-3'
        explorer.observe(print, "scenario")
    """

    sections = ("rule", "bars", "path")

    def content(self) -> tuple[widgets.Widget, ...]:
        """Answer and rule first, controls beside the charts, the rest behind tabs."""
        feed = self.feed
        cluster, training, layout = self.groups
        inputs = widgets.Tab(
            [
                widgets.VBox([self.model, cluster.widget]),
                training.widget,
                layout.widget,
            ],
            titles=["Model, GPUs", "Training", "Layout"],
            layout=COLUMN,
        )
        shown = widgets.VBox(
            [
                parts.rule_chart(feed),
                parts.path_chart(feed),
                parts.bars_chart(feed),
                parts.legend(),
            ],
            layout=WIDE,
        )
        self.whose = parts.whose_layout()
        self.whose.on_change(self.refresh)
        self.calibration = Calibration(feed, self.refresh)
        self.more = Tabs(self._views(), self.refresh)
        answer = LiveText(feed, "answer", announce=True)
        return answer, side_by_side(inputs, shown), self.more

    def _views(self) -> tuple[View, ...]:
        """What stands behind tabs, the answer's reasons first."""
        feed = self.feed
        return (
            view("Why", lambda: [LiveText(feed, "walk")]),
            View("Memory", self._step, lambda: (str(self.whose.value),)),
            view("Change first", lambda: parts.changes_parts(feed, self.take), "changes"),
            view("Calculators", lambda: parts.peers_parts(feed), "peers"),
            view("GPUs", lambda: [parts.scaling_chart(feed)], "scaling"),
            view("Layers", lambda: [parts.layers_chart(feed), LiveText(feed, "model")], "layers"),
            view("Numbers", lambda: [LiveText(feed, "numbers")], "numbers"),
            view("Files", lambda: [self.files()], "files"),
        )

    def _step(self) -> tuple[widgets.Widget, ...]:
        """Phases and stages of the layout that is asked for, then the measured peak."""
        return (self.whose, *parts.step_parts(self.feed), self.calibration)

    def own_data(self) -> dict[str, object]:
        """What the measured peak says, and which programs can be written, while its tab is open."""
        more = getattr(self, "more", None)
        opened = more.view.title if more is not None else ""
        if opened == "Files":
            for target, button in self.programs.items():
                button.disabled = bool(refusal(self.decision.scenario, target))
        return self.calibration.data(self.scenario) if opened == "Memory" else {}

    def shown_sections(self) -> tuple[str, ...]:
        """The first screen's, and those of the open tab."""
        more = getattr(self, "more", None)
        return (*self.sections, *(more.view.sections() if more is not None else ()))

    def files(self) -> widgets.VBox:
        """Downloads: numbers, scenario, programs for the decided layout."""
        labels = {"fsdp2": "(Python)", "deepspeed": "(JSON)"}
        self.programs = {
            target: self._exported(target, f"{name} {labels[target]}")
            for target, name in PROGRAMS.items()
        }
        return widgets.VBox(
            [
                Download("Numbers (CSV)", "shardwise-memory.csv", self.numbers_csv),
                Download("Numbers (JSON)", "shardwise-memory.json", self.numbers_json),
                Download("Scenario (JSON)", "shardwise-scenario.json", self.scenario_json),
                *self.programs.values(),
                LiveText(self.feed, "files"),
            ]
        )

    def _exported(self, target: str, label: str) -> Download:
        def first() -> tuple[str, str]:
            files = export(self.decision.scenario, target)
            return next(iter(files.items()))

        return Download(label, lambda: first()[0], lambda: first()[1])

    def _rows(self) -> list[dict[str, object]]:
        return [
            {
                "strategy": name,
                "basis": self._basis(report),
                "part": PARTS[part],
                "bytes": round(size),
                "phase": report.binding_phase,
                "verdict": report.verdict,
                "device_bytes": round(report.device_bytes),
                "low_bytes": round(report.low_bytes),
                "high_bytes": round(report.high_bytes),
                "usable_bytes": report.usable_bytes,
            }
            for name, report in compared(self.scenario, decide(self.scenario))
            for part, size in report.parts.items()
        ]

    def _basis(self, report: MemoryReport) -> str:
        """Whether a bar is the layout as it is set, the decided one, both or another."""
        given, decided = self.scenario, self.decision
        names = ["as set"] if report.scenario == given else []
        if decided.strategy != "none" and report.scenario == decided.scenario:
            names.append("decided")
        return " and ".join(names) or "compared"

    def numbers_csv(self) -> str:
        """One line a strategy and part, in bytes."""
        text = io.StringIO()
        rows = self._rows()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def numbers_json(self) -> str:
        """The same numbers with the scenario and the decision they belong to."""
        decision = self.decision
        return json.dumps(
            {
                "scenario": self.scenario.to_dict(),
                "decision": {
                    "strategy": decision.strategy,
                    "exhausted": decision.exhausted,
                    "headline": decision.headline,
                    "layout": decision.scenario.layout.to_dict(),
                },
                "memory": self._rows(),
                "columns": bars.COLUMNS,
            },
            indent=2,
        )

    def scenario_json(self) -> str:
        """What `Scenario.from_dict` reads back."""
        return json.dumps(self.scenario.to_dict(), indent=2)
