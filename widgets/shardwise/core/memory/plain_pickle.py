"""Pickles of plain containers, read without running, importing or crashing on what they hold."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

CAREFUL_UP_TO = 32 * 2**20
"""Bytes up to which every opcode is looked at; more than an upload can carry."""

_MARK = object()
_VALUES = frozenset(
    {
        "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE",
        "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    }
)  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KEYS = frozenset((str, int, bytes, float, bool, type(None)))


class NotPlain(ValueError):
    """A pickle that holds more than dicts, lists, tuples, numbers and text, or is broken."""


def plain(content: bytes) -> Any:
    """What a pickle holds, if that is plain containers (protocols 2 to 5).

    Up to 32 MiB it is put together here from the opcodes of plain containers only. `pickle`'s own
    loader sets memory aside for any memo index that a file names, and ends the process when keys
    are nested deep enough, so only longer files, which are one's own, go through it (ten times
    faster); classes and functions it refuses too.

    Raises:
        NotPlain: something else, or no pickle.

    >>> plain(pickle.dumps({"segments": [(0, 1)]}))
    {'segments': [(0, 1)]}
    """
    try:
        if len(content) > CAREFUL_UP_TO:
            return _ImportsNothing(io.BytesIO(content)).load()
        return _Builder().build(content)
    except NotPlain:
        raise
    except Exception as error:  # a broken pickle raises whatever its opcodes run into
        raise NotPlain(type(error).__name__) from None


class _ImportsNothing(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise NotPlain(f"{module}.{name}")

    def persistent_load(self, identity: object) -> NoReturn:
        raise NotPlain("a persistent object")


class _Builder:
    """The stack machine of pickletools' documentation, for containers."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def build(self, content: bytes) -> Any:
        """Run every opcode; an unknown one is refused by name."""
        stack, memo = self.stack, self.memo
        argument: Any
        for opcode, argument, _ in pickletools.genops(content):
            name = opcode.name
            if name in _VALUES:
                stack.append(argument)
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name == "STOP":
                return stack.pop()
            elif name not in ("PROTO", "FRAME"):
                self._container(name)
        raise NotPlain("no end")

    def _container(self, name: str) -> None:
        stack = self.stack
        if name == "MARK":
            stack.append(_MARK)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name in _TUPLES:
            stack.append(tuple(self._last(_TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(self._marked()))
        elif name in ("APPEND", "APPENDS"):
            items = self._last(1) if name == "APPEND" else self._marked()
            _extend(stack[-1], items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._last(2) if name == "SETITEM" else self._marked()
            _update(stack[-1], items)
        else:
            raise NotPlain(name)

    def _last(self, count: int) -> list[Any]:
        start = len(self.stack) - count
        if start < 0:
            raise NotPlain("nothing to take")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _marked(self) -> list[Any]:
        """What was pushed since the last mark, without the mark."""
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise NotPlain("no mark")
        items = self._last(len(self.stack) - start)
        return items[1:]


def _extend(target: object, items: list[Any]) -> None:
    if not isinstance(target, list):
        raise NotPlain("an append to no list")
    target.extend(items)


def _update(target: object, items: list[Any]) -> None:
    if not isinstance(target, dict) or any(type(key) not in _KEYS for key in items[::2]):
        raise NotPlain("a dict with other keys than text and numbers")
    target.update(zip(items[::2], items[1::2], strict=True))
