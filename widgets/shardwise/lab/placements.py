"""Which bytes cross from node to node when a mesh is laid over them: counted link by link."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product


def groups(axes: Sequence[str], sizes: Mapping[str, int], axis: str) -> list[list[int]]:
    """The ranks that differ on one axis only; the last axis is the fastest, as in DeviceMesh.

    >>> groups(("data", "tensor"), {"data": 2, "tensor": 2}, "tensor")
    [[0, 1], [2, 3]]
    >>> groups(("data", "tensor"), {"data": 2, "tensor": 2}, "data")
    [[0, 2], [1, 3]]
    """
    place = list(axes).index(axis)
    stride = math.prod(sizes[name] for name in list(axes)[place + 1 :])
    others = product(*(range(1 if name == axis else sizes[name]) for name in axes))
    found = []
    for coordinates in others:
        first = 0
        for name, at in zip(axes, coordinates, strict=True):
            first = first * sizes[name] + at
        found.append([first + step * stride for step in range(sizes[axis])])
    return found


def crossing_bytes(
    axes: Sequence[str], sizes: Mapping[str, int], sent: Mapping[str, int], node: int
) -> int:
    """Bytes that leave a node when each rank sends `sent[axis]` to the next one of its group.

    A group is a ring: the last member sends to the first. `node` is the number of ranks in one.

    >>> crossing_bytes(("data", "tensor"), {"data": 2, "tensor": 2}, {"data": 1, "tensor": 10}, 2)
    4
    >>> crossing_bytes(("tensor", "data"), {"data": 2, "tensor": 2}, {"data": 1, "tensor": 10}, 2)
    40
    """
    total = 0
    for axis, size in sent.items():
        for ring in groups(axes, sizes, axis):
            pairs = zip(ring, ring[1:] + ring[:1], strict=True)
            total += size * sum(a // node != b // node for a, b in pairs)
    return total
