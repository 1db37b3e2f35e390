"""Numbers at the edge: what people type, and how bytes and counts are shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.core.errors import ScenarioError
from shardwise.core.units import (
    GB,
    GIB,
    format_count,
    format_gb,
    format_gib,
    parse_number,
    parse_whole,
)

TYPED = [
    ("7B", 7e9),
    ("7b", 7e9),
    ("1.5k", 1500),
    ("0.5M", 500_000),
    ("2T", 2e12),
    ("2,5", 2.5),
    (" 42 ", 42),
    ("1 000 000", 1e6),
    ("1_000", 1000),
    ("1e3", 1000),
    ("1.e3", 1000),
    (".5", 0.5),
    ("+3", 3),
    (12, 12),
    (1.25, 1.25),
]
REFUSED = [
    "", "  ", "abc", "1,000", "1.000,5", "1,2,3", "nan", "inf", "-inf", "0x10", "1e400", "七",
    "٣", "１２", "1 2", "--1", "1.2.3", "7 BB", "<script>", "1k1", "1e", "None", "1\x002",
    math.nan, math.inf, -math.inf, True, False, -1, 10**30, -(10**30),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), TYPED)
def test_what_people_type_is_read(text: str | float, value: float) -> None:
    """Suffixes, decimal commas, grouped digits and exponents give the number that was meant."""
    assert parse_number(text, "field", minimum=0, maximum=1e13) == value


@pytest.mark.parametrize("text", REFUSED, ids=repr)
def test_what_is_no_number_is_refused(text: str | float) -> None:
    """Anything else raises one sentence that names the field and the range."""
    with pytest.raises(ScenarioError) as caught:
        parse_number(text, "price", minimum=0, maximum=1e13)
    assert caught.value.field == "price"
    assert "from 0 to 10 trillion" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_are_whole() -> None:
    """2.5 GPUs are refused with the nearest whole number as the hint."""
    assert parse_whole("8.0", "gpus", minimum=1, maximum=10) == 8
    with pytest.raises(ScenarioError, match="the nearest is 2"):
        parse_whole(2.5, "gpus", minimum=1, maximum=10)


@given(st.integers(1, 10**12))
def test_an_integer_comes_back_as_itself(number: int) -> None:
    """Text of a whole number is read exactly, not through a rounded float."""
    assert parse_whole(str(number), "field", minimum=1, maximum=10**12) == number
    assert parse_whole(number, "field", minimum=1, maximum=10**12) == number


@given(st.text(max_size=40) | st.integers() | st.floats() | st.booleans())
def test_parsing_gives_a_finite_number_in_range_or_a_scenario_error(text: str | float) -> None:
    """Whatever is typed, nothing but a number in range or a ScenarioError comes out."""
    try:
        number = parse_number(text, "field", minimum=1, maximum=1e9)
    except ScenarioError as error:
        assert str(error).startswith("field is ")
    else:
        assert 1 <= number <= 1e9


@given(st.floats(0, 1e18))
def test_formatted_bytes_say_their_unit_and_their_size(size: float) -> None:
    """The printed number times its unit is the size, to the two or three digits shown."""
    for text, unit in ((format_gib(size), GIB), (format_gb(size), GB)):
        number, name = text.rsplit(" ", 1)
        assert name == ("GiB" if unit == GIB else "GB")
        if number.startswith("<"):
            assert size < 0.001 * unit
            continue
        shown = float(number.replace(",", "")) * unit
        places = 0.0051 if size >= 0.0995 * unit else 0.00051  # half of the last place shown
        assert shown == pytest.approx(size, rel=0.0051, abs=places * unit)


def test_the_two_units_are_kept_apart() -> None:
    """112e9 bytes are 112 GB and 104.3 GiB."""
    assert format_gb(112e9) == "112 GB"
    assert format_gib(112e9) == "104.3 GiB"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (999, "999"), (1000, "1 k"), (9_996, "10.0 k"), (99_960, "100 k"), (999_400, "999 k"),
        (999_500, "1.00 M"), (999_885_952, "1.00 B"), (10**9, "1 B"), (1_996_000_000, "2.00 B"),
        (999_900_000_000, "1.00 T"), (12_340_000, "12.3 M"), (70 * 10**9, "70 B"),
    ],
)  # fmt: skip
def test_a_count_rounded_up_to_the_next_unit_takes_it(count: int, shown: str) -> None:
    """Python's own round-half-even to three figures, then the unit: never a thousand of one."""
    assert format_count(count) == shown


@pytest.mark.parametrize(
    ("size", "gib", "gb"),
    [
        (0.0994, "0.099 GiB", "0.099 GB"), (0.0996, "0.10 GiB", "0.1 GB"),
        (9.994, "9.99 GiB", "9.99 GB"), (9.996, "10.0 GiB", "10 GB"), (999.96, "1,000.0 GiB", ""),
    ],
)  # fmt: skip
def test_a_size_rounded_up_to_ten_has_the_places_of_ten(size: float, gib: str, gb: str) -> None:
    """What is shown as 10 has one place, as 10 itself has."""
    assert format_gib(size * GIB) == gib
    assert not gb or format_gb(size * GB) == gb


@given(st.integers(1, 10**15))
def test_counts_are_shown_to_three_figures(count: int) -> None:
    """A count's short form keeps its size."""
    text = format_count(count)
    factor = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text.strip()[-1], 1)
    digits = text.strip().rstrip("KkMBT ").replace(",", "")
    assert float(digits) * factor == pytest.approx(count, rel=0.06)
