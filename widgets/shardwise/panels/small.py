"""One panel for each question: a small notebook shows one, the explorer shows all."""

from __future__ import annotations

import ipywidgets as widgets

from shardwise.panels import parts
from shardwise.panels.live_text import LiveText
from shardwise.panels.panel import Panel

COLUMN = widgets.Layout(flex="1 1 300px", min_width="0", max_width="460px")
WIDE = widgets.Layout(flex="3 1 320px", min_width="0")


def side_by_side(left: widgets.Widget, right: widgets.Widget) -> widgets.HBox:
    """Two columns that become one on a narrow screen."""
    return widgets.HBox(
        [left, right], layout=widgets.Layout(flex_flow="row wrap", width="100%", min_width="0")
    )


class _SmallPanel(Panel):
    """Controls of some groups beside one chart and its texts."""

    shows_layout = False

    def content(self) -> tuple[widgets.Widget, ...]:
        """Controls, then charts."""
        groups = self.groups if self.shows_layout else self.groups[:2]
        inputs = widgets.VBox([self.model, *(group.widget for group in groups)], layout=COLUMN)
        shown = widgets.VBox(list(self.pictures()), layout=WIDE)
        return (side_by_side(inputs, shown),)

    def pictures(self) -> tuple[widgets.Widget, ...]:
        """Charts and texts."""
        raise NotImplementedError


class RulePanel(_SmallPanel):
    """The rule of 16: bytes a parameter, by part."""

    sections = ("rule",)

    def pictures(self) -> tuple[widgets.Widget, ...]:
        """Chart (a)."""
        return (parts.rule_chart(self.feed),)


class MemoryPanel(_SmallPanel):
    """Memory of one GPU by strategy, with every number opened up."""

    sections = ("rule", "bars", "numbers")
    shows_layout = True

    def pictures(self) -> tuple[widgets.Widget, ...]:
        """Charts (a) and (b), and the formulas."""
        feed = self.feed
        return (
            parts.rule_chart(feed),
            parts.bars_chart(feed),
            parts.legend(),
            LiveText(feed, "numbers"),
        )


class StepPanel(_SmallPanel):
    """Memory over the phases of a step and the pipeline's stages, and what to change first."""

    sections = ("rule", "phases", "changes")
    shows_layout = True

    def pictures(self) -> tuple[widgets.Widget, ...]:
        """Charts (a), (f), (g) and (h), with the changes' buttons."""
        step, after = parts.step_parts(self.feed), parts.changes_parts(self.feed, self.take)
        return (parts.rule_chart(self.feed), *step, *after[:-1])


class DecisionPanel(_SmallPanel):
    """What runs out and the simplest strategy that fixes it."""

    sections = ("rule", "path")

    def pictures(self) -> tuple[widgets.Widget, ...]:
        """The answer, chart (c), the walk and the rule."""
        feed = self.feed
        return (
            LiveText(feed, "answer", announce=True),
            parts.path_chart(feed),
            LiveText(feed, "walk"),
            parts.rule_chart(feed),
        )


class ScalingPanel(_SmallPanel):
    """Memory against the number of GPUs."""

    sections = ("rule", "scaling")

    def pictures(self) -> tuple[widgets.Widget, ...]:
        """Charts (d) and (a)."""
        return parts.scaling_chart(self.feed), parts.rule_chart(self.feed)


class LayersPanel(_SmallPanel):
    """Which layer is largest, and what the model is made of."""

    sections = ("rule", "layers")

    def pictures(self) -> tuple[widgets.Widget, ...]:
        """Chart (e), the model's parts, the rule."""
        feed = self.feed
        return parts.layers_chart(feed), LiveText(feed, "model"), parts.rule_chart(feed)
