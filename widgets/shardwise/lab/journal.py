"""What each rank was doing: a record of its collectives that survives the rank.

The record lies in a memory-mapped file, so it can be read after the rank was killed, aborted in C++
or hung. torch's own flight recorder lies in the process and is gone with it.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.lab.program import CELL_FILE

SLOTS = 512
SLOT_BYTES = 256

POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "gather",
    "gather_object",
    "scatter",
    "scatter_object_list",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "broadcast_object_list",
    "barrier",
    "monitored_barrier",
)
# Every rank of the group passes the same number of elements to these; others may differ by design.
SAME_SIZE = ("all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


@dataclass(frozen=True)
class Entry:
    """One call of a collective: where, with what, and whether it returned."""

    operation: str
    group: str
    number: int  # counted from 1 within the group, point-to-point calls apart
    line: int
    elements: int | None
    dtype: str
    peer: int | None
    returned: bool

    @property
    def point_to_point(self) -> bool:
        """Whether one other rank is addressed instead of the group."""
        return self.operation in POINT_TO_POINT

    def __str__(self) -> str:
        """`all_reduce of float32[4]`."""
        what = self.operation
        if self.elements is not None:
            what = f"{what} of {self.dtype}[{self.elements}]"
        if self.peer is not None:
            word = "from" if "recv" in self.operation else "to"
            what = f"{what} {word} rank {self.peer}"
        return what


class Journal:
    """The writing end: wraps torch.distributed's calls in one rank."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(b"\0" * (SLOTS * SLOT_BYTES))
        descriptor = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(descriptor, SLOTS * SLOT_BYTES)
        os.close(descriptor)
        self._written = 0
        self._numbers: dict[str, int] = {}
        self._depth = 0

    def install(self) -> None:
        """Wrap each call, in the module people import it from and in the one that defines it."""
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        for name in (*COLLECTIVES, *POINT_TO_POINT):
            original = getattr(dist, name, None)
            if original is not None:
                wrapped = self._wrapped(name, original)
                setattr(dist, name, wrapped)
                setattr(distributed_c10d, name, wrapped)

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if (
                self._depth
            ):  # all_gather_object calls all_gather: the outer name is what people wrote
                return original(*args, **kwargs)
            slot, record = self._enter(name, args, kwargs)
            self._depth = 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth = 0
            self._store(slot, [*record[:-1], 1])
            return result

        return call

    def _enter(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, list]:
        elements, dtype = _payload(args, kwargs)
        group = _group_name(name, args, kwargs)
        peer = _peer(name, args, kwargs)
        counter = f"p2p {group}" if name in POINT_TO_POINT else group
        number = self._numbers[counter] = self._numbers.get(counter, 0) + 1
        record = [self._written, name, group, number, _cell_line(), elements, dtype, peer, 0]
        slot = self._written % SLOTS
        self._written += 1
        self._store(slot, record)
        return slot, record

    def _store(self, slot: int, record: list) -> None:
        text = json.dumps(record).encode()[: SLOT_BYTES - 1]
        start = slot * SLOT_BYTES
        self._map[start : start + SLOT_BYTES] = text.ljust(SLOT_BYTES, b"\0")


def read_journal(path: Path) -> tuple[Entry, ...]:
    """The last 512 entries of a rank, oldest first; empty when it never got so far."""
    if not path.exists():
        return ()
    raw = path.read_bytes()
    records = []
    for start in range(0, len(raw), SLOT_BYTES):
        text = raw[start : start + SLOT_BYTES].rstrip(b"\0")
        try:
            records.append(json.loads(text))
        except ValueError:  # an empty slot, or one cut short by the death of its rank
            continue
    records.sort(key=lambda record: record[0])
    return tuple(Entry(*record[1:-1], returned=bool(record[-1])) for record in records)


def _payload(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | None, str]:
    """Elements and dtype of the first tensor passed, alone or in a list."""
    import torch

    for value in (*args, *kwargs.values()):
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        if isinstance(first, torch.Tensor):
            return first.numel(), str(first.dtype).removeprefix("torch.")
    return None, ""


def _group_name(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The ranks of the group as text, the same on each of its members; `all` for everybody."""
    import torch.distributed as dist

    group = kwargs.get("group")
    if group is None:
        kind = dist.ProcessGroup
        group = next((value for value in args if isinstance(value, kind)), None)
    if group is None or group is dist.group.WORLD or not isinstance(group, dist.ProcessGroup):
        return "all"
    ranks = dist.get_process_group_ranks(group)
    text = ",".join(map(str, ranks))
    return text if len(text) <= 60 else f"{text[:56]}...{len(ranks)}"


def _peer(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    if name not in ("send", "recv", "isend", "irecv"):
        return None
    value = kwargs.get("src" if "recv" in name else "dst", args[1] if len(args) > 1 else None)
    return value if isinstance(value, int) else None


def _cell_line() -> int:
    """The innermost line of the program that led here; 0 when none did."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != CELL_FILE:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0
