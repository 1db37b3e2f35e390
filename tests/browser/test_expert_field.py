"""The field for uneven routing: there for mixtures over expert ranks, and said in the answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from servers import ARTIFACTS, ROOT, Server, voila

MIXTURE = "?v=1&model=qwen3-30b-a3b&nodes=2&expert_parallel=8"


@pytest.fixture(scope="module")
def explorer() -> Iterator[Server]:
    """The explorer as the README's command serves it, with a kernel ready."""
    with voila(ROOT / "notebooks" / "explorer.ipynb", pool=1, name="experts") as server:
        yield server


@pytest.mark.parametrize("width", [360, 1600])
def test_the_imbalance_is_active_where_it_matters(page: Page, explorer: Server, width: int) -> None:
    """Over expert ranks it can be typed and changes what is needed; without them it rests."""
    page.set_viewport_size({"width": width, "height": 1200})
    page.goto(explorer.address + MIXTURE)
    expect(page.locator(".sw-chart[data-drawn]")).to_have_count(3, timeout=60_000)
    page.get_by_role("tab", name="Layout", exact=True).click()
    field = page.get_by_role("textbox", name="Expert imbalance", exact=True)
    answer = page.get_by_text("As set (").first
    expect(field).to_be_enabled()
    before = answer.inner_text()
    field.fill("2")
    field.press("Enter")
    expect(answer).not_to_have_text(before)
    page.wait_for_function("location.search.includes('expert_imbalance=2')")
    field.scroll_into_view_if_needed()
    page.screenshot(path=ARTIFACTS / "screenshots" / f"expert-imbalance-{width}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    field.fill("9")
    field.press("Enter")
    expect(page.get_by_text("one of 8 expert-parallel ranks").first).to_be_visible()
    field.fill("2")
    field.press("Enter")
    ranks = page.get_by_role("textbox", name="Expert parallel", exact=True)
    ranks.fill("1")
    ranks.press("Enter")
    expect(field).to_be_disabled()
