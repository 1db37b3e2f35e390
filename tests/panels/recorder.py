"""What a widget would send to the page."""

from __future__ import annotations

from typing import Any

import ipywidgets
import pytest


class Recorder:
    """The messages of one widget, as they would leave the kernel."""

    def __init__(self, widget: ipywidgets.Widget, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record from now on."""
        self.messages: list[dict[str, Any]] = []
        self.buffers: list[Any] = []
        monkeypatch.setattr(widget, "_send", self._keep)

    def _keep(self, message: dict[str, Any], buffers: Any = None) -> None:
        self.messages.append(message)
        self.buffers.append(buffers)

    @property
    def states(self) -> list[dict[str, Any]]:
        """The states of the updates among them."""
        return [m["state"] for m in self.messages if m["method"] == "update"]
