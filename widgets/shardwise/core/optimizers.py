"""Optimizers: how many bytes of state each keeps for a tensor of a given shape.

Sizes are those of the public implementations, not of the algorithm's paper, where they differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_EIGHT_BIT_SMALLEST = 4096  # bitsandbytes keeps tensors below min_8bit_size in fp32
_EIGHT_BIT_BLOCK = 256  # bitsandbytes: one fp32 absmax a block, each moment


@dataclass(frozen=True)
class Optimizer:
    """One optimizer; `moments` is what it keeps for each weight of a matrix, in state elements."""

    key: str
    name: str
    moments: int
    source: str


OPTIMIZERS: Mapping[str, Optimizer] = {
    o.key: o
    for o in (
        Optimizer("adamw", "AdamW", 2, "torch.optim.AdamW: exp_avg, exp_avg_sq"),
        Optimizer(
            "adamw-8bit",
            "AdamW, 8-bit states",
            2,
            "bitsandbytes.optim.AdamW8bit: two states in uint8, an fp32 absmax a block of 256",
        ),
        Optimizer("sgd", "SGD", 0, "torch.optim.SGD, momentum=0"),
        Optimizer("sgd-momentum", "SGD with momentum", 1, "torch.optim.SGD: momentum_buffer"),
        Optimizer(
            "adafactor",
            "Adafactor",
            1,
            "transformers.optimization.Adafactor, beta1=None: a row and a column of fp32 factors",
        ),
        Optimizer("lion", "Lion", 1, "Chen et al. 2023, algorithm 2: one momentum"),
        Optimizer(
            "muon",
            "Muon (AdamW for embeddings, head and vectors)",
            1,
            "torch.optim.Muon: momentum_buffer for 2-D hidden weights; AdamW keeps two elsewhere",
        ),
    )
}


def by_muon(shape: tuple[int, ...], part: str) -> bool:
    """Whether Muon updates a tensor: a matrix that is neither embedding nor head."""
    return len(shape) == 2 and part not in ("embedding", "position", "head")


def state_bytes(shape: tuple[int, ...], part: str, optimizer: str, element_bytes: float) -> float:
    """Bytes of optimizer state for one tensor of this (local) shape.

    Args:
        shape: the tensor as the optimizer sees it: a shard's shape where it is sharded.
        part: the tensor's part; Muon treats embeddings and heads otherwise than hidden matrices.
        optimizer: a key of `OPTIMIZERS`.
        element_bytes: bytes of one element of state (the precision's optimizer state).

    >>> state_bytes((4096, 4096), "attention", "adamw", 4)
    134217728
    >>> state_bytes((4096, 4096), "attention", "adafactor", 4)
    32768
    """
    elements = math.prod(shape)
    if optimizer == "adamw-8bit":
        if elements < _EIGHT_BIT_SMALLEST:
            return 8 * elements
        return 2 * (elements + 4 * math.ceil(elements / _EIGHT_BIT_BLOCK))
    if optimizer == "adafactor":
        if len(shape) < 2:
            return 4 * elements
        rows = math.prod(shape[:-1])
        columns = math.prod(shape[:-2]) * shape[-1]
        return 4 * (rows + columns)
    if optimizer == "muon" and not by_muon(shape, part):
        return 2 * element_bytes * elements
    return OPTIMIZERS[optimizer].moments * element_bytes * elements
