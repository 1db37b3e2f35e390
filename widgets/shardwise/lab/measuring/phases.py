"""Seconds by phase of a step, with the GPU's queue emptied at each border."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Phases:
    """`with phases("forward"): ...`; `.seconds` maps each name to its sum."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add the time inside to `name`."""
        _settle()
        started = time.perf_counter()
        try:
            yield
        finally:
            _settle()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def _settle() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
