"""What is trained: all parameters, or low-rank adapters over a frozen base, or as a link says."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from shardwise.core.trainable import Trainable
from shardwise.panels.controls import Choice, Number, _note

ALL, GIVEN = "all", "given"
_KINDS = [
    ("all parameters", ALL),
    ("LoRA: adapters, base in 16 bits", "16-bit"),
    ("QLoRA: adapters, base in NF4", "nf4"),
    ("adapters, base in int8", "int8"),
]
_TARGETS = [
    ("as peft chooses", "default"),
    ("all linear layers", "all-linear"),
]


class TrainableField(widgets.VBox):
    """A dropdown of kinds; adapters bring a rank and their targets.

    `value` is what a training's `trainable` takes. What the dropdowns cannot say (named targets,
    frozen parts) is kept as it was given, until another kind is chosen.
    """

    def __init__(self) -> None:
        """Starts with all parameters."""
        self._given: object = ALL
        self.kind = Choice("Trained", _KINDS, ALL)
        self.rank = Number("Adapter rank", 16, 1, 65_536, steps=[4, 8, 16, 32, 64, 128, 256])
        self.targets = Choice("Adapters on", _TARGETS, "default")
        self.errors = widgets.VBox([])
        super().__init__(layout=widgets.Layout(width="100%", min_width="0"))
        self.kind.on_change(self._show_kind)
        self._show_kind()

    @property
    def value(self) -> object:
        """`"all"`, a dict with `lora`, or what was given."""
        kind = self.kind.value
        if kind in (ALL, GIVEN):
            return ALL if kind == ALL else self._given
        return {
            "lora": {
                "rank": self.rank.value,
                "targets": [self.targets.value],
                "base": kind,
                "dropout": 0.0,
                "double_quantized": False,
            }
        }

    @value.setter
    def value(self, value: object) -> None:
        trainable = Trainable.from_dict(value)
        if trainable.everything:
            self._choose(ALL)
        elif _is_plain(trainable):
            self.rank.value = trainable.rank
            self.targets.value = trainable.targets[0]
            self._choose(trainable.base)
        else:
            self._given = value
            self.kind.dropdown.options = [*_KINDS, (f"as given: {trainable.name}", GIVEN)]
            self._choose(GIVEN)

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each new value."""
        for control in (self.kind, self.rank, self.targets):
            control.on_change(changed)

    def show_error(self, sentence: str) -> None:
        """Show a sentence under the field; an empty one removes it."""
        self.errors.children = (_note(sentence),) if sentence else ()

    def _choose(self, kind: str) -> None:
        if kind != GIVEN:
            self.kind.dropdown.options = _KINDS
        self.kind.value = kind

    def _show_kind(self) -> None:
        adapters = (self.rank, self.targets) if self.kind.value in _BASES else ()
        self.children = (self.kind, *adapters, self.errors)


def _is_plain(trainable: Trainable) -> bool:
    """Whether the dropdowns can say it."""
    known = trainable.base in _BASES and trainable.targets in [(name,) for _, name in _TARGETS]
    more = trainable.dropout or trainable.double_quantized
    return bool(trainable.rank and known and not more)


_BASES = tuple(base for _, base in _KINDS if base != ALL)
