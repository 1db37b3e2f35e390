"""Whether a process still runs, by its id."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path


def runs(pid: int) -> bool:
    """True while the process executes; one that ended but was not yet collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def still_running(pids: Iterable[int], seconds: float) -> list[int]:
    """Which of them run after at most so many seconds of waiting for their end."""
    pids = list(pids)
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and any(map(runs, pids)):
        time.sleep(0.02)
    return [pid for pid in pids if runs(pid)]
