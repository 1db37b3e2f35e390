"""The one kind of error: a sentence that names the field, the value and what is allowed."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.core.errors import ScenarioError, shown, unknown_key

NAMES = ["a100-sxm-80gb", "h100-sxm-80gb", "rtx-4090"]


def test_it_is_a_value_error_with_its_parts() -> None:
    """Panels read the attributes, people read the sentence."""
    error = ScenarioError("layout.shard", 3, "a divisor of 8", "try 4")
    assert isinstance(error, ValueError)
    assert (error.field, error.value, error.allowed, error.hint) == (
        "layout.shard", 3, "a divisor of 8", "try 4",
    )  # fmt: skip
    assert str(error) == "layout.shard is 3; allowed: a divisor of 8; try 4."


def test_without_a_hint_the_sentence_ends() -> None:
    """No empty clause is left at the end."""
    assert str(ScenarioError("nodes", 0, "1 or more")) == "nodes is 0; allowed: 1 or more."


def test_it_survives_pickling() -> None:
    """A worker process can hand it to its parent."""
    error = pickle.loads(pickle.dumps(ScenarioError("nodes", 0, "1 or more", "use 1")))
    assert str(error) == "nodes is 0; allowed: 1 or more; use 1."


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("h100", "h100-sxm-80gb"),
        ("H100-SXM", "h100-sxm-80gb"),
        ("a100-sxm-80g", "a100-sxm-80gb"),
        ("rtx4090", "rtx-4090"),
        ("4090", "rtx-4090"),
    ],
)
def test_the_nearest_name_is_named(typed: str, nearest: str) -> None:
    """A beginning, a slip of the finger and a middle part find the name that was meant."""
    assert f"the nearest is {nearest!r}" in str(unknown_key("cluster.gpu", typed, NAMES))


@pytest.mark.parametrize("typed", ["zzzz", "", " ", None, 3, ["h100"], {"a": 1}])
def test_no_name_is_made_up(typed: object) -> None:
    """Where nothing is near, the sentence lists what there is and hints at nothing."""
    error = unknown_key("cluster.gpu", typed, NAMES)
    assert error.hint == ""
    assert "a100-sxm-80gb, h100-sxm-80gb, rtx-4090" in str(error)


def test_long_lists_are_cut() -> None:
    """A hundred names are not printed, their number is."""
    text = str(unknown_key("model", "zzz", [f"model-{i}" for i in range(100)]))
    assert "and 88 more" in text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_a_value_is_quoted_on_one_visible_line(value: object) -> None:
    """Whatever the value, the quote has at most 60 characters and nothing that breaks a page."""
    text = shown(value)
    assert len(text) <= 60
    assert text.isprintable() or not set(text) & set("\n\r\t\x00\x1b")


def test_huge_numbers_and_nested_values_are_summarized() -> None:
    """10**5000 is named by its length (printing it would raise), a big dict by its entries."""
    assert shown(10**5000) == "a whole number of about 5000 digits"
    assert shown([10**5000]) == "a list that cannot be shown"
    assert shown({str(i): i for i in range(99)}) == "a dict of 99 entries"
