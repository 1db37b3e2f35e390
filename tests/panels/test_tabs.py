"""Tabs that are filled when they are opened, and send nothing once they are closed."""

from __future__ import annotations

import ipywidgets as widgets

from shardwise.panels.explorer import Explorer
from shardwise.panels.tabs import Tabs, view


def test_a_view_is_made_once_when_it_is_first_opened() -> None:
    """The first view is there at once, another only after its tab was chosen, and then it stays."""
    made: list[str] = []

    def label(name: str) -> list[widgets.Widget]:
        made.append(name)
        return [widgets.HTML(name)]

    opened: list[str] = []
    tabs = Tabs(
        [view("A", lambda: label("a")), view("B", lambda: label("b"), "s")],
        opened=lambda: opened.append(tabs.view.title),
    )
    assert (made, opened) == (["a"], [])
    tabs.choose("B")
    tabs.choose("A")
    tabs.choose("B")
    assert made == ["a", "b"]
    assert opened == ["B", "A", "B"]
    assert tabs.view.sections() == ("s",)


def test_a_closed_tab_costs_nothing() -> None:
    """After a look at every tab, a move sends what it sent before: the first screen's entries."""
    explorer = Explorer()
    before = set(explorer.feed.data)
    for one in explorer.more.views:
        explorer.more.choose(one.title)
    explorer.more.choose("Why")
    explorer.scenario = {"model": {"parameters": 13e9}}
    assert set(explorer.feed.data) == before


def test_the_first_screen_holds_no_widget_of_a_closed_tab() -> None:
    """Charts of other tabs are not made before they are looked at."""
    explorer = Explorer()
    filled = [bool(box.children) for box in explorer.more.children]
    assert filled == [True] + [False] * (len(filled) - 1)
