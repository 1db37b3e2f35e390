"""The page's own code: small scripts joined into the one module that an anywidget carries."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def asset(name: str) -> str:
    """The text of one file in `shardwise/static`."""
    return (resources.files("shardwise") / "static" / name).read_text(encoding="utf-8")


def script(*names: str) -> str:
    """Several scripts as one module; the last one exports the widget.

    Text, not a path: anywidget watches files and keeps every widget made from one alive.
    """
    return "\n".join(asset(name) for name in names)


STYLE = asset("style.css")
