"""A server, a browser cut off from the network, and pages that fail on what they should not do."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator

import pytest
from chromium import Watch, browser
from playwright.sync_api import Browser, BrowserContext, Page
from servers import ARTIFACTS, PAGES, Server, jupyterlab, voila


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One Chromium a module; each test gets a context of its own.

    Not one a session: Playwright holds the event loop as long as it runs.
    """
    with browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def preheated() -> Iterator[Server]:
    """Voila on the page of building blocks, with a kernel ready."""
    with voila(PAGES / "building_blocks.ipynb", pool=1, name="preheated") as server:
        yield server


@pytest.fixture(scope="session")
def cold() -> Iterator[Server]:
    """Voila on the same page, starting a kernel for each visitor."""
    with voila(PAGES / "building_blocks.ipynb", pool=0, name="cold") as server:
        yield server


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """JupyterLab, configured as Shardwise ships it, on a copy of the pages, which it saves."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(PAGES, folder, dirs_exist_ok=True)
    with jupyterlab(folder) as server:
        yield server


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Start Voila on a page of `pages/` for this test alone; it outlives the browser's pages."""
    with contextlib.ExitStack() as stack:
        yield lambda notebook, *options, **more: stack.enter_context(
            voila(PAGES / notebook, *options, **more)
        )


@pytest.fixture
def watch() -> Watch:
    """What the pages of this test asked of others, and their errors."""
    return Watch()


@pytest.fixture
def context(
    chromium: Browser, watch: Watch, serve: object, request: pytest.FixtureRequest
) -> Iterator[BrowserContext]:
    """A fresh profile; its pages are pictured at the end and must have stayed on this machine."""
    options = getattr(request, "param", {})
    opened = chromium.new_context(viewport={"width": 1200, "height": 900}, **options)
    opened.set_default_timeout(30_000)
    watch.follow(opened)
    yield opened
    name = re.sub(r"[^\w.-]+", "-", request.node.name)
    (ARTIFACTS / "screenshots").mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(opened.pages):
        page.screenshot(path=ARTIFACTS / "screenshots" / f"{name}-{number}.png")
    opened.close()
    assert watch.left == [], "a request left this machine"
    assert watch.errors == [], "the page met an error"


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """An empty page."""
    return context.new_page()
