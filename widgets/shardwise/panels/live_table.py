"""A table that follows the feed, and whose rows can be chosen with a button."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anywidget
import traitlets

from shardwise.panels.assets import STYLE, script
from shardwise.panels.feed import Feed

Row = dict[str, object]
Cell = str | list[str]


def row(cells: Sequence[Cell], pick: str | None = None, action: str = "Apply") -> Row:
    """One row of texts, units included; a list becomes bullets, `pick` a button with `action`."""
    made: Row = {"cells": list(cells)}
    return made if pick is None else made | {"pick": pick, "action": action}


def table(caption: str, columns: Mapping[str, str], rows: Sequence[Row]) -> dict[str, object]:
    """What a `LiveTable` shows: `columns` maps headings to `text` or `number` (right-aligned)."""
    return {"caption": caption, "columns": [list(c) for c in columns.items()], "rows": list(rows)}


class LiveTable(anywidget.AnyWidget):
    """Shows `feed.data[key]`, made by `table`; a press on a row's button calls `chosen(pick)`.

    Example:
        LiveTable(feed, "changes", chosen=lambda pick: apply(pick))
        feed.push({"changes": table("First", {"Change": "text"}, [row(["bf16"], "bf16")])})
    """

    _esm = script("channel.js", "elements.js", "live_table.js")
    _css = STYLE
    channel = traitlets.Unicode(read_only=True).tag(sync=True)
    key = traitlets.Unicode(read_only=True).tag(sync=True)

    def __init__(
        self, feed: Feed, key: str, *, chosen: Callable[[str], None] = lambda pick: None
    ) -> None:
        """The table under `key` of this feed."""
        self.chosen = chosen
        self.set_trait("channel", feed.channel)
        self.set_trait("key", key)
        super().__init__()
        self.on_msg(self._pressed)

    def _pressed(self, _: object, message: Mapping[str, object], __: object) -> None:
        if isinstance(picked := message.get("picked"), str):
            self.chosen(picked)
