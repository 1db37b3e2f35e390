"""The system's Chromium, cut off from the network, with what went wrong in the page kept."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--enable-precise-memory-info", "--js-flags=--expose-gc",
]  # fmt: skip
HERE = {"127.0.0.1", "localhost", ""}
# Voila tells its server that the page closes and is refused for want of a token (voila#1458);
# kernels are culled instead, which has its own test.
EXPECTED_CONSOLE = ("/voila/api/shutdown/",)


def chromium_path() -> str:
    """Where Chromium is; a test cannot pass without it."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise RuntimeError("The browser tests need Chromium: apt-get install chromium")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """One headless Chromium."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium_path(), args=ARGUMENTS)
        try:
            yield opened
        finally:
            opened.close()


@dataclass
class Watch:
    """What a page asked of other machines, and the errors it met."""

    left: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def follow(self, context: BrowserContext) -> None:
        """Record from now on, for every page of the context."""
        context.on("request", lambda request: self._asked(request.url))
        context.on("page", self._follow_page)

    def _follow_page(self, page: Page) -> None:
        page.on("websocket", lambda socket: self._asked(socket.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self._said(message.type, message.text, message.location))

    def _asked(self, url: str) -> None:
        if (urlsplit(url).hostname or "") not in HERE:
            self.left.append(url)

    def _said(self, kind: str, text: str, location: dict[str, object]) -> None:
        place = str(location.get("url", ""))
        if kind == "error" and not any(known in place + text for known in EXPECTED_CONSOLE):
            self.errors.append(f"{text} ({place})")
