"""One message for everything that a page shows."""

from __future__ import annotations

import json
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorder import Recorder

from shardwise.panels.feed import Feed, plain

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_whatever_is_fed_is_json(value: object) -> None:
    """NaN and infinity never reach the connection, which they would end."""
    json.dumps(plain(value), allow_nan=False)


@given(JSON)
def test_plain_changes_nothing_else(value: object) -> None:
    """What is finite stays as it is."""
    text = json.dumps(value)
    if "NaN" not in text and "Infinity" not in text:
        assert plain(value) == value


def test_numpy_becomes_numbers() -> None:
    """Rows of the core may hold NumPy scalars and arrays."""
    fed = plain({"a": np.float32(1.5), "b": np.arange(3), "c": np.array([1.0, math.inf])})
    assert fed == {"a": 1.5, "b": [0, 1, 2], "c": [1.0, None]}


def test_what_cannot_be_shown_is_refused() -> None:
    """An object that is no row, text or number is our own bug, named at once."""
    with pytest.raises(TypeError, match="Decimal"):
        Feed({"x": Decimal(1)})


def test_a_push_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten entries leave in one update."""
    feed = Feed()
    sent = Recorder(feed, monkeypatch)
    feed.push({f"chart{i}": [{"x": i}] for i in range(10)})
    assert len(sent.messages) == 1
    assert set(sent.states[0]) == {"data"}


def test_an_equal_push_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent when nothing differs."""
    feed = Feed({"a": [{"x": 1}]})
    sent = Recorder(feed, monkeypatch)
    feed.push({"a": [{"x": 1}]})
    assert sent.messages == []


def test_a_push_keeps_the_other_entries() -> None:
    """Panels push their own entries only."""
    feed = Feed({"a": 1, "b": 2})
    feed.push({"b": 3})
    assert feed.data == {"a": 1, "b": 3}


def test_feeds_do_not_hear_each_other() -> None:
    """Two panels in one notebook have channels of their own."""
    assert Feed().channel != Feed().channel
