"""Frozen values that work out their hash, or another figure, once: estimates ask for it often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

_Class = TypeVar("_Class", bound=type[Any])
_Value = TypeVar("_Value")
_KEY = "_hashed"


def hashed_once(cls: _Class) -> _Class:
    """Class decorator for a frozen dataclass: its hash is kept beside its fields.

    It is left out of pickles, since another process hashes strings otherwise.

    >>> from dataclasses import dataclass
    >>> @hashed_once
    ... @dataclass(frozen=True)
    ... class Pair:
    ...     first: int
    ...     second: str
    >>> hash(Pair(1, "a")) == hash(Pair(1, "a"))
    True
    """
    plain: Callable[[Any], int] = cls.__hash__  # type: ignore[assignment]

    def once(self: Any) -> int:
        kept = self.__dict__
        if _KEY not in kept:
            kept[_KEY] = plain(self)
        found: int = kept[_KEY]
        return found

    def state(self: Any) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != _KEY}

    setattr(cls, "__hash__", once)  # noqa: B010
    setattr(cls, "__getstate__", state)  # noqa: B010
    return cls


class once(Generic[_Value]):
    """A property worked out at the first question, as functools.cached_property without its lock.

    Python 3.11's lock costs a microsecond each, which is much where an estimate takes fifty.
    """

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        """Takes the method that works it out."""
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        """Keeps the value under the method's own name, where it is found first."""
        self.name = name

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> _Value:
        """The value; a class gives none of its own."""
        if instance is None:
            return self  # type: ignore[return-value]
        value = instance.__dict__[self.name] = self.function(instance)
        return value
