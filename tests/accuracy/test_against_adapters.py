"""LoRA estimates against traced steps of real peft models, at the accuracy that was reached."""

from __future__ import annotations

from statistics import median

import pytest
from compare_adapters import Compared, compare
from trace_adapters import CASES, name_of


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    """Every traced case."""
    return compare()


def test_every_case_was_traced(compared: list[Compared]) -> None:
    """The file holds the cases that the script names: engines, bases, dropout, checkpointing."""
    assert {each.case["case"] for each in compared} == {name_of(case) for case in CASES}
    assert len(compared) >= 25


def test_peaks_agree_with_the_traces(compared: list[Compared]) -> None:
    """Median below 0.01 %, all within 1 %."""
    errors = [abs(each.peak_error) for each in compared]
    assert median(errors) < 0.0001
    assert max(errors) < 0.01


def test_steady_bytes_agree_with_the_traces(compared: list[Compared]) -> None:
    """Base, adapters and their states between steps, within 0.3 %."""
    assert max(abs(each.steady_error) for each in compared) < 0.003
