"""Parents, children and orphans among processes: none may stay (where Linux can see to it)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent ends, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def end_children() -> None:
    """End all children of this process, adopted ones included."""
    for _ in range(50):
        children = children_of(os.getpid())
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def children_of(pid: int) -> list[int]:
    """Ids of a process's children (Linux; elsewhere process groups have to do)."""
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    with contextlib.suppress(OSError, ValueError):
        return [int(word) for word in tasks.read_text().split()]
    return []
