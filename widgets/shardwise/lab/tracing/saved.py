"""What autograd saves for backward: one row for each storage kind, by the module that made it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import torch

from shardwise.lab.tracing.ledger import Entry


@dataclass(frozen=True)
class SavedRow:
    """Storages saved for backward that look alike: same maker, operator, shape and dtype.

    `maker` is the module whose forward opened the storage (layer numbers as `*`), `operator` the
    dispatched operator, `savers` the modules during which autograd saved it, `count` how many
    storages, `each_bytes` the size of one without allocator rounding.
    """

    maker: str
    kind: str
    operator: str
    shape: tuple[int, ...]
    dtype: str
    each_bytes: int
    count: int
    savers: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all storages of the row."""
        return self.each_bytes * self.count


@dataclass(frozen=True)
class AliveRow:
    """Storages alive at the peak that look alike: part, maker, operator, shape and dtype."""

    part: str
    maker: str
    operator: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    total_bytes: int


def alive_rows(alive: list[tuple[Entry, int]]) -> tuple[AliveRow, ...]:
    """What was alive at the peak, largest first; freed (resized to 0) storages left out."""
    sums: dict[tuple[object, ...], list[int]] = {}
    for entry, number_bytes in alive:
        if number_bytes:
            maker = _merged(entry.maker).partition("|")[0]
            row = (entry.part, maker, entry.operator, entry.shape, entry.dtype)
            count_and_bytes = sums.setdefault(row, [0, 0])
            count_and_bytes[0] += 1
            count_and_bytes[1] += number_bytes
    rows = [AliveRow(*row, count, total) for row, (count, total) in sums.items()]  # type: ignore[arg-type]
    return tuple(sorted(rows, key=lambda row: -row.total_bytes))


@dataclass
class _Note:
    entry: Entry
    shape: tuple[int, ...]
    dtype: str
    savers: list[str] = field(default_factory=list)


class SavedTable:
    """Notes each storage once, however many nodes save it."""

    def __init__(self) -> None:
        """An empty, closed table."""
        self.open = False
        self._notes: dict[tuple[int, int], _Note] = {}

    def note(self, key: int, entry: Entry, tensor: torch.Tensor, saver: str) -> None:
        """Take note of a saved tensor while the table is open."""
        if not self.open:
            return
        note = self._notes.get((key, id(entry)))
        if note is None:
            note = _Note(entry, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            self._notes[(key, id(entry))] = note
        if saver not in note.savers:
            note.savers.append(saver)

    def rows(self) -> tuple[SavedRow, ...]:
        """The notes, layers merged, in the order of the forward pass."""
        merged: dict[tuple[object, ...], int] = {}
        for note in self._notes.values():
            savers = tuple(dict.fromkeys(_merged(name) for name in note.savers))
            maker, _, kind = _merged(note.entry.maker).partition("|")
            row = (
                maker,
                kind,
                note.entry.operator,
                note.shape,
                note.dtype,
                note.entry.number_bytes,
                tuple(saver.partition("|")[0] or "(outside)" for saver in savers),
            )
            merged[row] = merged.get(row, 0) + 1
        return tuple(
            SavedRow(m, k, o, s, d, b, count, w)  # type: ignore[arg-type]
            for (m, k, o, s, d, b, w), count in merged.items()
        )


def _merged(name: str) -> str:
    path, _, kind = name.partition("|")
    path = path.replace("._checkpoint_wrapped_module", "")
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path) + "|" + kind
