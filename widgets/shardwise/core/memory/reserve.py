"""From allocated bytes to what the card must have: fragmentation, CUDA context, communicators.

Three figures, never mixed: *allocated* is what tensors take, *reserved* what the caching allocator
holds for them, *device* what nvidia-smi shows. The constants are stated, not fitted.
"""

from __future__ import annotations

from typing import NamedTuple

from shardwise.core.arrays import least, most
from shardwise.core.units import GB, GIB

CONTEXT_BYTES = int(0.9 * GB)
"""CUDA context and loaded kernels of one process: 0.9 to 1 GB (pytorch/pytorch#135279)."""

COMMUNICATOR_BYTES = int(0.4 * GIB)
"""NCCL's channels and buffers for one process group; a single GPU has none."""

EXPANDABLE_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
"""Lets torch's allocator join freed blocks of any size; the reserve takes it for granted."""

FRAGMENTATION = 0.03
"""Reserved over allocated in the expected case: a steady training step with few sizes."""

FRAGMENTATION_HIGH = 0.08
"""The same in the worse case that the band covers, over expandable segments (variable lengths)."""


class DeviceBytes(NamedTuple):
    """One rank's card, in bytes.

    `low` and `high` bound what the run needs there; `cached` of `reserved` and `device` is idle and
    goes back before a request fails.
    """

    reserved: float
    device: float
    low: float
    high: float
    cached: float = 0.0


def device_bytes(allocated: float, groups: int) -> DeviceBytes:
    """What a run needs of its card for an allocated peak, with a band around it.

    `groups` are the process groups of a rank (`Layout.process_groups`), each a communicator.

    >>> round(device_bytes(10 * 2**30, 1).device / 2**30, 2)
    11.54
    """
    outside = CONTEXT_BYTES + groups * COMMUNICATOR_BYTES
    reserved = allocated * (1 + FRAGMENTATION)
    return DeviceBytes(
        reserved=reserved,
        device=reserved + outside,
        low=allocated + outside,
        high=allocated * (1 + FRAGMENTATION_HIGH) + outside,
    )


def with_cached(figures: DeviceBytes, stranded: float, usable: float) -> DeviceBytes:
    """What the meters show: idle blocks of other pools too (`pools.py`), as far as there is room.

    >>> with_cached(DeviceBytes(10.0, 12.0, 11.0, 13.0), 5.0, 16.0)
    DeviceBytes(reserved=14.0, device=16.0, low=11.0, high=16.0, cached=4.0)
    """
    cached = least(stranded, most(0.0, usable - figures.device))
    device = figures.device + cached
    return DeviceBytes(
        figures.reserved + cached, device, figures.low, most(figures.high, device), cached
    )


def verdict(figures: DeviceBytes, usable_bytes: float, known: bool, complete: bool = True) -> str:
    """fits, tight (inside the band), does not fit; uncertain where the architecture is a guess.

    Never fits where the estimate is not `complete` (something may be missing from it).
    """
    if figures.low > usable_bytes:
        return "does not fit"
    if figures.high > usable_bytes:
        return "tight"
    sure = complete and (known or figures.high < 0.8 * usable_bytes)
    return "fits" if sure else "uncertain"
