"""A CUDA memory snapshot read without torch and without running anything that the file holds.

`torch.cuda.memory._dump_snapshot(path)` pickles plain containers: segments with their blocks, and
the allocator's events when `torch.cuda.memory._record_memory_history()` was on
(torch/cuda/memory.py, `_snapshot`; torch/csrc/cuda/memory_snapshot.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.core.errors import ScenarioError
from shardwise.core.memory.history import Peaks, peaks_of
from shardwise.core.memory.plain_pickle import NotPlain, plain
from shardwise.core.units import format_gib

FIELD = "snapshot"
ALLOWED = "a file written by torch.cuda.memory._dump_snapshot"
LARGEST_FILE = 4 * 2**30
LARGEST_GAPS = 10
MOST_ENTRIES = 20_000_000


@dataclass(frozen=True)
class Gap:
    """Free bytes inside a segment that is in use: no other segment or process can have them."""

    size_bytes: int
    address: int
    segment_bytes: int
    stream: int


@dataclass(frozen=True)
class Snapshot:
    """One device's allocator at the time of the dump; sizes in bytes.

    `allocated_bytes` is what tensors hold (in the allocator's rounded sizes), `active_bytes` adds
    blocks that another stream still uses, `reserved_bytes` all segments. Of what is free,
    `cached_bytes` are whole segments (`empty_cache()` gives them back) and `gap_bytes` lie inside
    used ones; `gaps` are the largest. `rounding_bytes` were handed out but not asked for.
    The peaks are those of the recorded events, None when no history was recorded.
    """

    device: int
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    rounding_bytes: int
    cached_bytes: int
    gap_bytes: int
    gaps: tuple[Gap, ...]
    segments: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    events: int
    out_of_memory: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        """The totals in one line."""
        peak = self.peak_allocated_bytes
        recorded = f", peak {format_gib(peak)} in {self.events:,} events" if peak else ""
        return (
            f"device {self.device}: {format_gib(self.reserved_bytes)} reserved, "
            f"{format_gib(self.allocated_bytes)} allocated{recorded}, "
            f"{format_gib(self.gap_bytes)} in gaps, {format_gib(self.cached_bytes)} cached"
        )


def read_snapshot(source: str | Path | bytes, device: int | None = None) -> Snapshot:
    """The snapshot in a file (or its bytes), for one device: the one with most reserved bytes.

    Only dicts, lists, tuples, numbers, text and the like are built; a file that names any class or
    function is refused unread.

    Args:
        source: the file's path, or its content.
        device: a device index, when the fullest is not the one that is asked about.

    Raises:
        ScenarioError: no such file, not a pickle of plain containers, not a memory snapshot, or
            nothing on that device.

    >>> import pickle
    >>> blocks = [{"size": 512, "requested_size": 8, "state": "active_allocated"}]
    >>> blocks += [{"size": 2**21 - 512, "state": "inactive"}]
    >>> segment = {"device": 0, "total_size": 2**21, "blocks": blocks}
    >>> found = read_snapshot(pickle.dumps({"segments": [segment]}))
    >>> found.allocated_bytes, found.gap_bytes, found.rounding_bytes
    (512, 2096640, 504)
    """
    data = _plain(_content(source))
    segments = _listed(data, "segments")
    traces = _listed(data, "device_traces") if "device_traces" in data else []
    by_device: dict[int, list[Mapping[str, Any]]] = {}
    for segment in segments:
        if not isinstance(segment, Mapping):
            raise _broken("its segments are no dicts")
        by_device.setdefault(_size(segment, "device", 0), []).append(segment)
    if not by_device:
        raise ScenarioError(FIELD, "no segments", ALLOWED, "nothing was allocated when it was made")
    if device is None:
        device = max(by_device, key=lambda index: _total(by_device[index], "total_size"))
    if not isinstance(device, int) or device not in by_device:
        listed = ", ".join(str(index) for index in sorted(by_device))
        raise ScenarioError("device", device, f"one of the snapshot's devices: {listed}")
    events = traces[device] if 0 <= device < len(traces) else []
    return _summary(device, by_device[device], events)


def _summary(device: int, segments: list[Mapping[str, Any]], events: object) -> Snapshot:
    reserved = _total(segments, "total_size")
    gaps: list[Gap] = []
    counted = {"allocated": 0, "active": 0, "rounding": 0, "cached": 0, "gap": 0}
    left = MOST_ENTRIES
    for segment in segments:
        blocks = _listed(segment, "blocks")
        left -= len(blocks)
        if left < 0:
            raise _broken(f"it has more than {MOST_ENTRIES:,} blocks")
        _count_blocks(segment, blocks, counted, gaps)
    peaks = Peaks(None, None, 0, ())
    if isinstance(events, list) and events:
        if len(events) > MOST_ENTRIES:
            raise _broken(f"it has more than {MOST_ENTRIES:,} events")
        peaks = peaks_of(events, counted["allocated"], reserved)
    gaps.sort(key=lambda gap: (-gap.size_bytes, gap.address))
    return Snapshot(
        device=device,
        reserved_bytes=reserved,
        allocated_bytes=counted["allocated"],
        active_bytes=counted["active"],
        rounding_bytes=counted["rounding"],
        cached_bytes=counted["cached"],
        gap_bytes=counted["gap"],
        gaps=tuple(gaps[:LARGEST_GAPS]),
        segments=len(segments),
        peak_allocated_bytes=peaks.allocated,
        peak_reserved_bytes=peaks.reserved,
        events=peaks.events,
        out_of_memory=peaks.out_of_memory,
    )


def _count_blocks(
    segment: Mapping[str, Any], blocks: Sequence[Any], counted: dict[str, int], gaps: list[Gap]
) -> None:
    """Add one segment's blocks up; free ones are gaps when another block of it is in use."""
    total, stream = _size(segment, "total_size"), _size(segment, "stream", 0)
    free: list[Gap] = []
    address = _size(segment, "address", 0)
    for block in blocks:
        if not isinstance(block, Mapping):
            raise _broken("its blocks are no dicts")
        size, state = _size(block, "size"), block.get("state")
        if state == "inactive":
            free.append(Gap(size, _size(block, "address", address), total, stream))
        else:
            counted["active"] += size
            if state == "active_allocated":
                counted["allocated"] += size
                counted["rounding"] += size - _size(block, "requested_size", size)
        address += size
    whole = len(free) == len(blocks)
    counted["cached" if whole else "gap"] += sum(gap.size_bytes for gap in free)
    if not whole:
        gaps.extend(free)


def _content(source: str | Path | bytes) -> bytes:
    if isinstance(source, bytes):
        return source
    if not isinstance(source, (str, Path)):
        raise ScenarioError(FIELD, source, f"{ALLOWED}: a path, or a file's bytes")
    path = Path(source)
    try:
        if not path.is_file():  # a device or a pipe has no end
            raise ScenarioError(FIELD, str(path), f"{ALLOWED}: it cannot be read")
        if path.stat().st_size > LARGEST_FILE:
            raise ScenarioError(FIELD, str(path), f"a file of at most {format_gib(LARGEST_FILE)}")
        return path.read_bytes()
    except (OSError, ValueError):
        raise ScenarioError(FIELD, str(source), f"{ALLOWED}: it cannot be read") from None


def _plain(content: bytes) -> Mapping[str, Any]:
    try:
        data = plain(content)
    except NotPlain as found:
        hint = f"it holds {found}" if "." in str(found) else ""
        raise ScenarioError(FIELD, "no pickle of plain containers", ALLOWED, hint) from None
    if not isinstance(data, Mapping) or "segments" not in data:
        raise ScenarioError(FIELD, f"a pickled {type(data).__name__}", ALLOWED)
    return data


def _listed(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise _broken(f"its {key} are no list")
    return value


def _size(entry: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = entry.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
        raise _broken(f"{key} is no size")
    return value


def _total(segments: list[Mapping[str, Any]], key: str) -> int:
    return sum(_size(segment, key) for segment in segments)


def _broken(reason: str) -> ScenarioError:
    return ScenarioError(FIELD, "a file that torch did not write", f"{ALLOWED}; {reason}")
