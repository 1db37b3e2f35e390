"""A number that people type or slide: labelled, explained, and never a wrong value in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anywidget
import traitlets

from shardwise.core.errors import ScenarioError
from shardwise.core.units import parse_number
from shardwise.panels.assets import STYLE, script


def number_text(value: float) -> str:
    """A number as the field shows it, and as `parse_number` reads it back.

    >>> number_text(4096), number_text(2.5), number_text(7e9)
    ('4096', '2.5', '7000000000')
    """
    whole = float(value).is_integer() and abs(value) < 2**53
    return str(int(value)) if whole else repr(float(value))


class NumberField(anywidget.AnyWidget):
    """A text box and a slider over the usual steps, as one model that sends one message a move.

    `value` is always a number in range. Text that is not one stays in the box, `error` says why,
    and `value` keeps the last good number. Setting `value` from Python shows it; a bad one raises.

    Example:
        gpus = NumberField("GPUs per node", 8, 1, 16, steps=[1, 2, 4, 8, 16])
        gpus.observe(lambda change: print(change["new"]), "value")
    """

    _esm = script("elements.js", "number_field.js")
    _css = STYLE
    value = traitlets.Any()  # checked by `_checked_value`, whose errors people can read
    label = traitlets.Unicode().tag(sync=True, echo_update=False)
    text = traitlets.Unicode().tag(sync=True, echo_update=False)
    error = traitlets.Unicode().tag(sync=True, echo_update=False)
    unit = traitlets.Unicode().tag(sync=True, echo_update=False)
    help = traitlets.Unicode().tag(sync=True, echo_update=False)
    steps = traitlets.List().tag(sync=True, echo_update=False)
    disabled = traitlets.Bool(False).tag(sync=True, echo_update=False)

    def __init__(
        self,
        label: str,
        value: float,
        minimum: float,
        maximum: float,
        *,
        steps: Sequence[float] = (),
        unit: str = "",
        help: str = "",
        whole: bool = True,
        field: str | None = None,
    ) -> None:
        """`steps` are the slider's stops; `field` names the number in errors (default: label)."""
        self.minimum = minimum
        self.maximum = maximum
        self.whole = whole
        self.field = field or label
        number = self._read(value)
        super().__init__(
            value=number,
            text=number_text(number),
            label=label,
            unit=unit,
            help=help,
            steps=[self._read(step) for step in steps],
        )
        self.on_msg(self._moved)

    def _moved(self, _: object, message: Mapping[str, object], __: object) -> None:
        """What the reader typed or chose; `set_state` takes it without sending it back."""
        if isinstance(text := message.get("text"), str):
            self.set_state({"text": text})

    def _read(self, raw: str | float) -> float:
        number = parse_number(
            raw, self.field, minimum=self.minimum, maximum=self.maximum, whole=self.whole
        )
        return int(number) if self.whole else number

    @traitlets.validate("value")
    def _checked_value(self, proposal: traitlets.Bunch) -> float:
        return self._read(proposal["value"])

    @traitlets.observe("value")
    def _show_value(self, change: traitlets.Bunch) -> None:
        self.error = ""
        if self._text_value() != change["new"]:
            self.text = number_text(change["new"])

    @traitlets.observe("text")
    def _read_text(self, change: traitlets.Bunch) -> None:
        try:
            number = self._read(change["new"])
        except ScenarioError as problem:
            self.error = str(problem)
        else:
            self.error = ""
            self.value = number

    def _text_value(self) -> float | None:
        try:
            return self._read(self.text)
        except ScenarioError:
            return None
