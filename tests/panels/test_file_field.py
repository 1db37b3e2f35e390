"""Files that arrive in pieces."""

from __future__ import annotations

import pytest
from recorder import Recorder

from shardwise.core.errors import ScenarioError
from shardwise.panels.file_field import FileField


def sent(field: FileField, pieces: list[bytes], name: str = "a.pickle") -> None:
    """What the browser sends for one file."""
    for place, piece in enumerate(pieces):
        message = {"name": name, "first": place == 0, "last": place == len(pieces) - 1}
        field._arrived(None, message, [piece])


def test_pieces_become_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is asked for, and the whole is read once."""
    read: list[bytes] = []
    field = FileField("File", lambda content: read.append(content) or f"{len(content)} bytes")  # type: ignore[func-returns-value]
    messages = Recorder(field, monkeypatch)
    sent(field, [b"ab", b"cd", b"e"])
    assert read == [b"abcde"]
    assert field.said == "a.pickle: 5 bytes"
    answers = [message["content"] for message in messages.messages if "content" in message]
    assert answers == [{"next": True}, {"next": True}, {"done": True}]


def test_a_file_that_cannot_be_read_is_a_sentence() -> None:
    """The error replaces what was said; a good file replaces the error; clearing forgets both."""

    def read(content: bytes) -> str:
        if content != b"good":
            raise ScenarioError("file", "that", "a good one")
        return "fine"

    field = FileField("File", read)
    sent(field, [b"bad"])
    assert (field.said, field.error) == ("", "file is 'that'; allowed: a good one.")
    sent(field, [b"good"])
    assert (field.said, field.error) == ("a.pickle: fine", "")
    field.clear()
    assert (field.said, field.error) == ("", "")


def test_an_interrupted_file_is_forgotten() -> None:
    """A new first piece begins anew, so two files never mix."""
    read: list[bytes] = []
    field = FileField("File", lambda content: read.append(content) or "")  # type: ignore[func-returns-value]
    field._arrived(None, {"name": "x", "first": True, "last": False}, [b"old"])
    sent(field, [b"new"])
    assert read == [b"new"]


def test_more_than_allowed_is_not_collected() -> None:
    """A page that ignores the limit cannot fill the memory."""
    field = FileField("File", lambda content: pytest.fail("it was read"))
    field.largest = 10
    sent(field, [b"123456", b"123456", b""])
    assert field._pieces is None
