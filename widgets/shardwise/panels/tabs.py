"""Tabs whose widgets are made when they are first opened, so that a page opens with few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ipywidgets as widgets


@dataclass(frozen=True)
class View:
    """One tab: its title, what makes its widgets, and the sections that they show now."""

    title: str
    made: Callable[[], Sequence[widgets.Widget]]
    sections: Callable[[], tuple[str, ...]]


def view(title: str, made: Callable[[], Sequence[widgets.Widget]], *sections: str) -> View:
    """A tab that always shows the same sections."""
    return View(title, made, lambda: sections)


class Tabs(widgets.Tab):
    """Views side by side; `opened` is called after each new choice, its widgets being there.

    Example:
        tabs = Tabs([view("Why", lambda: [LiveText(feed, "walk")])], opened=panel.refresh)
        tabs.choose("Why")
    """

    def __init__(self, views: Sequence[View], opened: Callable[[], None]) -> None:
        """The first view is open; the others are empty until they are chosen."""
        self.views = tuple(views)
        boxes = [widgets.VBox(layout=_BOX) for _ in self.views]
        super().__init__(
            boxes,
            titles=[one.title for one in self.views],
            selected_index=0,
            layout=widgets.Layout(width="100%", min_width="0"),
        )
        self.add_class("sw-tabs")
        self._fill()
        self.observe(lambda _: (self._fill(), opened()), "selected_index")

    @property
    def view(self) -> View:
        """The open one."""
        return self.views[self.selected_index or 0]

    def choose(self, title: str) -> None:
        """Choose the view of that title."""
        self.selected_index = [one.title for one in self.views].index(title)

    def _fill(self) -> None:
        box = self.children[self.selected_index or 0]
        if not box.children:
            box.children = tuple(self.view.made())


_BOX = widgets.Layout(width="100%", min_width="0")
