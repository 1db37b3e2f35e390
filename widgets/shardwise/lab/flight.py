"""torch's flight record of a rank, and the leash from the server that asks for it or ends it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from shardwise.lab.surroundings import FAILED_EXIT_CODE, leave


def watch_leash(leash: int, flight: Path) -> None:
    """A thread on the pipe from the server: a byte asks for the flight record, its end for ours."""

    def watch() -> None:
        while True:
            if not os.read(leash, 1):
                leave(FAILED_EXIT_CODE)
            dump_flight(flight)

    threading.Thread(target=watch, daemon=True).start()


def dump_flight(path: Path) -> None:
    """Write what torch recorded of the last collectives, where this torch records it."""
    import torch

    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is not None:
        with contextlib.suppress(RuntimeError):
            text = dump(True, False)
            write_whole(path, text.encode() if isinstance(text, str) else text)


def write_whole(path: Path, content: bytes) -> None:
    """All or nothing: a reader never sees half a file."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(content)
    part.replace(path)
