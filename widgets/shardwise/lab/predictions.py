"""Predict, then measure: the learner's number is kept before the run and both stand in one table.

The predictions of a notebook lie in one book in its memory; a test makes its own.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import Any

from shardwise.core.errors import ScenarioError, unknown_key
from shardwise.core.units import parse_number

_LIMIT = 1e24


@dataclass(frozen=True)
class Row:
    """One quantity: what was predicted, what is estimated and by whom, what was measured."""

    name: str
    predicted: float
    measured: float
    estimate: float | None = None
    unit: str = ""
    by: str = "Shardwise"

    @property
    def predicted_error(self) -> float:
        """How far the prediction was off, relative to the measurement."""
        return relative_error(self.predicted, self.measured)

    @property
    def estimate_error(self) -> float | None:
        """How far the estimate was off, likewise."""
        return None if self.estimate is None else relative_error(self.estimate, self.measured)


@dataclass(frozen=True)
class Reconciliation:
    """The table: one row a quantity, shown as HTML or text."""

    rows: tuple[Row, ...]

    def cells(self) -> list[list[str]]:
        """Header and rows as text."""
        head = [
            "quantity",
            "you predicted",
            "estimate",
            "measured",
            "your error",
            "its error",
            "of",
        ]
        return [head, *[_cells(row) for row in self.rows]]

    def __repr__(self) -> str:
        """Columns aligned, numbers to the right."""
        cells = self.cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = []
        for row in cells:
            texts = [row[0].ljust(widths[0])]
            texts += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join(texts).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        top = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in head)
        rows = "".join(
            f'<tr><th scope="row">{html.escape(row[0])}</th>'
            + "".join(f"<td>{html.escape(text)}</td>" for text in row[1:])
            + "</tr>"
            for row in body
        )
        caption = "<caption>Predicted, estimated, measured</caption>"
        return f"<table>{caption}<thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>"


@dataclass
class Book:
    """Predictions and what became of them."""

    predictions: dict[str, float] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)

    def predict(self, name: str, value: float | str) -> str:
        """Keep a number before it is measured; afterwards the first one stays.

        Raises:
            ScenarioError: not a number, or the quantity was measured already.
        """
        if not isinstance(name, str) or not name.strip():
            raise ScenarioError("name", name, "a few words")
        if value is None or value is Ellipsis:
            raise ScenarioError(
                name, value, "your number", "a guess is fine: the point is to have one"
            )
        number = parse_number(value, name, minimum=-_LIMIT, maximum=_LIMIT)
        if name in self.rows and number == self.predictions[name]:
            return f"{name}: you predicted {format_value(number)} before it was measured"
        if name in self.rows:
            kept = format_value(self.predictions[name])
            raise ScenarioError(
                name, value, f"the {kept} you predicted before it was measured",
                "restart the notebook to try again",
            )  # fmt: skip
        self.predictions[name] = number
        return f"{name}: you predict {format_value(number)}"

    def reconcile(
        self,
        name: str,
        measured: float,
        estimate: float | None = None,
        unit: str = "",
        by: str = "Shardwise",
    ) -> Reconciliation:
        """Put prediction, estimate and measurement side by side, with the rows so far.

        `by` says whose the estimate is: Shardwise's memory model, or a formula of the lesson.

        Raises:
            ScenarioError: nothing was predicted under this name, or it was not measured.
        """
        if name not in self.predictions:
            if self.predictions:
                raise unknown_key("prediction", name, self.predictions)
            raise ScenarioError(
                "prediction", name, "a name you predicted", "predict(...) comes first"
            )
        value = _finite(name, measured)
        guess = None if estimate is None else _finite(f"the estimate of {name}", estimate)
        self.rows.pop(name, None)
        self.rows[name] = Row(name, self.predictions[name], value, guess, unit, by)
        return Reconciliation(tuple(self.rows.values()))


def _finite(name: str, value: Any) -> float:
    """A measured number; NumPy's and torch's scalars too."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ScenarioError(name, value, "a measured number", "run the cell that measures it first")
    return number


def relative_error(value: float, measured: float) -> float:
    """(value - measured) / measured; 0 when both are 0, infinite when only the measurement is.

    >>> relative_error(12, 10)
    0.2
    """
    if value == measured:
        return 0.0
    return math.inf if measured == 0 else (value - measured) / abs(measured)


def format_value(value: float, unit: str = "") -> str:
    """A number with its unit, whole and large ones without a point.

    >>> format_value(16640, "elements"), format_value(0.28571), format_value(1.5, "s")
    ('16,640 elements', '0.2857', '1.5 s')
    """
    whole = value == round(value) or abs(value) >= 10_000
    text = f"{value:,.0f}" if whole else f"{value:,.4g}"
    return f"{text} {unit}" if unit else text


def format_error(error: float | None) -> str:
    """A relative error as people read it; exact is said so.

    >>> format_error(0.0), format_error(0.2), format_error(-0.04321), format_error(-0.000144)
    ('exact', '+20 %', '-4.3 %', '-0.014 %')
    """
    if error is None:
        return ""
    if error == 0:
        return "exact"
    if math.isinf(error):
        return "measured 0"
    percent = 100 * error
    if abs(percent) < 0.1:
        return f"{percent:+.2g} %"
    return f"{percent:+.1f} %" if abs(percent) < 10 else f"{percent:+,.0f} %"


def _cells(row: Row) -> list[str]:
    return [
        row.name,
        format_value(row.predicted, row.unit),
        "" if row.estimate is None else format_value(row.estimate, row.unit),
        format_value(row.measured, row.unit),
        format_error(row.predicted_error),
        format_error(row.estimate_error),
        "" if row.estimate is None else row.by,
    ]


book = Book()  # of this notebook
predict = book.predict
reconcile = book.reconcile
