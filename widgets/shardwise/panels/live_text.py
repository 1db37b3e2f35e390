"""Text that follows the feed: blocks of words, never markup, so input cannot become code."""

from __future__ import annotations

import anywidget
import traitlets

from shardwise.panels.assets import STYLE, script
from shardwise.panels.feed import Feed


def heading(text: str) -> dict[str, object]:
    """A heading inside a panel."""
    return {"kind": "heading", "text": text}


def paragraph(text: str) -> dict[str, object]:
    """A paragraph."""
    return {"kind": "paragraph", "text": text}


def error(text: str) -> dict[str, object]:
    """A sentence that says what is wrong and what to do."""
    return {"kind": "error", "text": text}


def code(text: str) -> dict[str, object]:
    """Lines in a fixed-width font: a formula with its values, a file."""
    return {"kind": "code", "text": text}


def facts(rows: list[tuple[str, str]]) -> dict[str, object]:
    """Names and their values, units included."""
    return {"kind": "facts", "rows": [[name, value] for name, value in rows]}


def bullets(items: list[str]) -> dict[str, object]:
    """A list without order."""
    return {"kind": "list", "items": list(items)}


def step(text: str, state: str = "", detail: str = "") -> dict[str, str]:
    """One item of `steps`; its state, in words: chosen, failed, done, skipped or none."""
    return {"text": text, "state": state, "detail": detail}


def steps(items: list[dict[str, str]]) -> dict[str, object]:
    """An ordered list of `step`s."""
    return {"kind": "steps", "items": list(items)}


def details(summary: str, blocks: list[dict[str, object]]) -> dict[str, object]:
    """Blocks that open on demand and stay open while their text changes."""
    return {"kind": "details", "summary": summary, "blocks": list(blocks)}


class LiveText(anywidget.AnyWidget):
    """Shows `feed.data[key]`: a sentence, or a list of blocks made by this module's functions.

    With `announce`, a screen reader hears the first headings once the value rests.

    Example:
        LiveText(feed, "decision")
        feed.push({"decision": [heading("ZeRO-1"), facts([("Optimizer state", "10.5 GiB")])]})
    """

    _esm = script("channel.js", "elements.js", "live_text.js")
    _css = STYLE
    channel = traitlets.Unicode(read_only=True).tag(sync=True)
    key = traitlets.Unicode(read_only=True).tag(sync=True)
    announce = traitlets.Bool(False).tag(sync=True, echo_update=False)

    def __init__(self, feed: Feed, key: str, *, announce: bool = False) -> None:
        """The text under `key`; `announce` speaks its first headings once the value rests."""
        self.set_trait("channel", feed.channel)
        self.set_trait("key", key)
        super().__init__(announce=announce)
