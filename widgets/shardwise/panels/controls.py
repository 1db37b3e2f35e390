"""The controls of a scenario: labelled fields, one for each value that can be set.

A control knows its path in the scenario dict (`training.micro_batch`), shows an error under itself,
and calls one function when its value changes. Nothing else is stored here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

import ipywidgets as widgets

from shardwise.panels.number_field import NumberField

Options = Sequence[tuple[str, object]]


class Choice(widgets.VBox):
    """A labelled dropdown with room for one error sentence under it."""

    def __init__(self, label: str, options: Options, value: object, help: str = "") -> None:
        """`options` are (label, value) pairs."""
        self.dropdown = widgets.Dropdown(
            options=list(options),
            value=value,
            description=label,
            tooltip=help,
            layout=widgets.Layout(width="auto", min_width="0"),
        )
        self.dropdown.add_class("sw-choice")  # an arrow in the theme's ink
        self.dropdown.add_class("sw-over")
        super().__init__([self.dropdown], layout=widgets.Layout(width="100%", min_width="0"))

    @property
    def value(self) -> object:
        """The chosen value."""
        return self.dropdown.value

    @value.setter
    def value(self, value: object) -> None:
        self.dropdown.value = value

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each new choice."""
        self.dropdown.observe(lambda _: changed(), "value")

    def show_error(self, sentence: str) -> None:
        """Show a sentence under the dropdown; an empty one removes it."""
        self.children = (self.dropdown, _note(sentence)) if sentence else (self.dropdown,)


class Number(NumberField):
    """A `NumberField` with the interface that the other controls have."""

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each new valid number."""
        self.observe(lambda _: changed(), "value")

    def show_error(self, sentence: str) -> None:
        """Show a sentence under the field."""
        self.error = sentence


class Flag(widgets.VBox):
    """A labelled checkbox with room for one error sentence under it."""

    def __init__(self, label: str, value: bool) -> None:
        """`label` says what True means."""
        self.box = widgets.Checkbox(
            value=value, description=label, indent=False, layout=widgets.Layout(width="100%")
        )
        super().__init__([self.box])

    @property
    def value(self) -> bool:
        """Whether the box is ticked."""
        return bool(self.box.value)

    @value.setter
    def value(self, value: bool) -> None:
        self.box.value = value

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each tick."""
        self.box.observe(lambda _: changed(), "value")

    def show_error(self, sentence: str) -> None:
        """Show a sentence under the box; an empty one removes it."""
        self.children = (self.box, _note(sentence)) if sentence else (self.box,)


class Control(Protocol):
    """What a panel asks of a control."""

    value: Any

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each new value."""

    def show_error(self, sentence: str) -> None:
        """Show a sentence at the control; an empty one removes it."""


def _note(sentence: str) -> widgets.HTML:
    text = f'<p class="sw-error" role="alert" style="white-space:normal">{escape(sentence)}</p>'
    return widgets.HTML(f'<div class="shardwise">{text}</div>')


def _hint(sentence: str) -> widgets.HTML:
    text = f'<p class="sw-help" style="white-space:normal">{escape(sentence)}</p>'
    return widgets.HTML(f'<div class="shardwise">{text}</div>')


@dataclass(frozen=True)
class Group:
    """Controls under one heading, by their path in the scenario dict."""

    title: str
    controls: Mapping[str, Control]

    @property
    def widget(self) -> widgets.VBox:
        """Heading and controls below each other."""
        return widgets.VBox(
            list(self.controls.values()), layout=widgets.Layout(width="100%", min_width="0")
        )


def choices(names: Mapping[str, Any]) -> Options:
    """(label, key) pairs of a catalogue: names shown, keys kept."""
    return [(entry.name, key) for key, entry in names.items()]
