"""Arithmetic for numbers, NumPy arrays and open sizes alike; NumPy is loaded only for arrays.

Formulas are annotated with `float`: an array of float64 goes through the same lines, and so do the
sums of `terms.py`. Only a choice between two values needs a function of its own, which is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from shardwise.core.terms import Terms, later

_PLAIN = frozenset((int, float, bool))


def is_plain(value: object) -> bool:
    """Whether it is one number and not an array."""
    return type(value) in _PLAIN


def most(first: float, second: float) -> float:
    """The larger of two, element by element.

    >>> most(2, 3.0)
    3.0
    """
    if is_plain(first) and is_plain(second):
        return first if first >= second else second
    if isinstance(first, Terms) or isinstance(second, Terms):
        return later(most, first, second)
    import numpy

    larger: float = numpy.maximum(first, second)
    return larger


def least(first: float, second: float) -> float:
    """The smaller of two, element by element.

    >>> least(2, 3.0)
    2
    """
    if is_plain(first) and is_plain(second):
        return first if first <= second else second
    if isinstance(first, Terms) or isinstance(second, Terms):
        return later(least, first, second)
    import numpy

    smaller: float = numpy.minimum(first, second)
    return smaller


def there(value: float) -> bool:
    """Whether it is not zero; an array always is there.

    >>> there(0.0), there(2)
    (False, True)
    """
    if isinstance(value, Terms):
        return any(value.coefficients.values())
    return not is_plain(value) or value != 0


def rounded_up(value: float) -> float:
    """The next whole number, element by element.

    >>> rounded_up(2.1)
    3
    """
    if isinstance(value, Terms):
        return later(rounded_up, value)
    return -(-value // 1) if not is_plain(value) else int(-(-value // 1))


def largest(values: Sequence[float]) -> float:
    """The largest of several, element by element.

    >>> largest([1.0, 3.0, 2.0])
    3.0
    """
    return max(values) if _PLAIN.issuperset(map(type, values)) else reduce(most, values)


def everywhere(condition: Any) -> bool:
    """One truth value for a condition that holds for all elements or for none.

    Code takes one branch for a whole array, so arrays are split beforehand at the lengths where a
    branch changes (`memory/sweep.py`).
    """
    if isinstance(condition, bool):
        return condition
    assert condition.all() or not condition.any(), "an array that takes two branches"
    return bool(condition.all())


def first_highest(rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The row whose first number is largest, the first of equals; with arrays by element.

    >>> first_highest([(1.0, "a"), (4.0, "b"), (4.0, "c")])
    (4.0, 'b')
    """
    return at_highest(rows, [row[0] for row in rows])


def highest(rows: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The row with the largest sum, the first of equals; with arrays, element by element.

    >>> highest([(1.0, 2.0), (4.0, 0.0), (0.0, 4.0)])
    (4.0, 0.0)
    """
    listed = list(rows)
    return at_highest(listed, [sum(row) for row in listed])


def at_highest(rows: Sequence[tuple[Any, ...]], by: list[Any]) -> tuple[Any, ...]:
    """The row at the largest of the numbers beside them, the first of equals.

    >>> at_highest(["a", "b"], [1.0, 4.0])
    'b'
    """
    if _PLAIN.issuperset(map(type, by)):
        return rows[by.index(max(by))]
    import numpy

    kept, top = rows[0], by[0]
    for row, value in zip(rows[1:], by[1:], strict=True):
        higher = value > top
        kept = tuple(numpy.where(higher, *pair) for pair in zip(row, kept, strict=True))
        top = numpy.maximum(value, top)
    return kept
