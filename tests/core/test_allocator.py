"""The caching allocator on integers, against what CUDACachingAllocator.cpp says of itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shardwise.core.memory.allocator import MIB, Allocator, held_for, rounded, segment_bytes


def test_requests_are_rounded_to_512_bytes() -> None:
    """`kMinBlockSize`: one byte takes 512, 513 take 1024."""
    assert [rounded(size) for size in (1, 512, 513)] == [512, 512, 1024]


def test_small_requests_are_packed_into_segments_of_2_mebibytes() -> None:
    """Three of 512 KiB share one segment, a fifth begins another."""
    memory = Allocator()
    for key in range(5):
        memory.allocate(key, MIB // 2)
    assert memory.reserved == 4 * MIB


def test_requests_from_1_to_10_mebibytes_split_a_segment_of_20() -> None:
    """Two of 9 MiB share one, as the file's first comment says; 10 MiB get 10, 11 get 12."""
    memory = Allocator()
    for key in range(2):
        memory.allocate(key, 9 * MIB)
    assert memory.reserved == 20 * MIB
    assert [segment_bytes(size * MIB) for size in (10, 11)] == [10 * MIB, 12 * MIB]


def test_a_rest_of_up_to_a_mebibyte_stays_with_a_large_block() -> None:
    """`should_split`: 21 MiB take a segment of 22 and, freed, 20.5 MiB take all of it."""
    memory = held_for([("a", 21 * MIB, 0)])
    assert (memory.allocated, memory.reserved) == (22 * MIB, 22 * MIB)
    memory.free("a")
    memory.allocate("b", 20 * MIB)
    assert memory.allocated == 20 * MIB  # a rest of 2 MiB is split off
    memory.allocate("c", 2 * MIB)
    assert memory.reserved == 22 * MIB


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    """Best fit: of 40 and 30 free, 25 go into the 30."""
    events = [("a", 40 * MIB, 0), ("b", 30 * MIB, 0), ("a", 0, 0), ("b", 0, 0), ("c", 25 * MIB, 0)]
    memory = held_for(events)
    memory.allocate("d", 40 * MIB)
    assert memory.reserved == 70 * MIB


def test_freed_neighbors_join_and_serve_a_larger_request() -> None:
    """Three pieces of one segment, freed in any order, are one block again."""
    for order in ("abc", "bca", "cab", "acb"):
        memory = held_for([("x", 60 * MIB, 0), ("x", 0, 0)])
        for key in "abc":
            memory.allocate(key, 20 * MIB)
        for key in order:
            memory.free(key)
        memory.allocate("y", 60 * MIB)
        assert memory.reserved == 60 * MIB


def test_a_stream_cannot_use_another_streams_free_block() -> None:
    """`get_free_block` compares streams: the second takes memory of its own."""
    memory = held_for([("a", 30 * MIB, 0), ("a", 0, 0), ("b", 30 * MIB, 1)])
    assert memory.reserved == 60 * MIB


def test_before_a_request_fails_whole_free_segments_go_back() -> None:
    """`release_cached_blocks`: of 80 MiB, 30 cached make room for 60; a split segment stays."""
    memory = held_for([("a", 30 * MIB, 0), ("a", 0, 0)], capacity=80 * MIB)
    assert memory.allocate("b", 60 * MIB)
    assert (memory.reserved, memory.released) == (60 * MIB, 30 * MIB)
    memory.free("b")
    memory.allocate("c", 10 * MIB)  # cut out of the 60
    assert not memory.allocate("d", 61 * MIB)


def test_a_stream_of_events_that_finds_no_room_says_so() -> None:
    """The error names what was asked for and what lived."""
    with pytest.raises(MemoryError, match=r"no room for 2147483648 B beside 0 B"):
        held_for([("a", 2**31, 0)], capacity=2**30)


@given(
    some.lists(
        some.tuples(
            some.integers(0, 15),
            some.sampled_from((0, 1, 700, MIB, MIB + 1, 5 * MIB, 11 * MIB, 64 * MIB)),
            some.integers(0, 1),
        ),
        max_size=60,
    )
)
def test_blocks_fill_their_segments_and_never_overlap(events: list[tuple[int, int, int]]) -> None:
    """Reserved bytes are the blocks' sum, and once all is freed everything can go back."""
    memory = held_for(events)
    blocks = [*memory._live.values(), *memory._free.values()]
    assert sum(block.size for block in blocks) == memory.reserved
    assert sum(block.size for block in memory._live.values()) == memory.allocated
    spans = sorted((block.address, block.address + block.size) for block in blocks)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert memory.peak_reserved >= memory.peak_allocated >= memory.allocated
    for key in list(memory._live):
        memory.free(key)
    memory.release_cached()
    assert memory.reserved == 0
