"""Checks: every property with what was expected and got; not run is failed."""

from __future__ import annotations

import pytest

from shardwise.core.errors import ScenarioError
from shardwise.lab import checks
from shardwise.lab.checks import CheckFailed, at_most, check, exact, exercise, summary


@pytest.fixture(autouse=True)
def two_exercises(monkeypatch):
    """A lesson of the tests' own, and learners' mode to begin with."""
    monkeypatch.setattr(checks, "_exercises", {})
    monkeypatch.setattr(checks, "_reports", {})
    monkeypatch.delenv("SHARDWISE_CHECK", raising=False)

    @exercise("L99.sum")
    def _sum(result):
        yield exact("the sum", result["sum"], 6, "add all ranks")
        yield at_most("the error", result["error"], 1e-5)

    @exercise("L99.other")
    def _other(result):
        return []


def test_a_right_answer_passes_property_by_property():
    """Each property is listed with a tick."""
    report = check("L99.sum", {"sum": 6, "error": 1e-9})
    assert report.ok and repr(report) == "L99.sum: passed\n  ✓ the sum\n  ✓ the error"


def test_a_wrong_answer_says_expected_got_and_hint():
    """What fails is explained, what holds is still ticked."""
    report = check("L99.sum", {"sum": 5, "error": 1e-9})
    assert not report.ok
    assert "✗ the sum\n      expected 6, got 5\n      hint: add all ranks" in repr(report)
    assert "✓ the error" in repr(report)


@pytest.mark.parametrize("stub", [None, ...])
def test_a_cell_that_was_not_run_counts_as_failed(stub):
    """The stub's own value is no answer."""
    report = check("L99.sum", stub)
    assert not report.ok and "run it first" in repr(report)


@pytest.mark.parametrize("wreck", [{}, 7, {"sum": 6, "error": None}])
def test_a_result_of_the_wrong_shape_is_a_failed_property_and_not_a_crash(wreck):
    """Whatever comes, the report comes too."""
    report = check("L99.sum", wreck)
    assert not report.ok and "the result can be read" in repr(report)


def test_not_a_number_is_not_within_a_limit():
    """NaN fails a limit instead of slipping through a comparison."""
    assert not check("L99.sum", {"sum": 6, "error": float("nan")}).ok


def test_in_tests_a_failed_check_raises(monkeypatch):
    """With SHARDWISE_CHECK=raise a wrong or missing answer is an AssertionError."""
    monkeypatch.setenv("SHARDWISE_CHECK", "raise")
    assert check("L99.sum", {"sum": 6, "error": 0.0}).ok
    with pytest.raises(CheckFailed, match="expected 6, got 5"):
        check("L99.sum", {"sum": 5, "error": 0.0})
    with pytest.raises(CheckFailed, match="run it first"):
        check("L99.sum")


def test_an_exercise_without_properties_cannot_pass():
    """A check that checks nothing is a failure."""
    assert not check("L99.other", 1).ok


def test_the_summary_of_a_lesson_counts_what_was_never_checked_as_failed():
    """One checked and passed, one never run."""
    check("L99.sum", {"sum": 6, "error": 0.0})
    assert [report.ok for report in summary("L99")] == [False, True]
    with pytest.raises(ScenarioError, match="L99"):
        summary("L98")


def test_an_unknown_exercise_names_the_nearest():
    """A misspelled name is not silently passed."""
    with pytest.raises(ScenarioError, match=r"the nearest is 'L99\.sum'"):
        check("L99.smu", 1)
