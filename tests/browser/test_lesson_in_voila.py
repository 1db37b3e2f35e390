"""A lesson as a page: real ranks started by a button, in a browser, under Voila."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from servers import ROOT, Server

pytest.importorskip("torch")

LESSON = ROOT / "lessons" / "00-what-ran-out.ipynb"


def test_a_press_runs_ranks_and_shows_what_each_holds(
    page: Page, serve: Callable[..., Server]
) -> None:
    """Nothing runs from the button at first; a press starts two ranks and draws their memory."""
    server = serve(LESSON, pool=0, name="lesson")
    page.set_default_timeout(60_000)
    page.goto(server.address)
    button = page.get_by_role("button", name="Run", exact=True)
    expect(button).to_be_visible(timeout=60_000)
    expect(page.get_by_text("Nothing has run yet.")).to_be_visible()
    page.get_by_role("button", name="2 ranks", exact=True).click()
    button.click()
    expect(page.get_by_text("2 ranks at work")).to_be_visible()
    result = page.locator("figure", has_text="2: rank 1").last
    expect(result).to_contain_text("together 3,528,912 B", timeout=60_000)
    expect(page.get_by_text("2 ranks at work")).to_have_count(0)
    expect(button).to_be_enabled()


def test_the_page_answers_while_ranks_run(page: Page, serve: Callable[..., Server]) -> None:
    """A field filled in right after the press is answered, and the run's result comes as well."""
    server = serve(LESSON, pool=0, name="lesson-busy")
    page.goto(server.address)
    button = page.get_by_role("button", name="Run", exact=True)
    expect(button).to_be_visible(timeout=60_000)
    named = page.get_by_role("textbox", name="Nodes", exact=True)
    field = page.locator(".sw-field", has=named).last  # a panel of the lesson has one too
    nodes = field.get_by_role("textbox")
    page.get_by_role("button", name="4 ranks", exact=True).click()
    button.click()
    expect(page.get_by_text("4 ranks at work")).to_be_visible()
    nodes.fill("abc")
    expect(field.locator(".sw-error")).to_contain_text("allowed: a whole number")
    nodes.fill("2")
    expect(field.locator(".sw-error")).to_have_text("")
    expect(page.locator("figure", has_text="4: rank 3")).to_have_count(1, timeout=60_000)
