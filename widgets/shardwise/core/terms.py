"""Formulas run once on open sizes: what comes out are coefficients, good for every size after.

A formula of tokens takes the same lines with numbers and with `Terms`. An estimate then only adds
up coefficients times sizes, which is much less work than the formulas, and the same for one size
and for an array of them.

>>> batch, length = size("micro_batch"), size("sequence_length")
>>> Table([2 * batch * length * 4096 + 8 * length, 3.0]).at(
...     {"micro_batch": 2.0, "sequence_length": 100.0}
... )
[1639200.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import ge
from typing import Any, NamedTuple, cast

Sizes = Mapping[str, float]
"""The values of open sizes by name: floats, or arrays of float64."""


class Size(NamedTuple):
    """An open size, never negative; `about` is a value of it by which code takes its branches."""

    name: str
    about: float

    def at(self, sizes: Sizes) -> float:
        """Its value."""
        return sizes[self.name]


class Later(NamedTuple):
    """What has no coefficients, such as the larger of two: worked out once sizes are known."""

    function: Callable[..., float]
    arguments: tuple[Any, ...]

    def at(self, sizes: Sizes) -> float:
        """Its value."""
        known = (a.at(sizes) if isinstance(a, Terms) else a for a in self.arguments)
        return self.function(*known)


Product = tuple["Size | Later", ...]
"""Factors of a term; none for the constant."""


class Terms:
    """A sum of coefficients times products of open sizes.

    It is added, and multiplied with numbers and with other terms. It has no truth value and no
    order, so that no code takes a branch by a size that is not known; only a size alone may be
    asked whether it is at least some number, and says so of its `about`.
    """

    __slots__ = ("coefficients",)

    def __init__(self, coefficients: Mapping[Product, float]) -> None:
        """Takes coefficients by product."""
        self.coefficients = coefficients

    def __add__(self, other: Any) -> Terms:
        """The sum with terms or a number."""
        if not isinstance(other, Terms):
            constant = self.coefficients.get((), 0.0) + other
            return Terms({**self.coefficients, (): constant}) if other else self
        added = dict(self.coefficients)
        for product, value in other.coefficients.items():
            added[product] = added.get(product, 0.0) + value
        return Terms(added)

    __radd__ = __add__

    def __neg__(self) -> Terms:
        """Every coefficient negative."""
        return Terms({product: -value for product, value in self.coefficients.items()})

    def __sub__(self, other: Terms | float) -> Terms:
        """The difference."""
        return self + (-other)

    def __rsub__(self, other: float) -> Terms:
        """The difference the other way round."""
        return -self + other

    def __mul__(self, other: Any) -> Terms:
        """The product with terms or a number; nothing at all with zero."""
        if not isinstance(other, Terms):
            scaled = {product: value * other for product, value in self.coefficients.items()}
            return Terms(scaled if other else {})
        found: dict[Product, float] = {}
        for mine, value in self.coefficients.items():
            for its, factor in other.coefficients.items():
                product = _product(mine, its)
                found[product] = found.get(product, 0.0) + value * factor
        return Terms(found)

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Terms:
        """Every coefficient over a number."""
        return Terms({product: value / other for product, value in self.coefficients.items()})

    def __eq__(self, other: object) -> bool:
        """Whether all coefficients are the same."""
        return isinstance(other, Terms) and self.coefficients == other.coefficients

    def __hash__(self) -> int:
        """Of the coefficients."""
        return hash(frozenset(self.coefficients.items()))

    def __bool__(self) -> bool:
        """None: a branch would hold for some sizes only."""
        raise TypeError("open sizes have no truth value: ask `arrays.there`")

    def __ge__(self, other: float) -> bool:
        """Whether an open size reaches a number, by its `about`."""
        (((alone,), factor),) = self.coefficients.items()
        assert isinstance(alone, Size) and factor == 1, "only a size by itself is compared"
        return alone.about >= other

    def at(self, sizes: Sizes) -> float:
        """Their sum at known sizes."""
        return Table([self]).at(sizes)[0]


class Table:
    """Many sums of terms as columns of coefficients: all are worked out at once."""

    def __init__(self, rows: Sequence[Any]) -> None:
        """Takes terms and numbers."""
        held = [_coefficients(row) for row in rows]
        products = dict.fromkeys(product for row in held for product in row if product)
        self.constants = [float(row.get((), 0.0)) for row in held]
        self.columns = [
            (product, [float(row.get(product, 0.0)) for row in held]) for product in products
        ]

    def at(self, sizes: Sizes) -> list[float]:
        """The value of every row at known sizes."""
        values = self.constants
        for product, column in self.columns:
            first, *others = product
            known = first.at(sizes)
            for factor in others:
                known = known * factor.at(sizes)
            values = [
                value + coefficient * known
                for value, coefficient in zip(values, column, strict=True)
            ]
        return values


def size(name: str, about: float = 1) -> float:
    """An open size, annotated as the number that it stands for."""
    return cast(float, Terms({(Size(name, about),): 1}))


def later(function: Callable[..., float], *arguments: Any) -> float:
    """The function's value, which is never negative, once the sizes in its arguments are known."""
    return cast(float, Terms({(Later(function, arguments),): 1}))


def not_below_another(rows: Sequence[Any]) -> list[int]:
    """Indices of the sums that may be the highest of all at some sizes; the first of equals.

    A sum no coefficient of which is larger than another's is never above that one.

    >>> length = size("sequence_length")
    >>> not_below_another([2 * length, 3 * length, 1 * length + 5, 3 * length])
    [1, 2]
    """
    table, found = Table(rows), dict[int, tuple[float, ...]]()
    columns = (column for _, column in table.columns)
    for index, row in enumerate(zip(table.constants, *columns, strict=True)):
        if not any(_covers(other, row) for other in found.values()):
            found = {key: other for key, other in found.items() if not _covers(row, other)}
            found[index] = row
    return list(found)


def _covers(upper: tuple[float, ...], lower: tuple[float, ...]) -> bool:
    return all(map(ge, upper, lower))


@lru_cache(maxsize=1024)
def _product(first: Product, second: Product) -> Product:
    return tuple(sorted(first + second, key=repr))


def _coefficients(row: Any) -> Mapping[Product, float]:
    return row.coefficients if isinstance(row, Terms) else {(): row}
