"""Autocast's 16-bit copies of weights: which there are, and how long they live."""

from __future__ import annotations

from shardwise.core.layout import Layout
from shardwise.core.memory.stages import Stage
from shardwise.core.precision import Precision


def autocasts(layout: Layout, precision: Precision) -> bool:
    """Whether autocast runs the matrix products in fewer bits than the weights are stored in."""
    by_engine = layout.engine in ("fsdp1", "fsdp2") and precision.key != "autocast"
    return not by_engine and precision.parameter_bytes > precision.compute_bytes


def cast_copies(stage: Stage, layout: Layout, precision: Precision) -> float:
    """16-bit copies of the matrices that autocast made and backward still needs.

    Autocast casts each weight of a matrix product once a forward pass and keeps the copy
    (torch.amp, "weight cache"); autograd saves it too. Norms are not cast, an embedding only where
    it is the head too. FSDP's own MixedPrecisionPolicy gathers in 16 bits instead.
    """
    return sum(block_copies(stage, layout, precision), 0.0)


def block_copies(stage: Stage, layout: Layout, precision: Precision) -> tuple[float, ...]:
    """The same block by block, the head's last; nothing at all without autocast."""
    if not autocasts(layout, precision):
        return ()
    every = (*stage.tensors, *stage.frozen)
    is_head = stage.has_head and not any(tensor.part == "head" for tensor in every)
    looked_up = {"position"} if stage.tied or is_head else {"position", "embedding"}
    frozen = stage.frozen_units or ((),) * len(stage.unit_tensors)
    units = zip(
        (*stage.unit_tensors, stage.root_tensors), (*frozen, stage.frozen_root), strict=True
    )
    return tuple(
        float(
            precision.compute_bytes
            * sum(
                tensor.elements
                for tensor in (*trained, *also)
                if len(tensor.shape) > 1
                and tensor.part not in looked_up
                and (tensor.stored or precision.parameter_bytes) > precision.compute_bytes
            )
        )
        for trained, also in units
    )


def copies_in_backward(
    copies: tuple[float, ...], checkpointing: str, every: int
) -> tuple[float, tuple[float, ...]]:
    """(copies gone as backward starts, those alive in each block's backward).

    A checkpoint saves no weights: its block's copies go with autocast's cache as forward ends and
    are made again as it is recomputed. The head's are used up before the first block.

    >>> copies_in_backward((8.0, 8.0, 4.0), "every", 2)
    (8.0, (8.0, 8.0))
    """
    gone, alive = 0.0, []
    kept = 0.0
    for position, own in enumerate(copies[:-1]):
        alive.append(kept + own)
        again = checkpointing in ("full", "per-op")
        if again or (checkpointing == "every" and position % every == 0):
            gone += own
        else:
            kept += own
    return gone, tuple(alive)
