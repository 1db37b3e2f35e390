"""A ledger of live storages: bytes by part now, and the highest total in each phase."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

SHARDED_PARAMETERS = "sharded parameters"
GATHERED_PARAMETERS = "gathered parameters"
GRADIENTS = "gradients"
OPTIMIZER_STATE = "optimizer state"
ACTIVATIONS = "activations"
TEMPORARIES = "temporaries"
COLLECTIVE_BUFFERS = "collective buffers"
BUFFERS_AND_INPUTS = "buffers and inputs"
PARTS = (
    SHARDED_PARAMETERS,
    GATHERED_PARAMETERS,
    GRADIENTS,
    OPTIMIZER_STATE,
    ACTIVATIONS,
    TEMPORARIES,
    COLLECTIVE_BUFFERS,
    BUFFERS_AND_INPUTS,
)


def rounded_bytes(number_bytes: int, block_bytes: int) -> int:
    """Bytes that an allocator with blocks of `block_bytes` hands out (0 or 1: no rounding).

    CUDA's caching allocator rounds every request up to 512 B (`kMinBlockSize`, torch
    c10/cuda/CUDACachingAllocator.cpp).

    >>> rounded_bytes(513, 512)
    1024
    """
    if block_bytes <= 1:
        return number_bytes
    return -(-number_bytes // block_bytes) * block_bytes


@dataclass
class Entry:
    """One live storage: its size as asked for, its part, and who made it."""

    number_bytes: int
    part: str
    maker: str = ""
    operator: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""


@dataclass
class Window:
    """A phase: its highest total, with the bytes by part at that moment and at its end."""

    peak_bytes: int = 0
    peak_parts: dict[str, int] = field(default_factory=dict)
    end_parts: dict[str, int] = field(default_factory=dict)


class Ledger:
    """Bytes by part of every open storage, and one `Window` a phase."""

    def __init__(self, block_bytes: int) -> None:
        """An empty ledger that rounds to blocks of `block_bytes`."""
        self.block_bytes = block_bytes
        self.entries: dict[int, Entry] = {}
        self.parts: dict[str, int] = defaultdict(int)
        self.total_bytes = 0
        self.windows: dict[str, Window] = {}
        self.alive: list[tuple[Entry, int]] = []
        self._window = Window()
        self._highest_bytes: float = float("inf")

    def open(self, key: int, entry: Entry) -> None:
        """Enter a new storage."""
        self.entries[key] = entry
        self._add(entry.part, rounded_bytes(entry.number_bytes, self.block_bytes))

    def close(self, key: int) -> None:
        """Strike out a storage that died."""
        entry = self.entries.pop(key, None)
        if entry is not None:
            self._add(entry.part, -rounded_bytes(entry.number_bytes, self.block_bytes))

    def resize(self, key: int, number_bytes: int) -> None:
        """Note that a storage now has `number_bytes`."""
        entry = self.entries[key]
        change = rounded_bytes(number_bytes, self.block_bytes) - rounded_bytes(
            entry.number_bytes, self.block_bytes
        )
        entry.number_bytes = number_bytes
        self._add(entry.part, change)

    def label(self, key: int, part: str) -> None:
        """Move a storage to another part; the total stays."""
        entry = self.entries[key]
        if entry.part != part:
            moved = rounded_bytes(entry.number_bytes, self.block_bytes)
            self.parts[entry.part] -= moved
            self.parts[part] += moved
            entry.part = part

    def relabel_all(self, old: str, new: str) -> None:
        """Move every storage of one part to another."""
        for key, entry in list(self.entries.items()):
            if entry.part == old:
                self.label(key, new)

    def begin(self, phase: str) -> None:
        """End the running phase and start another; its peak begins with what is alive."""
        self._window.end_parts = self.snapshot()
        self._window = Window(self.total_bytes, self.snapshot())
        self.windows[phase] = self._window

    def watch_highest(self) -> None:
        """From now on keep the list of what is alive at the highest total."""
        self._highest_bytes = 0

    def finish(self) -> None:
        """End the running phase."""
        self._window.end_parts = self.snapshot()

    def snapshot(self) -> dict[str, int]:
        """Bytes by part now, every part named, in the order of `PARTS`."""
        return {part: self.parts[part] for part in PARTS}

    def refresh_peak(self) -> None:
        """Take the parts at the peak again after labels changed at the same total."""
        if self.total_bytes == self._window.peak_bytes:
            self._window.peak_parts = self.snapshot()

    def _add(self, part: str, change_bytes: int) -> None:
        self.parts[part] += change_bytes
        self.total_bytes += change_bytes
        if change_bytes > 0 and self.total_bytes > self._window.peak_bytes:
            self._window.peak_bytes = self.total_bytes
            self._window.peak_parts = self.snapshot()
            if self.total_bytes > self._highest_bytes:
                self._highest_bytes = self.total_bytes
                self.alive = [(entry, entry.number_bytes) for entry in self.entries.values()]
