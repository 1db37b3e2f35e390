"""What an engine keeps besides states and activations: gathered layers, buckets, temporaries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.core.layout import Layout
from shardwise.core.memory.nanotron import bucket_bytes, piles_up
from shardwise.core.memory.stages import Stage, TensorClass
from shardwise.core.memory.states import States, Units
from shardwise.core.precision import Precision

# DeepSpeed's defaults, in elements (deepspeed/runtime/zero/config.py).
REDUCE_BUCKET = 500_000_000
ALLGATHER_BUCKET = 500_000_000
PREFETCH_BUCKET = 50_000_000
MAX_LIVE_PARAMETERS = 1_000_000_000
SUB_GROUP = 1_000_000_000


@dataclass(frozen=True)
class Buffers:
    """Bytes of one rank at five moments; `gathered_*` are whole layers, `extra_*` the rest.

    `forward` is its end, `loss` the start of backward, `backward` inside a block, `end` the
    reduction that closes backward, `step` the optimizer's temporary; `held` is there all the time,
    `extra_between` between steps; `gathered_entering` is FSDP's as forward enters the last block.
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


def stage_buffers(
    stage: Stage,
    layout: Layout,
    precision: Precision,
    states: States,
    ranks: int,
    step: str,
    units: Units,
) -> Buffers:
    """The buffers of one stage under the layout's engine.

    Args:
        stage: the stage whose layers are gathered.
        layout: names the engine and its ZeRO stage.
        precision: types of gathered weights and reduced gradients.
        states: the stage's states; the optimizer's temporary follows from their size.
        ranks: ranks that gradients are reduced over; 1 means that there is nothing to reduce.
        step: `adamw/foreach` and so on: which optimizer code runs.
        units: what FSDP gathers and reduces, with its padding.
    """
    temporary = step_temporary(states, layout, precision, step)
    copies = cast_copies(stage, layout, precision)
    if layout.engine in ("fsdp1", "fsdp2"):
        own = _fsdp(stage, layout, precision, temporary, units)
    elif layout.engine == "deepspeed":
        own = _deepspeed(stage, layout, precision, temporary)
    else:
        held = states.gradients if holds_buckets(layout, ranks) else 0.0
        until_next = temporary if layout.engine == "megatron" else 0.0
        element = precision.compute_bytes
        held += bucket_bytes(layout, ranks, stage.elements, element)
        waiting = element * float(stage.elements) if piles_up(layout) else 0.0
        own = Buffers(held=held, extra_end=waiting, extra_step=temporary, extra_between=until_next)
    return replace(
        own,
        gathered_forward=own.gathered_forward + copies,
        gathered_loss=own.gathered_loss + copies,
    )


def holds_buckets(layout: Layout, ranks: int) -> bool:
    """Whether DDP keeps reduction buckets beside the gradients (`gradient_as_bucket_view` off)."""
    by_ddp = layout.engine in ("ddp", "zero-redundancy")
    return by_ddp and ranks > 1 and not layout.gradient_as_bucket_view


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


def gathered_element(precision: Precision) -> int:
    """Bytes of one gathered weight under FSDP: autocast alone leaves them as they are stored."""
    return precision.parameter_bytes if precision.key == "autocast" else precision.compute_bytes


def step_temporary(states: States, layout: Layout, precision: Precision, step: str) -> float:
    """The optimizer's own temporary.

    `foreach` AdamW makes one tensor list as large as the weights it updates
    (torch/optim/adamw.py, `exp_avg_sq_sqrt = torch._foreach_sqrt`), which is what killed a 7B on
    eight 16 GB cards in `optimizer.step` (meta-llama/llama-cookbook#234). DeepSpeed
    flattens the shard's gradients and makes them fp32 before that (stage_1_and_2.py, `step`: the
    18P/N of its estimator), in stage 3 by groups of at most `sub_group_size` elements; its own
    FusedAdam (`fused`) has no list, the torch AdamW that a Trainer hands over has.
    Megatron-LM's gradients are fp32 already, or are copied to fp32 at the step and kept until the
    next one begins (megatron/core/optimizer/optimizer.py, `main_param.grad = ....float()`).
    """
    optimizer, implementation = step.split("/")
    if layout.offload_optimizer != "none":
        return 0.0
    updated = states.sharded_elements if layout.zero_stage >= 1 else _elements(states, precision)
    if layout.engine == "megatron":
        in_16_bits = precision.master_bytes and precision.gradient_bytes < 4
        return 4.0 * updated if in_16_bits else 0.0
    if layout.engine == "deepspeed":
        kept = precision.gradients in ("fp32", "16-bit+fp32")
        at_once = min(updated, SUB_GROUP) if layout.zero_stage == 3 else updated
        copied = 0.0 if kept or not precision.master_bytes else 4.0 * at_once
        flat = precision.gradient_bytes * updated if copied and layout.zero_stage in (1, 2) else 0.0
        listed = optimizer == "adamw" and implementation == "foreach"
        return copied + max(flat, precision.state_bytes * at_once if listed else 0.0)
    if optimizer != "adamw" or implementation == "fused":
        return 0.0
    # The loop has two tensors at once: the root of the second moment and its quotient.
    at_once = updated if implementation == "foreach" else 2 * states.largest
    return precision.state_bytes * at_once


def _elements(states: States, precision: Precision) -> float:
    return (states.parameters - states.frozen) / precision.parameter_bytes


def last_gradient(tensors: tuple[TensorClass, ...]) -> int:
    """Elements of a unit's last tensor."""
    return tensors[-1].elements if tensors else 0


def whole_embedding_gradient(stage: Stage, layout: Layout) -> int:
    """Elements that the gradient of a split embedding has over its own part, under DTensor.

    `embedding_dense_backward` makes all rows on every rank, and the part is a slice that keeps them
    alive (torch/distributed/tensor/_ops/_embedding_ops.py; traced). A tied one is summed anew.
    """
    others = layout.vocabulary_ranks - 1
    if not others or stage.tied or layout.engine not in ("ddp", "fsdp1", "fsdp2"):
        return 0
    return others * sum(t.elements for t in stage.root_tensors if t.part == "embedding")


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


def _fsdp(
    stage: Stage, layout: Layout, precision: Precision, temporary: float, units: Units
) -> Buffers:
    """FSDP gathers a block, its successor (prefetch) and the root unit (embedding, norm, head).

    The root stays gathered from forward's start to backward's end. At the end of forward the last
    block's all-gather buffer is still held, and as backward starts the last block is prefetched
    (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; traced). Without resharding every
    block stays gathered until its backward. The root's reduction closes backward: its gradients in
    compute type and the reduce-scatter's input (all but the last are freed before its output is
    made: `foreach_reduce`'s loop variable still names that one, in a head of its own the head's);
    `backward.py` has the blocks'. One rank alone gathers nothing: no buffer and no prefetch.
    """
    compute, reduce = gathered_element(precision), precision.reduce_bytes
    last, every = units.gathered[-1] if units.gathered else 0.0, sum(units.gathered)
    keeps = layout.zero_stage == 3
    root = units.gathered_root
    if layout.shard == 1:
        here = root + (0.0 if keeps else every)
        return Buffers(
            gathered_forward=here,
            gathered_loss=here,
            gathered_entering=root + (last if keeps else every),
            extra_end=reduce * units.root + max(compute * stage.root, reduce * units.root_share),
            extra_step=temporary,
        )
    return Buffers(
        gathered_forward=root + (last if keeps else every + last),
        gathered_loss=root + (last if keeps else every),
        gathered_entering=root + (3 * last if keeps else every + 2 * last),
        extra_end=reduce * units.root
        + max(
            compute * stage.root,
            reduce * units.root_share + compute * last_gradient(stage.root_tensors),
        ),
        extra_step=temporary,
    )


def _deepspeed(stage: Stage, layout: Layout, precision: Precision, temporary: float) -> Buffers:
    """DeepSpeed's buckets: allocated whole, however small the model is.

    Stages 1 and 2 (deepspeed/runtime/zero/stage_1_and_2.py): `setup_buckets` takes the reduce
    bucket at the first gradient, a second one with `overlap_comm`; weights are gathered in place,
    with no all-gather bucket (runtime/utils.py, `all_gather_dp_groups`). Stage 3 (stage3.py):
    the bucket is there from the start, `reduce_scatter_coalesced` copies what it holds, and up to
    1e9 gathered parameters live beside a prefetch bucket.
    """
    element, weights = precision.compute_bytes, stage.weights
    if layout.zero_stage == 0:
        # fp32 copies one by one, then flattened: deepspeed/runtime/fp16/fused_optimizer.py.
        return Buffers(extra_step=2 * temporary)
    if layout.zero_stage == 1 and precision.gradients == "16-bit+fp32":
        # BF16Optimizer: fp32 gradients flattened by buckets, and once more in the type of the
        # reduction (deepspeed/runtime/engine.py, `allreduce_bucket`).
        flat = (4 + element) * float(min(REDUCE_BUCKET, stage.elements))
        return Buffers(extra_end=flat, extra_step=temporary)
    bucket = float(element * layout.reduce_bucket_elements)
    if layout.zero_stage < 3:
        buckets = bucket * (2 if layout.overlaps else 1)
        return Buffers(extra_backward=buckets, extra_end=buckets, extra_step=temporary)
    largest, every = max(weights, default=0), sum(weights)
    live = element * float(min(every, max(MAX_LIVE_PARAMETERS, largest + PREFETCH_BUCKET)))
    copied = element * float(min(layout.reduce_bucket_elements, stage.elements))
    trained = max((*stage.units, stage.root), default=0)
    return Buffers(
        gathered_forward=live,
        gathered_loss=live,
        gathered_backward=live,
        extra_backward=copied + element * trained,
        extra_end=copied,
        extra_step=temporary,
        held=bucket,
    )
