"""A stage's parameter tensors as one rank sees them: by local shape, with a count."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.core.layout import Layout
from shardwise.core.model import Tensor


@dataclass(frozen=True)
class TensorClass:
    """`count` parameter tensors of one (already tensor- and expert-parallel) local shape.

    Of a frozen tensor `stored` is its bytes an element (0: as trained weights are stored) and
    `statistics` those of its quantization, which no engine shards.
    """

    shape: tuple[int, ...]
    part: str
    expert: bool
    count: int
    stored: float = 0.0
    statistics: float = 0.0

    @property
    def elements(self) -> int:
        """Elements of all of them on one rank, before any sharding."""
        return self.count * math.prod(self.shape)


# Tensor, expert, the experts' own tensor degree, and the ranks that cut the embedding's rows.
Degrees = tuple[int, int, int, int]


def degrees_of(layout: Layout) -> Degrees:
    """What cuts a tensor under a layout."""
    tensor, expert = layout.tensor_parallel, layout.expert_parallel
    return tensor, expert, layout.expert_tensor, layout.vocabulary_ranks


def local_shape(
    parameter: Tensor, tensor: int, expert: int, expert_tensor: int = 0, vocabulary: int = 0
) -> tuple[tuple[int, ...], str, bool]:
    """(shape on the fullest rank, part, whether it is a routed expert's) after the TP and EP cut.

    Column and vocabulary cut dimension 0, row cuts dimension 1 (a vector's only dimension stays),
    rounded up: a vocabulary is padded to a multiple of the degree (Megatron-LM
    `--make-vocab-size-divisible-by`). Fused expert tensors are [experts, in, out]: dimension 0 is
    cut by expert parallelism, the widest other dimension by the experts' own tensor parallelism.
    An embedding is cut over `vocabulary` ranks: 1 where transformers' plan keeps it whole.
    """
    shape = list(parameter.shape)
    cut = parameter.tensor_parallel
    routed = cut == "expert"
    if routed:
        shape[0] = -(-shape[0] // expert)
        if len(shape) > 1:
            widest = max(range(1, len(shape)), key=lambda d: shape[d])
            shape[widest] = -(-shape[widest] // (expert_tensor or tensor))
    elif cut == "vocabulary" and parameter.part == "embedding":
        shape[0] = -(-shape[0] // (vocabulary or tensor))
    elif cut in ("column", "vocabulary"):
        shape[0] = -(-shape[0] // tensor)
    elif cut == "row" and len(shape) > 1:
        shape[1] = -(-shape[1] // tensor)
    return tuple(shape), parameter.part, routed
