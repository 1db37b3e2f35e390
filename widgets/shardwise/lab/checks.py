"""Checks of exercises: each property with what was expected, what came, and a hint.

`check("L04.average", result)` gives a report; with SHARDWISE_CHECK=raise in the environment (tests)
a failed one raises `CheckFailed`. An exercise that was not run counts as failed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from shardwise.core.errors import unknown_key


@dataclass(frozen=True)
class Property:
    """One thing an answer must have."""

    name: str
    ok: bool
    expected: str
    got: str
    hint: str = ""


@dataclass(frozen=True)
class Report:
    """All properties of one exercise."""

    exercise: str
    properties: tuple[Property, ...]

    @property
    def ok(self) -> bool:
        """Whether every property holds."""
        return all(each.ok for each in self.properties)

    def __repr__(self) -> str:
        """One line a property; expected, got and hint where it fails."""
        lines = [f"{self.exercise}: {'passed' if self.ok else 'not yet'}"]
        for each in self.properties:
            lines.append(f"  {'✓' if each.ok else '✗'} {each.name}")
            if not each.ok:
                lines.append(f"      expected {each.expected}, got {each.got}")
                if each.hint:
                    lines.append(f"      hint: {each.hint}")
        return "\n".join(lines)


class CheckFailed(AssertionError):
    """A check failed where failing counts (in tests)."""


Answer = Callable[[Any], Iterable[Property]]
_exercises: dict[str, Answer] = {}
_reports: dict[str, Report] = {}


def exercise(name: str) -> Callable[[Answer], Answer]:
    """Register the properties of an exercise under a name such as `L04.average`."""

    def register(answer: Answer) -> Answer:
        _exercises[name] = answer
        return answer

    return register


def exact(name: str, got: Any, expected: Any, hint: str = "", unit: str = "") -> Property:
    """Equal, to the last digit.

    >>> exact("bytes sent", 882_176, 441_088, unit="B")
    Property(name='bytes sent', ok=False, expected='441,088 B', got='882,176 B', hint='')
    """
    return Property(name, bool(got == expected), _said(expected, unit), _said(got, unit), hint)


def at_most(name: str, got: float, limit: float, hint: str = "", unit: str = "") -> Property:
    """A number that exists and stays within a limit.

    >>> at_most("gradient error", 3e-8, 1e-5).ok, at_most("gradient error", float("nan"), 1).ok
    (True, False)
    """
    most = f"at most {_said(limit, unit)}"
    return Property(name, bool(got <= limit), most, _said(got, unit), hint)


def _said(value: object, unit: str) -> str:
    """A value as a check prints it: thousands set apart, its unit behind it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return str(value)
    small = isinstance(value, float) and abs(value) < 1000
    text = f"{value:.3g}" if small else f"{value:,.0f}"
    return f"{text} {unit}" if unit else text


def check(name: str, result: Any = None) -> Report:
    """Hold a result against the properties of an exercise and say which hold.

    Raises:
        ScenarioError: there is no such exercise.
        CheckFailed: a property fails and SHARDWISE_CHECK is `raise`.
    """
    _load()
    if name not in _exercises:
        raise unknown_key("exercise", name, sorted(_exercises))
    report = Report(name, _properties(name, result))
    _reports[name] = report
    return _settled(report)


def summary(lesson: str) -> tuple[Report, ...]:
    """The reports of a lesson's exercises, `L04` say; one never checked counts as failed."""
    _load()
    names = sorted(name for name in _exercises if name.startswith(f"{lesson}."))
    if not names:
        raise unknown_key("lesson", lesson, sorted({n.split(".")[0] for n in _exercises}))
    return tuple(_reports.get(name) or Report(name, (_not_run(),)) for name in names)


def _properties(name: str, result: Any) -> tuple[Property, ...]:
    if result is None or result is Ellipsis:
        return (_not_run(),)
    try:
        found = tuple(_exercises[name](result))
    except Exception as problem:  # whatever a learner's object does, the report must come
        text = f"{type(problem).__name__}: {problem}"
        return (Property("the result can be read", False, "the shape the text asks for", text),)
    return found or (Property("properties", False, "at least one", "none"),)


def _not_run() -> Property:
    return Property(
        "the cell was run", False, "a result", "nothing", "fill in the cell above and run it first"
    )


def _settled(report: Report) -> Report:
    if not report.ok and os.environ.get("SHARDWISE_CHECK") == "raise":
        raise CheckFailed(repr(report))
    return report


def _load() -> None:
    """The lessons' exercises register themselves when their modules are imported."""
    from shardwise.lab import exercises, exercises_choosing  # noqa: F401
