"""Predict, then reconcile: the number is kept, the table tells who was off by how much."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.core.errors import ScenarioError
from shardwise.lab.predictions import Book, Row, format_error, relative_error


def test_prediction_estimate_and_measurement_stand_in_one_table():
    """One row a quantity, with unit and both errors, as text and as HTML with headers."""
    book = Book()
    book.predict("bytes sent", "3M")
    book.predict("messages", 6)
    book.reconcile("messages", 6, estimate=6)
    table = book.reconcile("bytes sent", 2_000_000, estimate=2_000_000, unit="B")
    assert [row.name for row in table.rows] == ["messages", "bytes sent"]
    lines = repr(table).splitlines()
    assert lines[2].split() == ["bytes", "sent", "3,000,000", "B", "2,000,000", "B", "2,000,000",
                                "B", "+50", "%", "exact", "Shardwise"]  # fmt: skip
    markup = table._repr_html_()
    assert markup.count("<tr>") == 3 and '<th scope="row">messages</th>' in markup


def test_the_table_says_whose_estimate_it_is():
    """A lesson's formula is not passed off as Shardwise's model."""
    book = Book()
    book.predict("sent", 1)
    table = book.reconcile("sent", 2, estimate=2, by="ring")
    assert repr(table).splitlines()[1].endswith("ring") and "Shardwise" not in repr(table)


def test_what_was_not_predicted_cannot_be_reconciled():
    """The prediction comes first; a misspelled name is told the nearest."""
    book = Book()
    with pytest.raises(ScenarioError, match=r"predict\(...\) comes first"):
        book.reconcile("bytes", 5)
    book.predict("bytes sent", 5)
    with pytest.raises(ScenarioError, match="the nearest is 'bytes sent'"):
        book.reconcile("bytes snet", 5)


def test_a_prediction_stays_as_it_was_once_measured():
    """Changing one's mind is free before the run and refused after it."""
    book = Book()
    book.predict("peak", 1)
    book.predict("peak", 2)
    book.reconcile("peak", 3)
    with pytest.raises(ScenarioError, match="the 2 you predicted"):
        book.predict("peak", 3)
    assert "you predicted 2" in book.predict("peak", 2)  # the cell was run again
    assert book.reconcile("peak", 3).rows[0].predicted == 2


@pytest.mark.parametrize("value", [None, ..., "many", "", float("nan"), float("inf"), True, [1]])
def test_a_prediction_is_a_number(value):
    """A stub left as it was, words and infinities are refused with the quantity's name."""
    with pytest.raises(ScenarioError, match="peak is"):
        Book().predict("peak", value)


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_a_prediction_has_a_name(name):
    """A nameless number could not be found again."""
    with pytest.raises(ScenarioError, match="a few words"):
        Book().predict(name, 1)


@pytest.mark.parametrize("value", [None, ..., "?", math.nan, math.inf, [1, 2]])
def test_a_measurement_is_a_finite_number(value):
    """What was not measured does not become a row."""
    book = Book()
    book.predict("peak", 1)
    with pytest.raises(ScenarioError, match="run the cell that measures it"):
        book.reconcile("peak", value)
    assert book.rows == {}


def test_numpy_scalars_are_measurements():
    """A number that came back as a NumPy scalar is taken."""
    book = Book()
    book.predict("peak", 4)
    assert book.reconcile("peak", np.float32(4)).rows[0].predicted_error == 0


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_errors_are_relative_to_the_measurement(value, measured):
    """measured + error x |measured| gives the value back; equal numbers have no error."""
    error = relative_error(value, measured)
    if measured == 0:
        assert error in (0.0, math.inf)
    elif abs(measured) > 1e-6:
        assert measured + error * abs(measured) == pytest.approx(value, abs=1e-5, rel=1e-6)
    row = Row("x", value, measured, value)
    assert row.predicted_error == row.estimate_error


def test_errors_are_written_with_their_sign():
    """Too high is +, too low is -, nothing is exact."""
    assert [format_error(e) for e in (0.0, 0.05, -0.5, math.inf)] == [
        "exact",
        "+5.0 %",
        "-50 %",
        "measured 0",
    ]


def test_markup_in_a_name_is_shown_and_not_obeyed():
    """A quantity's name cannot bring tags into the table."""
    book = Book()
    book.predict("<b>peak", 1)
    assert "<b>" not in book.reconcile("<b>peak", 1)._repr_html_()
