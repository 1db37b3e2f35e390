"""Gathered layers, buckets and temporaries: their kinds, and the pieces that engines share."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.layout import Layout
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.tensor_classes import TensorClass
from shardwise.core.precision import Precision


@dataclass(frozen=True)
class Buffers:
    """Bytes of one rank at five moments; `gathered_*` are whole layers, `extra_*` the rest.

    `forward` is its end, `loss` the start of backward, `backward` inside a block, `end` the
    reduction that closes backward, `step` the optimizer's temporary; `held` is there all the time,
    `extra_between` between steps; `gathered_entering` is FSDP's as forward enters the last block,
    `gathered_first` as it enters the first, `gathered_running` inside the last.
    """

    gathered_forward: float = 0.0
    gathered_loss: float = 0.0
    gathered_backward: float = 0.0
    extra_backward: float = 0.0
    extra_end: float = 0.0
    extra_step: float = 0.0
    held: float = 0.0
    extra_between: float = 0.0
    gathered_entering: float = 0.0
    gathered_first: float = 0.0
    gathered_running: float = 0.0


def holds_buckets(layout: Layout, ranks: int) -> bool:
    """Whether DDP keeps reduction buckets beside the gradients (`gradient_as_bucket_view` off)."""
    by_ddp = layout.engine in ("ddp", "zero-redundancy")
    return by_ddp and ranks > 1 and not layout.gradient_as_bucket_view


def views_buckets(layout: Layout, ranks: int) -> bool:
    """Whether DDP's gradients are views of its buckets, which then outlive the step.

    torch/csrc/distributed/c10d/reducer.cpp: buckets are made with the wrapper, and each gradient is
    a tensor of its own until it is copied into its bucket, as one that is added to an earlier one.
    Micro-batches without reduction (`no_sync`) pile gradients up beside the buckets (traced).
    """
    by_ddp = layout.engine in ("ddp", "zero-redundancy")
    return by_ddp and ranks > 1 and layout.gradient_as_bucket_view


def gathered_element(precision: Precision) -> int:
    """Bytes of one gathered weight under FSDP: autocast alone leaves them as they are stored."""
    return precision.parameter_bytes if precision.key == "autocast" else precision.compute_bytes


def last_gradient(tensors: tuple[TensorClass, ...]) -> int:
    """Elements of a unit's last tensor."""
    return tensors[-1].elements if tensors else 0


def whole_embedding_gradient(stage: Stage, layout: Layout) -> int:
    """Elements that the gradient of a split embedding has over its own part, under DTensor.

    `embedding_dense_backward` makes all rows on every rank, and they live as long as the gradient
    does (torch/distributed/tensor/_ops/_embedding_ops.py; traced). A tied one is summed anew.
    """
    return (layout.vocabulary_ranks - 1) * embedding_slice(stage, layout)


def embedding_slice(stage: Stage, layout: Layout) -> int:
    """Elements of a rank's own part of that gradient; 0 where the gradient has no other rows.

    FSDP copies it out before it reduces the root, and the whole gradient goes; SGD copies it out
    for its step (traced).
    """
    if layout.vocabulary_ranks == 1 or stage.tied:
        return 0
    if layout.engine not in ("ddp", "fsdp1", "fsdp2"):
        return 0
    return sum(t.elements for t in stage.root_tensors if t.part == "embedding")


def is_hybrid(layout: Layout) -> bool:
    """Whether the shards are replicated: FSDP sums them over replicas too (HSDP)."""
    replicas = (layout.data_parallel or 1) * layout.context_parallel
    return layout.engine in ("fsdp1", "fsdp2") and replicas > (layout.shard or replicas)


def all_reduce_held(layout: Layout, precision: Precision, held: float, shares: float) -> float:
    """Bytes of reduced shards that hybrid sharding keeps until backward ends.

    Each unit's all-reduce input is held across layers (`_all_reduce_state` of
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py). It is the gradient itself unless that
    has another type or was there before.
    """
    apart = held or precision.reduce_bytes != precision.gradient_bytes
    return precision.reduce_bytes * shares if is_hybrid(layout) and apart else 0.0
