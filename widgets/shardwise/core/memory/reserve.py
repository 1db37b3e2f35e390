"""From allocated bytes to what the card must have: fragmentation, CUDA context, communicators.

Three figures, never mixed: *allocated* is what tensors take, *reserved* what the caching allocator
holds for them, *device* what nvidia-smi shows. The constants are stated, not fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.units import GB, GIB

CONTEXT_BYTES = int(0.9 * GB)
"""CUDA context and loaded kernels of one process: 0.9 to 1 GB (pytorch/pytorch#135279)."""

COMMUNICATOR_BYTES = int(0.4 * GIB)
"""NCCL's channels and buffers for one process group a rank; nothing on a single GPU."""

FRAGMENTATION = 0.03
"""Reserved over allocated in the expected case: a steady training step with few sizes."""

FRAGMENTATION_HIGH = 0.08
"""The same in the worse case that the band covers (variable lengths, no expandable segments)."""


@dataclass(frozen=True)
class DeviceBytes:
    """One rank's card: expected and high figures, in bytes."""

    reserved: float
    device: float
    low: float
    high: float


def device_bytes(allocated: float, world_size: int) -> DeviceBytes:
    """Reserved and device bytes for an allocated peak, with a band around the device figure.

    >>> round(device_bytes(10 * 2**30, 8).device / 2**30, 2)
    11.54
    """
    outside = CONTEXT_BYTES + (COMMUNICATOR_BYTES if world_size > 1 else 0)
    reserved = allocated * (1 + FRAGMENTATION)
    return DeviceBytes(
        reserved=reserved,
        device=reserved + outside,
        low=allocated + outside,
        high=allocated * (1 + FRAGMENTATION_HIGH) + outside,
    )


def verdict(figures: DeviceBytes, usable_bytes: float, known: bool) -> str:
    """fits, tight (inside the band), does not fit; uncertain where the architecture is a guess."""
    if figures.low > usable_bytes:
        return "does not fit"
    if figures.high > usable_bytes:
        return "tight"
    return "fits" if known or figures.high < 0.8 * usable_bytes else "uncertain"
