"""Choosing the model: one of the catalogue, a pasted or uploaded config.json, or just its size."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets

from shardwise.core import catalogue
from shardwise.core.config_text import read_config
from shardwise.core.errors import ScenarioError
from shardwise.core.hub_names import nearest_model, repository
from shardwise.core.model import Model
from shardwise.panels.controls import Choice, Number, _hint, _note

SIZES = [digits * 10**power for power in range(7, 11) for digits in range(10, 100)]
"""The slider's stops: two digits from 100 million to 990 billion."""

_UNTIL = "Paste or upload one: until then everything shown is of the model chosen before."

BY_NAME, BY_SIZE, BY_CONFIG = "name", "parameters", "config"


class ModelField(widgets.VBox):
    """The model's source: a dropdown of ways, and the input of the chosen way.

    `source` is what a scenario's `model` takes. A config that cannot be read leaves it as it was
    and says why under the box; the text stays for correction.
    """

    def __init__(self) -> None:
        """Starts with the catalogue's default."""
        self.source: object = "llama-3-8b"
        self._changed: Callable[[], None] = lambda: None
        self._refused: Callable[[str], None] = self.show_error
        self._loading = False
        ways = [
            ("of the catalogue", BY_NAME),
            ("only the number of parameters", BY_SIZE),
            ("a config.json", BY_CONFIG),
        ]
        self.way = Choice("Model", ways, BY_NAME)
        names = catalogue.model_names()
        self.name = Choice("Name", [(name, name) for name in names], self.source)
        self.size = Number("Parameters", 7 * 10**9, 1e6, 1e14, steps=SIZES, help="7B, 350M, 1.3e9")
        self.text = widgets.Textarea(
            description="config.json",
            placeholder="paste a Hugging Face config.json here",
            continuous_update=False,
            layout=widgets.Layout(width="auto", height="160px", min_width="0"),
        )
        self.text.add_class("sw-over")
        self.upload = widgets.FileUpload(
            accept=".json", multiple=False, description="Upload a config.json",
            layout=widgets.Layout(width="auto"),
        )  # fmt: skip
        self.errors = widgets.VBox([])
        super().__init__(layout=widgets.Layout(width="100%", min_width="0"))
        self._show_way()
        self.way.on_change(self._way_changed)
        self.name.on_change(lambda: self._take(self.name.value))
        self.size.on_change(lambda: self._take({"parameters": self.size.value}))
        self.text.observe(lambda change: self._read(change["new"]), "value")
        self.upload.observe(self._uploaded, "value")

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each new source."""
        self._changed = changed

    def on_refused(self, refused: Callable[[str], None]) -> None:
        """Call `refused` with the sentence after a config that cannot be read."""
        self._refused = refused

    def show(self, source: object) -> None:
        """Show a source that was set elsewhere, without calling back."""
        self._loading = True
        try:
            self.source = source
            if isinstance(source, str):
                self.way.value, self.name.value = BY_NAME, source
            elif isinstance(source, Mapping) and set(source) == {"parameters"}:
                self.way.value = BY_SIZE
                self.size.text = str(source["parameters"])
            else:
                self.way.value = BY_CONFIG
                self.text.value = json.dumps(source, indent=1)
        finally:
            self._loading = False
        self._show_way()

    def show_error(self, sentence: str) -> None:
        """Show a sentence under the model; an empty one removes it."""
        self.errors.children = (_note(sentence),) if sentence else ()

    def _way_changed(self) -> None:
        self._show_way()
        if self._loading:
            return
        self.show_error("")
        if self.way.value == BY_NAME:
            self._take(self.name.value)
        elif self.way.value == BY_SIZE:
            self._take({"parameters": self.size.value})
        elif self.text.value:
            self._read(self.text.value)
        else:
            self.errors.children = (_hint(_UNTIL),)

    def _show_way(self) -> None:
        inputs = {
            BY_NAME: [self.name],
            BY_SIZE: [self.size],
            BY_CONFIG: [self.text, self.upload],
        }
        self.children = (self.way, *inputs[str(self.way.value)], self.errors)

    def _read(self, text: str | bytes) -> None:
        if self._loading or not text:
            return
        try:
            if isinstance(text, str):
                refuse_name(text)
            config = read_config(text)
            Model.from_config(config)
        except ScenarioError as problem:
            self._refused(f"{problem} What is shown is still the last model that worked.")
            return
        self._take(dict(config))

    def _uploaded(self, change: Mapping[str, Any]) -> None:
        if change["new"]:
            self._read(bytes(change["new"][0]["content"]))

    def _take(self, source: object) -> None:
        if self._loading:
            return
        self.source = source
        self.show_error("")
        self._changed()


def refuse_name(text: str) -> None:
    """Say what to do with a model's name or size where its config.json belongs.

    Raises:
        ScenarioError: a hub id, a page's address, a catalogue name or a size such as 7B.

    >>> refuse_name("meta-llama/Meta-Llama-3-8B")
    Traceback (most recent call last):
        ...
    shardwise.core.errors.ScenarioError: config.json is 'meta-llama/Meta-Llama-3-8B'; \
allowed: the text of a model's config.json; this is a name, and nothing is downloaded: \
the catalogue's nearest is 'llama-3-8b'.
    """
    typed = text.strip()
    name = repository(typed) or (typed if typed in catalogue.model_names() else "")
    if name:
        near = nearest_model(name, catalogue.model_names())
        there = f"the catalogue's nearest is {near!r}" if near else "copy the file's text here"
        hint = f"this is a name, and nothing is downloaded: {there}"
    elif _SIZE.fullmatch(typed):
        hint = "for a size choose 'only the number of parameters'"
    else:
        return
    raise ScenarioError("config.json", name or typed, "the text of a model's config.json", hint)


_SIZE = re.compile(r"\d+([.,]\d+)?\s*[kKmMbBgGtT]?")
