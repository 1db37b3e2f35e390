"""How torch's ZeroRedundancyOptimizer deals whole tensors out to ranks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import NamedTuple

from shardwise.core.memory.tensor_classes import TensorClass
from shardwise.core.optimizers import state_bytes


class Dealt(NamedTuple):
    """What one rank updates: elements, bytes of optimizer state, elements of its largest tensor."""

    elements: int
    state_bytes: float
    largest: int
    tensors: int


@lru_cache(maxsize=256)
def dealt_out(
    tensors: tuple[TensorClass, ...], ranks: int, optimizer: str, element_bytes: float
) -> tuple[Dealt, ...]:
    """Each rank's share: the largest tensors first, each to the rank that has least so far.

    torch/distributed/optim/zero_redundancy_optimizer.py, `_partition_parameters`. No tensor is cut,
    so the rank with the embedding may hold several times the mean (`optimizer` and `element_bytes`
    as `state_bytes` takes them).

    >>> large, small = (TensorClass((n, 8), "mlp", False, 2) for n in (100, 10))
    >>> [share.elements for share in dealt_out((small, large), 3, "adamw", 4)]
    [800, 800, 160]
    """
    shares = [Dealt(0, 0.0, 0, 0)] * ranks
    heap = [(0, rank) for rank in range(ranks)]
    heapify(heap)
    for elements, state in _largest_first(tensors, optimizer, element_bytes):
        size, rank = heap[0]
        heapreplace(heap, (size + elements, rank))
        own = shares[rank]
        shares[rank] = Dealt(
            own.elements + elements,
            own.state_bytes + state,
            max(own.largest, elements),
            own.tensors + 1,
        )
    return tuple(shares)


def _largest_first(
    tensors: tuple[TensorClass, ...], optimizer: str, element_bytes: float
) -> Iterable[tuple[int, float]]:
    sizes: list[tuple[int, float]] = []
    for tensor in tensors:
        state = state_bytes(tensor.shape, tensor.part, optimizer, element_bytes)
        sizes += [(tensor.elements // tensor.count, state)] * tensor.count
    return sorted(sizes, key=lambda size: size[0], reverse=True)
