"""A file that arrives in pieces, so that a large one does not end the page's connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anywidget
import traitlets

from shardwise.core.errors import ScenarioError
from shardwise.panels.assets import STYLE, script

LARGEST_BYTES = 128 * 2**20


class FileField(anywidget.AnyWidget):
    """A labelled file box; `read(content)` is called with the whole file and says what is in it.

    A ScenarioError that `read` raises becomes the sentence under the box.

    Example:
        FileField("Snapshot", lambda content: f"{len(content):,} bytes", accept=".pickle")
    """

    _esm = script("elements.js", "file_field.js")
    _css = STYLE
    label = traitlets.Unicode().tag(sync=True, echo_update=False)
    accept = traitlets.Unicode().tag(sync=True, echo_update=False)
    largest = traitlets.Int(LARGEST_BYTES).tag(sync=True, echo_update=False)
    help = traitlets.Unicode().tag(sync=True, echo_update=False)
    said = traitlets.Unicode().tag(sync=True, echo_update=False)
    error = traitlets.Unicode().tag(sync=True, echo_update=False)

    def __init__(
        self, label: str, read: Callable[[bytes], str], *, accept: str = "", help: str = ""
    ) -> None:
        """`accept` lists the endings offered; `help` stands there until a file is read."""
        self.read = read
        self._pieces: list[bytes] | None = None
        super().__init__(label=label, accept=accept, help=help)
        self.on_msg(self._arrived)

    def clear(self) -> None:
        """Say nothing of an earlier file any more."""
        self.said, self.error = "", ""

    def _arrived(
        self, _: object, message: Mapping[str, object], buffers: Sequence[bytes] | None
    ) -> None:
        if message.get("first"):
            self._pieces = []
        if self._pieces is None:
            return
        self._pieces += [bytes(buffer) for buffer in buffers or ()]
        if sum(map(len, self._pieces)) > self.largest:
            self._pieces = None
            return
        if not message.get("last"):
            self.send({"next": True})
            return
        content, self._pieces = b"".join(self._pieces), None
        with self.hold_sync():
            self.said, self.error = "", ""
            try:
                self.said = f"{message.get('name')}: {self.read(content)}"
            except ScenarioError as problem:
                self.error = str(problem)
        self.send({"done": True})
