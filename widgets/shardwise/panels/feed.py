"""One model that carries every number and sentence of a page to the browser in one message."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from uuid import uuid4

import anywidget
import traitlets

from shardwise.panels.assets import STYLE, asset, script


def plain(value: object) -> object:
    """A value as JSON can hold it: NaN and infinity become None, NumPy scalars become numbers.

    JSON has no NaN; one such token would end the page's connection, not only its chart.

    >>> plain({"a": [1.5, float("nan")], "b": ("x", True)})
    {'a': [1.5, None], 'b': ['x', True]}
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"a feed carries rows, texts and numbers, not {type(value).__name__}")


def encoded(data: Mapping[str, object], _: object = None) -> dict[str, str]:
    """Each entry as JSON text: the page compares and parses only what changed, and ipywidgets does
    not walk through thousands of numbers in search of buffers.

    >>> encoded({"rows": [{"gib": 1.5}], "text": "fits"})
    {'rows': '[{"gib":1.5}]', 'text': '"fits"'}
    """
    return {key: _text(value) for key, value in data.items()}


def _text(value: object) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):  # NumPy scalars, NaN
        return json.dumps(plain(value), separators=(",", ":"))


class Feed(anywidget.AnyWidget):
    """What charts and texts of one page show, by name; assigning `data` is one message.

    A chart reads `data[key]`, a list of rows or `{dataset: rows}`, and `data[key + ".text"]`, its
    sentence. A text reads `data[key]`, a sentence or a list of blocks.

    Example:
        feed = Feed()
        feed.push({"memory": [{"part": "weights", "gib": 13.0}], "memory.text": "13 GiB."})
    """

    _esm = script("channel.js", "feed.js")
    _css = STYLE
    channel = traitlets.Unicode(read_only=True).tag(sync=True)
    library = traitlets.Unicode(read_only=True).tag(sync=True)
    data = traitlets.Dict().tag(sync=True, echo_update=False, to_json=encoded)

    def __init__(self, data: Mapping[str, object] | None = None) -> None:
        """A feed that holds `data` from the start, so that the first picture is complete."""
        self.set_trait("channel", uuid4().hex)
        self.set_trait("library", asset("vega.js"))
        super().__init__(data=dict(data or {}))

    def push(self, changes: Mapping[str, object]) -> None:
        """Replace some entries and keep the others; nothing is sent when nothing differs."""
        self.data = {**self.data, **changes}
