"""A number that people type or slide."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorder import Recorder

from shardwise.core.errors import ScenarioError
from shardwise.panels.number_field import NumberField, number_text

BAD = [
    "", " ", "abc", "-1", "0", "1025", "1e30", "NaN", "inf", "-inf", "1,000", "1.5", "2,5", "٣",
    "８", "0x10", "1_0_0", "--4", "1/2", "<script>alert(1)</script>", "1; drop", "4 GPUs",
    "9" * 400, "\x00", "1e-5", "+", ".", "e5", "½", "∞",
]  # fmt: skip


def made(**options: Any) -> NumberField:
    """GPUs from 1 to 1024."""
    return NumberField("GPUs", 8, 1, 1024, steps=[1, 2, 4, 8, 16], unit="GPUs", **options)


def typed(field: NumberField, text: str) -> None:
    """As a message of the page arrives."""
    field._moved(field, {"text": text}, [])


@pytest.mark.parametrize("text", BAD)
def test_bad_text_is_explained_and_the_value_kept(text: str) -> None:
    """The text stays to be corrected; the last good number stays in use."""
    field = made()
    typed(field, "16")
    typed(field, text)
    assert field.text == text
    assert field.value == 16
    assert "GPUs is" in field.error
    typed(field, "4")
    assert (field.value, field.error) == (4, "")


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2), (" 16 ", 16), ("1k", 1000), ("1 024", 1024), ("4,0", 4)]
)
def test_what_the_parser_reads_the_field_reads(text: str, value: int) -> None:
    """The field accepts exactly what `parse_number` accepts."""
    field = made()
    typed(field, text)
    assert (field.value, field.text, field.error) == (value, text, "")
    assert isinstance(field.value, int)


def test_a_move_is_answered_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A good move sends no message back, so no slider is pulled back by an old one."""
    field = made()
    sent = Recorder(field, monkeypatch)
    for text in ("9", "10", "11"):
        typed(field, text)
    assert sent.messages == []


def test_an_error_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the sentence is sent, not the text that is already in the box."""
    field = made()
    sent = Recorder(field, monkeypatch)
    typed(field, "many")
    assert [set(state) for state in sent.states] == [{"error"}]


def test_python_sets_and_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value set in a cell is one message with its text, also after the reader's moves."""
    field = made()
    typed(field, "16")
    sent = Recorder(field, monkeypatch)
    field.value = 8
    assert sent.states == [{"text": "8"}]


def test_python_setting_clears_an_error() -> None:
    """A good value from a cell replaces bad text."""
    field = made()
    typed(field, "many")
    field.value = 4
    assert (field.text, field.error) == ("4", "")


def test_setting_the_same_value_over_bad_text_repairs_it() -> None:
    """`value = value` is a way to undo bad text."""
    field = made()
    typed(field, "many")
    field.text = number_text(field.value)
    assert (field.text, field.error) == ("8", "")


@pytest.mark.parametrize("value", [0, 1025, 2.5, float("nan"), "x"])
def test_a_bad_value_from_python_raises(value: object) -> None:
    """A cell gets the error at once and the field keeps its number."""
    field = made()
    with pytest.raises(ScenarioError):
        field.value = value
    assert (field.value, field.text) == (8, "8")


def test_observers_hear_each_good_number_once() -> None:
    """Bad text and repeated numbers are no change."""
    field = made()
    heard: list[float] = []
    field.observe(lambda change: heard.append(change["new"]), "value")
    for text in ("9", "nine", "9", "9.0", "10"):
        typed(field, text)
    assert heard == [9, 10]


def test_a_start_value_out_of_range_is_refused() -> None:
    """A field never begins with a wrong number."""
    with pytest.raises(ScenarioError):
        NumberField("GPUs", 0, 1, 8)


def test_messages_of_other_kinds_are_ignored() -> None:
    """A message without text changes nothing."""
    field = made()
    for message in ({}, {"text": 5}, {"text": None}, {"other": "9"}):
        field._moved(field, message, [])
    assert field.value == 8


@given(st.integers(-(10**12), 10**12).map(lambda thousandths: thousandths / 1000))
def test_the_text_of_a_number_is_read_back(value: float) -> None:
    """What the field shows for a number means that number."""
    field = NumberField("x", 0, -1e12, 1e12, whole=False)
    field.value = value
    typed(field, field.text)
    assert field.value == value
