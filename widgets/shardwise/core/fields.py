"""Reading one section of a scenario dict: known keys only, each value checked, errors named."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping

from shardwise.core.errors import ScenarioError, unknown_key
from shardwise.core.units import format_bound, parse_number, parse_whole


def section(value: object, name: str, known: Collection[str]) -> Mapping[str, object]:
    """The dict at `name`, refused when it is no dict or holds a key that nobody reads.

    Raises:
        ScenarioError: not a dict, or an unknown key (the nearest known one is named).
    """
    if not isinstance(value, Mapping):
        raise ScenarioError(name, value, "a dict of " + ", ".join(known))
    for key in value:
        if key not in known:
            raise unknown_key(name, key, known)
    return value


def choice(value: object, name: str, allowed: Collection[str]) -> str:
    """One of the allowed names, or an error that names the nearest."""
    if not isinstance(value, str) or value not in allowed:
        raise unknown_key(name, value, allowed)
    return value


def whole(value: object, name: str, minimum: int, maximum: int) -> int:
    """A whole number in a range; text as people type it is read too."""
    if hasattr(value, "__index__") and not isinstance(value, (bool, int)):
        value = operator.index(value)  # NumPy's integers
    if not isinstance(value, (int, float, str)):
        raise ScenarioError(name, value, f"a whole number from {minimum} to {maximum}")
    return parse_whole(value, name, minimum=minimum, maximum=maximum)


def number(value: object, name: str, minimum: float, maximum: float) -> float:
    """A number in a range; text as people type it is read too."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        allowed = f"a number from {format_bound(minimum)} to {format_bound(maximum)}"
        raise ScenarioError(name, value, allowed)
    return parse_number(value, name, minimum=minimum, maximum=maximum)


def flag(value: object, name: str) -> bool:
    """True or False, nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise ScenarioError(name, value, "True or False")
    return value
