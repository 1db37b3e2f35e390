"""The one kind of error that bad input raises: a sentence that says what to change."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

_SHOWN_CHARACTERS = 60
_LISTED_NAMES = 12


def shown(value: object) -> str:
    """A value as an error may quote it: one line, at most 60 characters, nothing invisible.

    >>> shown("7B" + "0" * 100)
    "'7B00000000000000000000000000000000000000000000000000000...'"
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        text = f"a whole number of about {value.bit_length() * 0.30103:.0f} digits"
    elif isinstance(value, (dict, list, tuple, set)) and len(value) > 6:
        text = f"a {type(value).__name__} of {len(value)} entries"
    else:
        text = _repr(value[: 2 * _SHOWN_CHARACTERS] if isinstance(value, str) else value)
    text = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in text)
    if len(text) > _SHOWN_CHARACTERS:
        tail = "...'" if text[0] == "'" else "..."
        text = text[: _SHOWN_CHARACTERS - len(tail)] + tail
    return text


def _repr(value: object) -> str:
    """`repr`, which itself fails on integers of 4300 digits and on deep nesting."""
    try:
        return repr(value)
    except Exception:  # whatever a stranger's __repr__ raises
        return f"a {type(value).__name__} that cannot be shown"


class ScenarioError(ValueError):
    """Input that cannot be used: which field, what it holds, what is allowed, what to do.

    `str()` is one sentence for people; the parts are attributes for panels and tests.
    """

    def __init__(self, field: str, value: object, allowed: str, hint: str = "") -> None:
        """Keep the parts; the sentence is made when it is asked for."""
        self.field = field
        self.value = value
        self.allowed = allowed
        self.hint = hint
        super().__init__(field, value, allowed, hint)

    def __str__(self) -> str:
        """`field is value; allowed: ...; hint.`"""
        sentence = f"{self.field} is {shown(self.value)}; allowed: {self.allowed}"
        return f"{sentence}; {self.hint}." if self.hint else f"{sentence}."


def unknown_key(field: str, value: object, allowed_names: Iterable[str]) -> ScenarioError:
    """The error for a name nobody knows: names the nearest, or lists what there is.

    >>> str(unknown_key("cluster.gpu", "h100", ["a100-sxm-80gb", "h100-sxm-80gb"]))
    "cluster.gpu is 'h100'; allowed: a100-sxm-80gb, h100-sxm-80gb; the nearest is 'h100-sxm-80gb'."
    """
    names = list(allowed_names)
    near = _nearest(value, names) if isinstance(value, str) else ""
    listed = ", ".join(names[:_LISTED_NAMES])
    if len(names) > _LISTED_NAMES:
        listed = f"{listed} and {len(names) - _LISTED_NAMES} more"
    return ScenarioError(field, value, listed, f"the nearest is {near!r}" if near else "")


def _nearest(value: str, names: list[str]) -> str:
    """The likeliest meant name: it starts so, is spelled alike, or holds what was typed."""
    typed = value.strip()[:_SHOWN_CHARACTERS].casefold()
    folded = {name.casefold(): name for name in reversed(names)}
    for name in names:
        if typed and name.casefold().startswith(typed):
            return name
    near = difflib.get_close_matches(typed, folded, n=1, cutoff=0.6)
    if near:
        return folded[near[0]]
    return next((name for name in names if typed and typed in name.casefold()), "")
