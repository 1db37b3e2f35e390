"""CUDA memory snapshots: totals and peaks against torch's own viewer and a simulated allocator.

The snapshots are made by a small caching allocator in torch's format (torch/cuda/memory.py,
`_snapshot`), since no card is at hand where these tests run.
"""

from __future__ import annotations

import collections
import os
import pickle
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.core.errors import ScenarioError
from shardwise.core.memory import plain_pickle
from shardwise.core.memory.plain_pickle import NotPlain, plain
from shardwise.core.memory.snapshot import LARGEST_GAPS, read_snapshot

SEGMENT = 20 * 2**20


class Allocator:
    """First fit in 20 MiB segments, 512-byte blocks, neighbors merged when freed."""

    def __init__(self) -> None:
        """Nothing is reserved."""
        self.segments: list[list[dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []
        self.allocated = self.peak = self.peak_reserved = 0

    def _event(self, action: str, block: dict[str, Any], size: int) -> None:
        entry = {"action": action, "addr": block["address"], "size": size, "stream": 0}
        self.events.append({**entry, "frames": [], "time_us": len(self.events)})

    def alloc(self, requested: int) -> dict[str, Any]:
        """A block for this many bytes; a new segment when none has room."""
        size = -(-requested // 512) * 512
        for blocks in self.segments:
            for at, block in enumerate(blocks):
                if block["state"] == "inactive" and block["size"] >= size:
                    return self._take(blocks, at, size, requested)
        address = 0x7F0000000000 + len(self.segments) * SEGMENT
        whole = {"address": address, "size": SEGMENT, "requested_size": 0, "state": "inactive"}
        self.segments.append([whole])
        self._event("segment_alloc", whole, SEGMENT)
        self.peak_reserved = max(self.peak_reserved, len(self.segments) * SEGMENT)
        return self._take(self.segments[-1], 0, size, requested)

    def _take(self, blocks: list[Any], at: int, size: int, requested: int) -> dict[str, Any]:
        block = blocks[at]
        rest = {**block, "address": block["address"] + size, "size": block["size"] - size}
        block.update(size=size, requested_size=requested, state="active_allocated")
        if rest["size"]:
            blocks.insert(at + 1, rest)
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self._event("alloc", block, requested)
        return block

    def free(self, block: dict[str, Any]) -> None:
        """Give a block back."""
        self._event("free_requested", block, block["requested_size"])
        self._event("free_completed", block, block["requested_size"])
        self.allocated -= block["size"]
        block.update(state="inactive", requested_size=0)
        blocks = next(blocks for blocks in self.segments if any(b is block for b in blocks))
        merged: list[dict[str, Any]] = []
        for one in blocks:
            if merged and merged[-1]["state"] == one["state"] == "inactive":
                merged[-1]["size"] += one["size"]
            else:
                merged.append(one)
        blocks[:] = merged

    def snapshot(self, events: int | None = None) -> dict[str, Any]:
        """What torch.cuda.memory._snapshot() gives, with the last so many events."""
        segments = [
            {
                "device": 0, "address": blocks[0]["address"], "total_size": SEGMENT, "stream": 0,
                "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
                "allocated_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
                "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
                "blocks": [{**block, "frames": []} for block in blocks], "frames": [],
            }
            for blocks in self.segments
        ]  # fmt: skip
        kept = self.events if events is None else self.events[len(self.events) - events :]
        return {
            "segments": segments, "device_traces": [list(kept)], "external_annotations": [],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
        }  # fmt: skip


def run(seed: int, steps: int) -> Allocator:
    """Tensors come and go."""
    rng, allocator, held = random.Random(seed), Allocator(), []
    for _ in range(steps):
        if held and rng.random() < 0.45:
            allocator.free(held.pop(rng.randrange(len(held))))
        else:
            held.append(allocator.alloc(rng.randrange(1, 9 * 2**20)))
    return allocator


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 120))
def test_peaks_and_totals_are_the_allocators(seed: int, steps: int) -> None:
    """With the whole history: the allocator's own counters, to the byte."""
    allocator = run(seed, steps)
    found = read_snapshot(pickle.dumps(allocator.snapshot()))
    assert found.peak_allocated_bytes == allocator.peak
    assert found.peak_reserved_bytes == allocator.peak_reserved
    assert found.allocated_bytes == found.active_bytes == allocator.allocated
    assert found.reserved_bytes == len(allocator.segments) * SEGMENT
    free = found.reserved_bytes - found.active_bytes
    assert found.gap_bytes + found.cached_bytes == free
    assert found.events == len(allocator.events)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 40))
def test_a_history_that_forgot_its_beginning_gives_a_lower_bound(seed: int, kept: int) -> None:
    """The ring keeps the last events: the peak over those, never below what is held at the end."""
    allocator = run(seed, 60)
    kept = min(kept, len(allocator.events))
    found = read_snapshot(pickle.dumps(allocator.snapshot(kept)))
    if not kept:
        assert found.peak_allocated_bytes is None
        return
    assert allocator.allocated <= found.peak_allocated_bytes <= allocator.peak


@pytest.mark.parametrize("seed", range(5))
def test_torchs_viewer_sums_the_same(seed: int) -> None:
    """torch.cuda._memory_viz prints the totals that are read here, and its own sums hold."""
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = run(seed, 100).snapshot()
    found = read_snapshot(pickle.dumps(snapshot))
    printed = viewer.segsum(snapshot)
    asked_for = found.allocated_bytes - found.rounding_bytes
    free = found.reserved_bytes - asked_for
    assert f"total_reserved: {viewer.Bytes(found.reserved_bytes)}\n" in printed
    assert f"total_allocated: {viewer.Bytes(asked_for)}\n" in printed
    assert f"total_free: {viewer.Bytes(free)}" in printed
    assert f"segments: {found.segments}\n" in printed
    internal = float(re.search(r"total_free: .*\((.*)% internal\)", printed)[1])  # type: ignore[index]
    assert internal == pytest.approx(100 * found.rounding_bytes / free, abs=0.051)
    assert f"{found.events} entries" in viewer.trace(snapshot)


def test_the_largest_gaps_are_named() -> None:
    """Every other tensor freed: gaps in order of size, each inside a segment that is in use."""
    allocator = Allocator()
    blocks = [allocator.alloc((1 + i % 7) * 2**20) for i in range(40)]
    for block in blocks[::2]:
        allocator.free(block)
    found = read_snapshot(pickle.dumps(allocator.snapshot()))
    sizes = [gap.size_bytes for gap in found.gaps]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == LARGEST_GAPS
    assert sizes[0] <= SEGMENT
    assert sum(sizes) <= found.gap_bytes
    everything = sorted(
        (b["size"] for seg in allocator.segments for b in seg if b["state"] == "inactive"),
        reverse=True,
    )
    assert sizes == everything[:LARGEST_GAPS]
    assert "in gaps" in str(found)


def test_whole_segments_that_are_free_are_cache_not_gaps() -> None:
    """`empty_cache()` would give them back."""
    allocator = Allocator()
    allocator.free(allocator.alloc(SEGMENT))
    allocator.alloc(SEGMENT)
    allocator.free(allocator.alloc(SEGMENT))
    found = read_snapshot(pickle.dumps(allocator.snapshot()))
    assert found.cached_bytes == SEGMENT
    assert found.gap_bytes == 0
    assert found.gaps == ()


def test_a_block_that_another_stream_still_uses_is_active_not_allocated() -> None:
    """As torch's statistics have it."""
    allocator = Allocator()
    allocator.alloc(3 * 2**20)
    waiting = allocator.alloc(2**20)
    snapshot = allocator.snapshot()
    for block in snapshot["segments"][0]["blocks"]:
        if block["address"] == waiting["address"]:
            block["state"] = "active_pending_free"
    found = read_snapshot(pickle.dumps(snapshot))
    assert (found.allocated_bytes, found.active_bytes) == (3 * 2**20, 4 * 2**20)


def test_expandable_segments_and_out_of_memory_are_read() -> None:
    """Mapped pages count as reserved; an OOM keeps what was wanted and what was free."""
    snapshot = run(1, 10).snapshot()
    snapshot["device_traces"][0] += [
        {"action": "segment_map", "addr": 1, "size": 64 * 2**20},
        {"action": "oom", "size": 2**30, "device_free": 5 * 2**20, "frames": []},
        {"action": "segment_unmap", "addr": 1, "size": 64 * 2**20},
    ]
    found = read_snapshot(pickle.dumps(snapshot))
    assert found.peak_reserved_bytes == found.reserved_bytes + 64 * 2**20
    assert found.out_of_memory == ((2**30, 5 * 2**20),)


def test_the_fullest_device_is_read_unless_one_is_named(tmp_path: Path) -> None:
    """From a file, as torch writes it."""
    snapshot, other = run(1, 10).snapshot(), run(2, 100).snapshot()
    for segment in other["segments"]:
        segment["device"] = 1
    snapshot["segments"] += other["segments"]
    snapshot["device_traces"] += other["device_traces"]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    assert read_snapshot(path).device == 1
    first = read_snapshot(str(path), device=0)
    assert (first.device, first.events) == (0, len(snapshot["device_traces"][0]))
    with pytest.raises(ScenarioError, match=r"^device is 3; allowed: one .* devices: 0, 1\.$"):
        read_snapshot(path, device=3)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@settings(deadline=None)
@given(PLAIN, st.integers(2, 5))
def test_plain_containers_come_back_as_pickle_gives_them(value: Any, protocol: int) -> None:
    """Every protocol that torch may have used."""
    assert plain(pickle.dumps(value, protocol)) == value


def test_long_files_take_the_fast_way_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same content, and classes are refused there too."""
    content = pickle.dumps(run(3, 30).snapshot())
    careful = read_snapshot(content)
    monkeypatch.setattr(plain_pickle, "CAREFUL_UP_TO", 10)
    assert read_snapshot(content) == careful
    with pytest.raises(NotPlain, match=r"collections\.OrderedDict"):
        plain(pickle.dumps(collections.OrderedDict()))


class Runs:
    """Runs a command when it is unpickled the usual way."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """The command."""
        return os.system, ("touch was_here",)


NESTED = b"\x80\x04)" + b"\x85" * 200_000 + b"K\x01"  # a tuple in a tuple, 200,000 deep, and a 1
HOSTILE = {
    "a command": pickle.dumps(Runs()),
    "a class": pickle.dumps(collections.OrderedDict(segments=[])),
    "a function": pickle.dumps({"segments": [subprocess.run]}),
    "a huge memo index": b"\x80\x04]r\xff\xff\xff\x7f.",
    "a key nested deep": b"\x80\x04}" + NESTED[2:] + b"s.",
    "a set of it": b"\x80\x04\x8f(" + NESTED[2:-2] + b"\x90.",
    "a persistent object": b"\x80\x04\x8c\x01xQ.",
    "a length beyond the file": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "a mark that is missing": b"\x80\x04]e.",
    "nothing on the stack": b"\x80\x04\x86.",
    "an append to a number": b"\x80\x04K\x01K\x02a.",
    "no end": b"\x80\x04]",
    "nothing": b"",
    "text": b"not a pickle",
    "JSON": b'{"segments": []}',
    "half a file": pickle.dumps(run(1, 30).snapshot())[:-200],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_and_broken_files_are_one_clear_sentence(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the file runs, nothing is imported, and the process lives on."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        read_snapshot(HOSTILE[what])
    assert str(caught.value).startswith("snapshot is ")
    assert "torch.cuda.memory._dump_snapshot" in str(caught.value)
    assert len(str(caught.value)) < 300
    assert list(tmp_path.iterdir()) == []


def edited(**fields: Any) -> dict[str, Any]:
    """A good snapshot with something else in its place."""
    return {**run(1, 5).snapshot(), **fields}


WRONG = {
    "no dict": [1, 2],
    "no segments": {"device_traces": []},
    "segments of something": edited(segments={"a": 1}),
    "a segment that is none": edited(segments=[3]),
    "no blocks": edited(segments=[{"total_size": 5}]),
    "a block that is none": edited(segments=[{"total_size": 5, "blocks": ["x"]}]),
    "a negative size": edited(segments=[{"total_size": -5, "blocks": []}]),
    "a size as text": edited(segments=[{"total_size": 5, "blocks": [{"size": "5"}]}]),
    "no memory at all": edited(segments=[]),
    "events of something": edited(device_traces={"a": 1}),
    "an event that is none": edited(device_traces=[[7]]),
    "an event with a bad size": edited(device_traces=[[{"action": "alloc", "size": -4}]]),
}


@pytest.mark.parametrize("what", WRONG)
def test_other_pickles_are_refused(what: str) -> None:
    """Plain containers that are no snapshot."""
    with pytest.raises(ScenarioError) as caught:
        read_snapshot(pickle.dumps(WRONG[what]))
    assert str(caught.value).startswith("snapshot is ")


@pytest.mark.parametrize("path", ["missing.pickle", ".", "a\0b"])
def test_files_that_cannot_be_read_are_named(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file, a folder, a name that cannot be."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError, match="it cannot be read"):
        read_snapshot(path)
