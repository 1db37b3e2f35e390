"""torch's caching allocator on integers: what it holds for a stream of requests and releases.

Written after c10/cuda/CUDACachingAllocator.cpp (`expandable_segments` off, no `max_split_size`), so
that fragmentation follows from the order of a step's tensors and is not a percentage.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

ROUNDING = 512
"""Every request takes a multiple of this (c10/core/AllocatorConfig.h, `kMinBlockSize`)."""

MIB = 2**20
SMALL_SIZE = 1 * MIB
"""Requests up to this are served from the small pool (`kSmallSize`)."""

SMALL_BUFFER, LARGE_BUFFER, LARGE_REQUEST, LARGE_ROUNDING = 2 * MIB, 20 * MIB, 10 * MIB, 2 * MIB
"""Segments: 2 MiB for small requests, 20 MiB below 10 MiB, else the request in steps of 2 MiB
(`kSmallBuffer`, `kLargeBuffer`, `kMinLargeAlloc`, `kRoundLarge`)."""


def rounded(size: int) -> int:
    """The block that a request of `size` bytes takes (`round_size`).

    >>> rounded(1), rounded(513)
    (512, 1024)
    """
    return max(ROUNDING, -(-size // ROUNDING) * ROUNDING)


def segment_bytes(size: int) -> int:
    """What is asked of the driver where no free block fits (`get_allocation_size`).

    >>> [segment_bytes(n * 2**20) // 2**20 for n in (1, 2, 9, 10, 11)]
    [2, 20, 20, 10, 12]
    """
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    if size < LARGE_REQUEST:
        return LARGE_BUFFER
    return -(-size // LARGE_ROUNDING) * LARGE_ROUNDING


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment; `before` and `after` are its neighbors there."""

    address: int
    size: int
    stream: int
    small: bool
    free: bool = False
    before: Block | None = None
    after: Block | None = None


@dataclass(eq=False)
class Allocator:
    """The pools of one device, one for each stream and kind, and the peaks that meters show.

    `capacity` is what the driver can give (None: no end): before a request fails, whole free
    segments go back, as `release_cached_blocks` does.

    >>> memory = Allocator()
    >>> memory.allocate("logits", 30 * 2**20)
    True
    >>> memory.free("logits")
    >>> memory.allocate("gradient", 31 * 2**20), memory.reserved // 2**20
    (True, 62)
    """

    capacity: int | None = None
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    released: int = 0
    _next_address: int = 0
    _live: dict[object, Block] = field(default_factory=dict)
    _pools: dict[tuple[int, bool], list[tuple[int, int]]] = field(default_factory=dict)
    _free: dict[int, Block] = field(default_factory=dict)

    def allocate(self, key: object, size: int, stream: int = 0) -> bool:
        """Serve one request; False where the device has no room left even after releasing."""
        if size == 0:
            return True
        assert key not in self._live, key
        size = rounded(size)
        block = self._fit(size, stream) or self._segment(size, stream)
        if block is None:
            return False
        self._split(block, size)
        self._live[key] = block
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return True

    def free(self, key: object) -> None:
        """Take a block back and join it with free neighbors (`free_block`, `try_merge_blocks`)."""
        block = self._live.pop(key, None)
        if block is None:
            return
        self.allocated -= block.size
        before, after = block.before, block.after
        if before is not None and before.free:
            self._take(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.free:
            self._take(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        self._put(block)

    def release_cached(self) -> int:
        """Give segments that are wholly free back to the driver (`empty_cache`); bytes returned."""
        whole = [b for b in self._free.values() if b.before is None and b.after is None]
        for block in whole:
            self._take(block)
        returned = sum(block.size for block in whole)
        self.reserved -= returned
        self.released += returned
        return returned

    def _fit(self, size: int, stream: int) -> Block | None:
        """The smallest free block that fits, lowest address first (`get_free_block`)."""
        pool = self._pools.get((stream, size <= SMALL_SIZE), [])
        index = bisect_left(pool, (size, 0))
        if index == len(pool):
            return None
        block = self._free[pool[index][1]]
        self._take(block)
        return block

    def _segment(self, size: int, stream: int) -> Block | None:
        wanted = segment_bytes(size)
        if self.capacity is not None and self.reserved + wanted > self.capacity:
            self.release_cached()
            if self.reserved + wanted > self.capacity:
                return None
        block = Block(self._next_address, wanted, stream, size <= SMALL_SIZE)
        self._next_address += wanted
        self.reserved += wanted
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return block

    def _split(self, block: Block, size: int) -> None:
        """Cut what is left over off; large blocks keep a rest of up to 1 MiB (`should_split`)."""
        rest = block.size - size
        if rest < ROUNDING or (not block.small and rest <= SMALL_SIZE):
            return
        tail = Block(block.address + size, rest, block.stream, block.small)
        tail.before, tail.after = block, block.after
        if block.after is not None:
            block.after.before = tail
        block.after, block.size = tail, size
        self._put(tail)

    def _put(self, block: Block) -> None:
        block.free = True
        self._free[block.address] = block
        pool = self._pools.setdefault((block.stream, block.small), [])
        insort(pool, (block.size, block.address))

    def _take(self, block: Block) -> None:
        block.free = False
        del self._free[block.address]
        pool = self._pools[block.stream, block.small]
        del pool[bisect_left(pool, (block.size, block.address))]


def held_for(events: Iterable[tuple[object, int, int]], capacity: int | None = None) -> Allocator:
    """The allocator after a stream of events: (key, bytes, stream); 0 bytes is a release.

    Raises:
        MemoryError: a request found no room on a device of `capacity` bytes.

    >>> memory = held_for([("a", 2**30, 0), ("a", 0, 0), ("b", 2**29, 0), ("c", 2**30, 0)])
    >>> memory.peak_reserved / memory.peak_allocated
    1.3333333333333333
    """
    memory = Allocator(capacity)
    for key, size, stream in events:
        memory.free(key)
        if not memory.allocate(key, size, stream):
            raise MemoryError(f"no room for {size} B beside {memory.allocated} B")
    return memory
