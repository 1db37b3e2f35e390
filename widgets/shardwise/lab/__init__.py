"""The lab: real ranks in a notebook, predictions kept, results measured and reconciled.

`%load_ext shardwise.lab` brings the `%%ranks` magic. Names load on first use; torch stays out of
the notebook's process until something that needs it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "run": "ranks",
    "RunButton": "button",
    "RunResult": "result",
    "RankResult": "result",
    "RanksFailed": "result",
    "Cause": "result",
    "predict": "predictions",
    "reconcile": "predictions",
    "check": "checks",
    "torchrun_files": "torchrun",
    "shut_down": "forkserver",
}
_MODULES = ("measure", "trace")

__all__ = sorted([*_HOMES, *_MODULES])


def __getattr__(name: str) -> Any:
    """Import the module that holds `name` when it is first asked for."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext shardwise.lab` calls."""
    from shardwise.lab.magic import RanksMagic

    shell.register_magics(RanksMagic)
