"""The Python half of downloads and permalinks."""

from __future__ import annotations

import pytest
from recorder import Recorder

from shardwise.core.errors import ScenarioError
from shardwise.panels.download import Download
from shardwise.panels.feed import Feed
from shardwise.panels.permalink import Permalink


def pressed(button: Download, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """What the button sends when it is pressed."""
    sent = Recorder(button, monkeypatch)
    button._requested(button, {"wanted": True}, [])
    return sent


def test_a_file_is_made_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The callable runs at each press, so the file is current."""
    numbers = iter("12")
    button = Download("Numbers", lambda: "n.csv", lambda: next(numbers))
    contents = [pressed(button, monkeypatch).messages[0]["content"] for _ in range(2)]
    assert [content["text"] for content in contents] == ["1", "2"]
    assert contents[0]["filename"] == "n.csv"
    assert contents[0]["mime"] == "text/csv"


def test_bytes_travel_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive is not turned into text."""
    sent = pressed(Download("Zip", "a.zip", b"\x00\xff"), monkeypatch)
    assert sent.buffers == [[b"\x00\xff"]]


def test_a_scenario_error_becomes_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be exported is explained at the button."""

    def refuse() -> str:
        raise ScenarioError("layout", "3d", "ddp")

    sent = pressed(Download("Numbers", "n.csv", refuse), monkeypatch)
    assert sent.messages[0]["content"] == {"error": "layout is '3d'; allowed: ddp."}


def test_only_a_press_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other messages do nothing."""
    button = Download("Numbers", "n.csv", "x")
    sent = Recorder(button, monkeypatch)
    for message in ({}, {"wanted": "yes"}, {"wanted": 1}):
        button._requested(button, message, [])
    assert sent.messages == []


def test_a_link_travels_in_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new link is part of the move's one message."""
    feed = Feed()
    link = Permalink(feed)
    sent = Recorder(link, monkeypatch)
    feed.push({"permalink": "v=1&gpus=8"})
    assert sent.messages == []
    assert (link.channel, link.key, link.search) == (feed.channel, "permalink", "")
