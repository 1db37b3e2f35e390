"""A panel: controls on one side, charts on the other, over one shared scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets
import traitlets

from shardwise.core.decision import Decision, decide
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.permalink import from_query
from shardwise.core.pictures import tower_of
from shardwise.core.routing import routing_matters
from shardwise.core.scenario import Scenario
from shardwise.panels.companions import brought_along
from shardwise.panels.controls import Control, Number
from shardwise.panels.feed import Feed
from shardwise.panels.fields import cluster_group, layout_group, training_group
from shardwise.panels.live_text import LiveText, bullets, error
from shardwise.panels.memory_view import changed
from shardwise.panels.model_field import ModelField
from shardwise.panels.number_field import number_text
from shardwise.panels.permalink import Permalink
from shardwise.panels.scenario_trait import ScenarioTrait
from shardwise.panels.view import feed_data

PICTURES = "training.images_per_sample"


class Panel(widgets.VBox):
    """Controls and a feed over `scenario`; subclasses say what they show.

    `scenario` takes a `Scenario` or a dict and can be observed, as can `report` (its memory) and
    `decision`; the constructor takes a link's query string too. Bad input leaves all three as they
    were.
    """

    scenario = ScenarioTrait()
    report = traitlets.Instance(MemoryReport, read_only=True)
    decision = traitlets.Instance(Decision, read_only=True)
    sections: tuple[str, ...] = ()

    def __init__(self, scenario: Scenario | Mapping[str, Any] | str | None = None) -> None:
        """Without a scenario: the defaults, or what the page's address says."""
        self.feed = Feed()
        self.link = Permalink(self.feed)
        self.model = ModelField()
        self.groups = (cluster_group(), training_group(), layout_group())
        self.controls: dict[str, Control] = {}
        for group in self.groups:
            self.controls |= group.controls
        self._loading = False
        self._spelled: Scenario | None = None
        self._problem = ""
        self._problem_at: Control | ModelField | None = None
        self._notes: tuple[str, ...] = ()
        super().__init__(layout=widgets.Layout(width="100%", min_width="0"))
        self.scenario = self._opened(scenario)
        self.children = (self.feed, LiveText(self.feed, "problem"), *self.content(), self.link)
        self._listen()

    def content(self) -> tuple[widgets.Widget, ...]:
        """What the panel shows under its link and its problems."""
        raise NotImplementedError

    def shown_sections(self) -> tuple[str, ...]:
        """The sections whose numbers are worth making now."""
        return self.sections

    def refresh(self) -> None:
        """Send what is shown for the current scenario, in one message, and nothing else."""
        data = feed_data(self.scenario, self.shown_sections())
        self.feed.data = {**data, **self.own_data(), "problem": self._problem_blocks()}

    def own_data(self) -> dict[str, object]:
        """What is shown besides sections: of controls that are no part of the scenario."""
        return {}

    def take(self, change: str) -> None:
        """Make a change that was offered; one that is offered no more changes nothing."""
        scenario = changed(self.scenario, change)
        if scenario is not None:
            self._notes = ()
            self.scenario = scenario

    def _problem_blocks(self) -> list[dict[str, object]]:
        """What is wrong now, or what of a link was left out."""
        if self._problem:
            return [error(self._problem)]
        return [bullets(list(self._notes))] if self._notes else []

    def _opened(self, scenario: Scenario | Mapping[str, Any] | str | None) -> Any:
        if isinstance(scenario, str):
            opened = from_query(scenario)
            self._notes = opened.notes
            return opened.scenario
        return Scenario.from_dict({}) if scenario is None else scenario

    def _listen(self) -> None:
        self.link.observe(lambda change: self._follow_link(change["new"]), "search")
        self.model.on_change(lambda: self._changed("model"))
        self.model.on_refused(lambda sentence: self._show_sentence(sentence, self.model))
        for path, control in self.controls.items():
            control.on_change(lambda path=path: self._changed(path))  # type: ignore[misc]

    @traitlets.observe("scenario")
    def _scenario_set(self, change: Mapping[str, Any]) -> None:
        report, decision = estimate(change["new"]), decide(change["new"])
        self.set_trait("report", report)
        self.set_trait("decision", decision)
        routed = self.controls["training.expert_imbalance"]
        assert isinstance(routed, Number)
        routed.disabled = not routing_matters(change["new"])
        self._show_pictures(bool(tower_of(change["new"].model)))
        if change["new"] is not self._spelled:  # a control that moved shows its value already
            self._show_values(change["new"])
        self.refresh()

    def _show_pictures(self, seen: bool) -> None:
        """The number of pictures is asked for where a vision tower sees them."""
        pictures = self.controls[PICTURES]
        assert isinstance(pictures, Number)
        pictures.layout.display = "" if seen else "none"
        if not seen:
            self._loading, before = True, self._loading
            _show(pictures, 1)
            self._loading = before

    def _follow_link(self, search: str) -> None:
        if search.strip("?"):
            opened = from_query(search)
            self._notes = opened.notes
            self.scenario = opened.scenario
            self._show_values(self.scenario)  # an equal scenario notifies nobody
            self.refresh()

    def _show_values(self, scenario: Scenario) -> None:
        """Bring the controls to the scenario's values, without an echo."""
        values = flat(scenario.to_dict())
        self._loading = True
        try:
            if self.model.source != scenario.model_source:
                self.model.show(scenario.model_source)
            for path, control in self.controls.items():
                value = values[path]
                shown = 0 if path == "training.global_batch" and value is None else value
                _show(control, shown)
                control.show_error("")
            self.model.show_error("")
            self._problem, self._problem_at = "", None
        finally:
            self._loading = False

    def _changed(self, path: str) -> None:
        if self._loading:
            return
        self._notes = ()
        self._follow(path)
        try:
            self._spelled = self._spell(path)
            self._problem = ""
            self.scenario = self._spelled
        except ScenarioError as problem:
            self._show_problem(path, problem)
        else:
            self._clear_problem()

    def _follow(self, path: str) -> None:
        """Set what the choice at `path` brings along, without an echo."""
        values = {name: control.value for name, control in self.controls.items()}
        self._loading = True
        try:
            for name, shown in brought_along(path, values, self.scenario.cluster).items():
                _show(self.controls[name], shown)
        finally:
            self._loading = False

    def _value(self, path: str) -> object:
        value = self.controls[path].value
        return None if path == "training.global_batch" and value == 0 else value

    def _asked(self, moved: str) -> dict[str, object]:
        """The scenario dict that the controls spell.

        What training and layout have beyond the controls stays, but degrees that follow from others
        (hybrid sharding, uneven stages) only until a control of the layout or the cluster moves.
        """
        given = self.scenario.to_dict()
        asked: dict[str, dict[str, object]] = {
            "cluster": {}, "training": dict(given["training"]), "layout": dict(given["layout"]),
        }  # fmt: skip
        offload: dict[str, object] = {}
        for path in self.controls:
            section, key = path.split(".")
            if key.startswith("offload_"):
                offload[key.removeprefix("offload_")] = self._value(path)
            else:
                asked[section][key] = self._value(path)
        asked["layout"]["offload"] = offload
        following = ("data_parallel", "shard", "layers_per_stage")
        for key in following if moved.startswith(("layout.", "cluster.")) else following[:1]:
            del asked["layout"][key]
        return {"model": self.model.source, **asked}

    def _spell(self, moved: str) -> Scenario:
        """The scenario of the controls; what has none of its own and fits no more is left out."""
        asked = self._asked(moved)
        while True:
            try:
                return Scenario.from_dict(asked)
            except ScenarioError as problem:
                section, _, key = problem.field.partition(".")
                kept = asked.get(section)
                goes = problem.field == PICTURES and moved == "model"  # and its control with it
                shown = problem.field in self.controls and not goes
                if shown or not isinstance(kept, dict) or key not in kept:
                    raise
                del kept[key]

    def _show_problem(self, path: str, problem: ScenarioError) -> None:
        """The sentence at the control that it names, or at the one just moved."""
        named = problem.field if problem.field in self.controls else path
        at = self.model if named == "model" else self.controls[named]
        self._show_sentence(f"{problem} What is shown is the last scenario that worked.", at)

    def _show_sentence(self, sentence: str, at: Control | ModelField) -> None:
        """What is wrong, at its control and at the top, over what is shown still."""
        self._clear_problem()
        self._problem, self._problem_at = sentence, at
        at.show_error(sentence)
        self.feed.push({"problem": self._problem_blocks()})

    def _clear_problem(self) -> None:
        """Take the sentence away; what a field says of its own text stays."""
        if self._problem_at is not None:
            self._problem_at.show_error("")
        self._problem, self._problem_at = "", None
        self.feed.push({"problem": self._problem_blocks()})


def flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by path: `training.micro_batch`, `layout.offload_optimizer`.

    >>> flat({"layout": {"engine": "ddp", "offload": {"optimizer": "cpu"}}})
    {'layout.engine': 'ddp', 'layout.offload_optimizer': 'cpu'}
    """
    values: dict[str, Any] = {}
    for section, entries in given.items():
        if not isinstance(entries, Mapping) or section == "model":
            continue
        for key, value in entries.items():
            if key == "offload":
                values |= {f"{section}.offload_{name}": kind for name, kind in value.items()}
            else:
                values[f"{section}.{key}"] = value
    return values


def _show(control: Control, value: Any) -> None:
    """Show a value; one that a dropdown does not list (a custom card, a dict) is added to it."""
    dropdown = getattr(control, "dropdown", None)
    if dropdown is not None and value not in [option for _, option in dropdown.options]:
        dropdown.options = (*dropdown.options, ("as given", value))
    if control.value != value:
        control.value = value
    elif isinstance(control, Number):
        control.text = number_text(value)  # in place of text that could not be read
