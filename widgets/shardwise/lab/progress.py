"""One line while ranks work, gone when they are done."""

from __future__ import annotations

import sys
import time
from types import TracebackType

QUIET_SECONDS = 1.0
STEP_SECONDS = 0.5


class Progress:
    """Writes over its own line on standard error; silent for the first second."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._started = time.monotonic()
        self._written = 0
        self._last = 0.0

    def __enter__(self) -> Progress:
        """Start the clock."""
        self._started = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the line away."""
        if self._written:
            sys.stderr.write("\r" + " " * self._written + "\r")
            sys.stderr.flush()

    def loading(self, seconds: float) -> None:
        """While the server loads torch, once a kernel."""
        self._say(f"loading torch for the ranks (once), {seconds:.0f} s")

    def waiting(self, world: int, ended: int, timeout: float) -> None:
        """While ranks work."""
        passed = time.monotonic() - self._started
        self._say(f"{world} ranks: {ended} done, {passed:.0f} s of at most {timeout:.0f} s")

    def _say(self, text: str) -> None:
        now = time.monotonic()
        if (
            not self._shown
            or now - self._started < QUIET_SECONDS
            or now - self._last < STEP_SECONDS
        ):
            return
        self._last = now
        padded = text.ljust(self._written)
        self._written = len(padded)
        sys.stderr.write("\r" + padded)
        sys.stderr.flush()
