"""Bytes inside, people's units at the edge: constants, formatting and the parsing of typed numbers.

GiB is 2**30 bytes and GB is 10**9; a number is never shown without its unit.
"""

from __future__ import annotations

import math
import re

from shardwise.core.errors import ScenarioError

GIB = 2**30
MIB = 2**20
GB = 10**9

_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_NUMBER = re.compile(
    r"([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|[+-]?\.\d+(?:[eE][+-]?\d+)?)\s*([a-zA-Z]?)"
)
_GROUPED = re.compile(r"\d{1,3}(?:[ _\u00a0\u202f]\d{3})+")


def format_gib(size_bytes: float) -> str:
    """Bytes as GiB with three figures or so.

    >>> format_gib(112e9), format_gib(3 * 2**20), format_gib(0)
    ('104.3 GiB', '0.003 GiB', '0 GiB')
    """
    value = size_bytes / GIB
    if value == 0:
        return "0 GiB"
    if round(abs(value), 3) < 0.1:
        return f"{value:.3f} GiB" if abs(value) >= 0.0005 else "<0.001 GiB"
    return f"{value:,.2f} GiB" if round(abs(value), 2) < 10 else f"{value:,.1f} GiB"


def format_gb(size_bytes: float) -> str:
    """Bytes as GB (10**9), the unit of papers and of card names.

    >>> format_gb(16 * 7_000_000_000)
    '112 GB'
    """
    value = size_bytes / GB
    if value == 0:
        return "0 GB"
    if round(abs(value), 3) < 0.1:
        return f"{value:.3f} GB" if abs(value) >= 0.0005 else "<0.001 GB"
    text = f"{value:,.2f}" if round(abs(value), 2) < 10 else f"{value:,.1f}"
    return text.rstrip("0").rstrip(".") + " GB"


def format_count(count: float) -> str:
    """A count of parameters or tokens as people say it: three figures, fewer where they are exact.

    >>> format_count(8_030_261_248), format_count(124_439_808), format_count(950)
    ('8.03 B', '124 M', '950')
    >>> format_count(999_885_952), format_count(10**9)
    ('1.00 B', '1 B')
    """
    rounded = float(f"{count:.3g}")
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if rounded >= size:
            short = rounded / size
            places = 2 if short < 10 else 1 if short < 100 else 0
            text = f"{short:g}" if rounded == count else f"{short:.{places}f}"
            return f"{text} {letter}"
    return f"{count:g}"


def format_bound(value: float) -> str:
    """The end of a range as a sentence says it: no exponents, which few people type.

    >>> format_bound(100_000), format_bound(10**8), format_bound(2**20), format_bound(0.5)
    ('100000', '100 million', '1048576', '0.5')
    """
    for size, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if size <= value < 1000 * size and value % size == 0:
            return f"{value / size:g} {word}"
    return f"{value:.0f}" if value == int(value) and value < 10**15 else f"{value:g}"


def parse_number(
    text: str | float,
    field: str,
    *,
    minimum: float,
    maximum: float,
    whole: bool = False,
) -> float:
    """The number that somebody typed; k, M, B and T multiply by a thousand each.

    A decimal comma is read as a point (`2,5` is 2.5). `1,000` could mean one or a thousand, so it
    is refused rather than guessed, as are digits of other scripts, NaN and infinity.

    Raises:
        ScenarioError: not a number, not finite, not whole where it must be, or out of range.

    >>> parse_number("7B", "parameters", minimum=1, maximum=1e14)
    7000000000.0
    >>> parse_number("2,5", "price", minimum=0, maximum=100)
    2.5
    """
    kind = "a whole number" if whole else "a number"
    allowed = f"{kind} from {format_bound(minimum)} to {format_bound(maximum)}"
    if isinstance(text, bool):
        raise ScenarioError(field, text, allowed)
    value = _typed(text, field, allowed) if isinstance(text, str) else text
    if not isinstance(value, (int, float)):
        raise ScenarioError(field, value, allowed)
    if isinstance(value, int) and not minimum <= value <= maximum:
        raise ScenarioError(field, value, allowed)
    number = float(value)
    if math.isnan(number) or not minimum <= number <= maximum:
        raise ScenarioError(field, text, allowed)
    if whole and number != int(number):
        raise ScenarioError(field, text, allowed, f"the nearest is {round(number)}")
    return number


def parse_whole(text: str | float, field: str, *, minimum: int, maximum: int) -> int:
    """As `parse_number`, for a whole number; an `int` comes back.

    >>> parse_whole("4k", "sequence_length", minimum=1, maximum=10**7)
    4000
    """
    return int(parse_number(text, field, minimum=minimum, maximum=maximum, whole=True))


def _typed(text: str, field: str, allowed: str) -> float:
    stripped = text.strip()
    if not stripped:
        raise ScenarioError(field, text, allowed, "type a number")
    if any(c.isdigit() and not c.isascii() for c in stripped):
        raise ScenarioError(field, text, allowed, "write it in the digits 0 to 9")
    if _GROUPED.fullmatch(stripped):
        stripped = re.sub(r"[ _\u00a0\u202f]", "", stripped)
    if "," in stripped:
        if stripped.count(",") > 1 or "." in stripped or re.search(r",\d{3}(?!\d)", stripped):
            plain = stripped.replace(",", "")
            raise ScenarioError(
                field, text, allowed, f"a comma could mean two things; write {shown_plain(plain)}"
            )
        stripped = stripped.replace(",", ".")
    match = _NUMBER.fullmatch(stripped)
    if match is None or match[2].lower() not in _SUFFIXES:
        raise ScenarioError(field, text, allowed, "digits with at most one point and k, M, B or T")
    number = float(match[1]) * _SUFFIXES[match[2].lower()]
    return round(number) if number < 2**53 and abs(number - round(number)) < 1e-6 else number


def shown_plain(text: str) -> str:
    """The number without its commas, for the hint of an ambiguous one."""
    return text[:20] + " or use a decimal point"
