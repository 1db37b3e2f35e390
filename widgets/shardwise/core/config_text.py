"""From pasted or uploaded text to one JSON object, or one sentence that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from shardwise.core.errors import ScenarioError

LARGEST_BYTES = 1_000_000
DEEPEST = 64
_FIELD = "config.json"
_ALLOWED = "the text of one JSON object { ... }, as a model's config.json is"


def read_config(text: str | bytes) -> dict[str, Any]:
    """The object that the text holds.

    A byte-order mark is accepted, and UTF-16 with one. Refused, each with its own sentence: more
    than 1 MB, nesting deeper than 64, NUL characters, a key twice in one object, NaN and Infinity
    (which JSON does not have), numbers too long to be read, and anything but one object.

    Raises:
        ScenarioError: any of these.

    >>> read_config('{"hidden_size": 64}')
    {'hidden_size': 64}
    """
    if not isinstance(text, (str, bytes, bytearray)):
        raise ScenarioError(_FIELD, type(text).__name__, _ALLOWED)
    if len(text) > LARGEST_BYTES:
        hint = "a config.json has a few kilobytes; is this another file of the repository"
        raise ScenarioError(_FIELD, f"{len(text):,} long", f"at most {LARGEST_BYTES:,}", hint)
    plain = (text if isinstance(text, str) else _decoded(bytes(text))).lstrip("\ufeff")
    if not plain.strip():
        raise ScenarioError(_FIELD, plain, _ALLOWED, "the text is empty")
    if "\0" in plain:
        raise ScenarioError(_FIELD, "text with NUL characters", _ALLOWED, "is this a binary file")
    _check_depth(plain)
    value = _parsed(plain)
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a value")
        raise ScenarioError(_FIELD, value, _ALLOWED, f"this is {kind}")
    return value


def _decoded(raw: bytes) -> str:
    utf16 = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        return raw.decode("utf-16" if utf16 else "utf-8")
    except UnicodeDecodeError as error:
        hint = f"byte {error.start} cannot be read; save the file as UTF-8"
        raise ScenarioError(_FIELD, raw[:20], "text in UTF-8", hint) from None


def _check_depth(text: str) -> None:
    """Count brackets outside of strings; Python's own parser would run out of stack."""
    depth, in_string, escaped = 0, False, False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "{[":
            depth += 1
            if depth > DEEPEST:
                raise ScenarioError(_FIELD, f"nested deeper than {DEEPEST}", _ALLOWED)
        elif character in "}]":
            depth -= 1


def _parsed(text: str) -> object:
    try:
        return json.loads(
            text,
            object_pairs_hook=_without_doubles,
            parse_constant=_no_constant,
            parse_int=_short_whole,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {_plain(error.msg)}"
        near = text[max(0, error.pos - 20) : error.pos + 20].strip()
        raise ScenarioError(_FIELD, near or text[:40], _ALLOWED, where) from None


def _without_doubles(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ScenarioError(_FIELD, key, "each field once", "this one stands there twice")
        result[key] = value
    return result


def _no_constant(name: str) -> None:
    raise ScenarioError(_FIELD, name, "finite numbers", "JSON has no NaN or Infinity")


def _short_whole(digits: str) -> int:
    if len(digits) > 40:
        raise ScenarioError(_FIELD, digits, "numbers of at most 40 digits")
    return int(digits)


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:]
