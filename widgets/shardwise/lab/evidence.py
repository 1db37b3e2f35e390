"""What is left of a rank: how the server saw it end, and the files it wrote."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardwise.lab.journal import read_journal
from shardwise.lab.order import Report
from shardwise.lab.result import RankResult
from shardwise.lab.stacks import position, stack_of_program

SHOWN_BYTES = 16 * 1024  # of each end of a rank's output


@dataclass
class Heard:
    """What the server said about one order, as it came in."""

    pids: list[int] = field(default_factory=list)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    reason: str = ""
    words: str = ""


def read_rank(folder: Path, rank: int, heard: Heard) -> RankResult:
    """One rank's end from what the server saw and what the rank left."""
    end = heard.ends.get(rank, {})
    report = _report(folder / f"rank{rank}.report")
    trace = _text(folder / f"rank{rank}.trace")
    line, inside = position(trace)
    base = RankResult(
        rank=rank,
        status=_status(report, end, heard.reason),
        output=_text(folder / f"rank{rank}.out"),
        pid=heard.pids[rank] if rank < len(heard.pids) else None,
        exit_code=None if end.get("stopped") else end.get("code"),
        peak_resident_bytes=end.get("peak_bytes"),
        ended_at=end.get("time", float("inf")),
        journal=read_journal(folder / f"rank{rank}.journal"),
        flight=_flight(folder / f"rank{rank}.flight"),
        line=line,
        waiting_in=inside,
        trace=stack_of_program(trace),
    )
    if report is None:
        return base
    return replace(
        base,
        values={name: pickle.loads(raw) for name, raw in report.values.items()},
        seconds=report.seconds,
        exception=report.exception,
        message=report.message,
        line=report.line,
        trace=report.trace,
        waiting_in="",
    )


def _report(path: Path) -> Report | None:
    return pickle.loads(path.read_bytes()) if path.exists() else None


def _status(report: Report | None, end: Mapping[str, Any], reason: str) -> str:
    if report is not None:
        return "ok" if report.status == "exit" and report.exit_code == 0 else report.status
    if end and not end.get("stopped"):
        return "died"
    return "hung" if reason == "deadline" else "stopped"


def _text(path: Path) -> str:
    """A file's text; of a very long one the beginning and the end."""
    if not path.exists():
        return ""
    size = path.stat().st_size
    if size <= 2 * SHOWN_BYTES:
        return path.read_text(errors="replace")
    with path.open("rb") as file:
        first = file.read(SHOWN_BYTES)
        file.seek(-SHOWN_BYTES, os.SEEK_END)
        last = file.read()
    cut = f"\n... {size - 2 * SHOWN_BYTES} bytes not shown ...\n"
    return first.decode(errors="replace") + cut + last.decode(errors="replace")


def _flight(path: Path) -> tuple[Mapping[str, Any], ...]:
    """torch's own record of collectives, as it lies in the rank of a failed run."""
    if not path.exists():
        return ()
    try:
        return tuple(json.loads(path.read_text()).get("entries", ()))
    except ValueError:
        return ()
