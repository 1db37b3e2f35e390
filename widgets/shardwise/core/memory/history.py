"""The peaks of a recorded allocator history, anchored at what is allocated when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.core.errors import ScenarioError
from shardwise.core.memory.allocator import ROUNDING

_ALLOCATED = {"alloc": 1, "free_requested": -1, "free": -1}
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True)
class Peaks:
    """The highest allocated and reserved bytes, events read, (wanted, free) of each OOM."""

    allocated: int | None
    reserved: int | None
    events: int
    out_of_memory: tuple[tuple[int, int], ...]


def peaks_of(events: Sequence[object], allocated: int, reserved: int) -> Peaks:
    """Peaks over the events, given what is allocated and reserved after the last of them.

    The history is a ring that forgets its oldest entries, so it is read from its end: the level
    before an event is the level after it less the event's own bytes. Sizes in the history are those
    asked for, rounded up here to 512 as the allocator does; blocks that it did not split may be up
    to 1 MiB larger, so the allocated peak is a lower bound, and never below the level at the end.

    Raises:
        ScenarioError: an event that is no dict or has no size.

    >>> history = [{"action": "alloc", "size": 1000}, {"action": "free_requested", "size": 1000}]
    >>> peaks_of(history, 4096, 2 * 2**20).allocated
    5120
    """
    now, held = allocated, reserved
    peak, peak_held = allocated, reserved
    failures = []
    for event in reversed(events):
        action, size, free = _read(event)
        if action in _ALLOCATED:
            now -= _ALLOCATED[action] * (-(-size // ROUNDING) * ROUNDING)
            peak = max(peak, now)
        elif action in _RESERVED:
            held -= _RESERVED[action] * size
            peak_held = max(peak_held, held)
        elif action == "oom":
            failures.append((size, free))
    return Peaks(peak, max(peak_held, peak), len(events), tuple(reversed(failures)))


def _read(event: object) -> tuple[object, int, int]:
    if isinstance(event, Mapping):
        size, free = event.get("size", 0), event.get("device_free", 0)
        if isinstance(size, int) and isinstance(free, int) and size >= 0:
            return event.get("action"), size, free
    raise ScenarioError(
        "snapshot", "an event without a size", "a file written by torch.cuda.memory._dump_snapshot"
    )
