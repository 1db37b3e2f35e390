"""A button that makes a file when it is pressed and saves it from the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from mimetypes import guess_type

import anywidget
import traitlets

from shardwise.core.errors import ScenarioError
from shardwise.panels.assets import STYLE, script

Content = str | bytes


class Download(anywidget.AnyWidget):
    """Saves `content` as `filename`; a callable is asked at each press, so the file is current.

    No server route is used (Voila serves none): the text comes over the kernel's connection and is
    saved as a Blob. A ScenarioError becomes the sentence under the button.

    Example:
        Download("Download the numbers (CSV)", "memory.csv", lambda: report_csv(panel.report))
    """

    _esm = script("elements.js", "files.js", "download.js")
    _css = STYLE
    label = traitlets.Unicode().tag(sync=True, echo_update=False)
    disabled = traitlets.Bool(False).tag(sync=True, echo_update=False)

    def __init__(
        self,
        label: str,
        filename: str | Callable[[], str],
        content: Content | Callable[[], Content],
    ) -> None:
        """A button with this label; `filename` and `content` are values or callables."""
        self.filename = filename
        self.content = content
        super().__init__(label=label)
        self.on_msg(self._requested)

    def _requested(self, _: object, message: Mapping[str, object], __: object) -> None:
        if message.get("wanted") is not True:
            return
        try:
            name = self.filename() if callable(self.filename) else self.filename
            content = self.content() if callable(self.content) else self.content
        except ScenarioError as problem:
            self.send({"error": str(problem)})
            return
        mime = guess_type(name)[0] or "text/plain"
        if isinstance(content, bytes):
            self.send({"filename": name, "mime": mime}, buffers=[content])
        else:
            self.send({"filename": name, "mime": mime, "text": content})
