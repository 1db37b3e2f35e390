"""What an engine keeps besides states and activations: gathered layers, buckets, temporaries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.core.layout import Layout
from shardwise.core.memory.stages import Stage
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
    reduction that closes backward, `step` the optimizer's temporary; `held` is there all the time.
    """

    gathered_forward: float = 0.0
    gathered_loss: float = 0.0
    gathered_backward: float = 0.0
    extra_backward: float = 0.0
    extra_end: float = 0.0
    extra_step: float = 0.0
    held: float = 0.0


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
        own = _deepspeed(stage, layout, precision, ranks, temporary)
    else:
        held = states.gradients if holds_buckets(layout, ranks) else 0.0
        own = Buffers(held=held, extra_step=temporary)
    return replace(
        own,
        gathered_forward=own.gathered_forward + copies,
        gathered_loss=own.gathered_loss + copies,
        gathered_backward=own.gathered_backward + copies,
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
    if not autocasts(layout, precision):
        return 0.0
    looked_up = {"position"} if stage.tied else {"position", "embedding"}
    products = sum(
        tensor.elements
        for tensor in stage.tensors
        if len(tensor.shape) > 1 and tensor.part not in looked_up
    )
    return float(precision.compute_bytes * products)


def gathered_element(precision: Precision) -> int:
    """Bytes of one gathered weight under FSDP: autocast alone leaves them as they are stored."""
    return precision.parameter_bytes if precision.key == "autocast" else precision.compute_bytes


def step_temporary(states: States, layout: Layout, precision: Precision, step: str) -> float:
    """The optimizer's own temporary.

    `foreach` AdamW makes one tensor list as large as the weights it updates
    (torch/optim/adamw.py, `exp_avg_sq_sqrt = torch._foreach_sqrt`), which is what killed a 7B on
    eight 16 GB cards in `optimizer.step` (meta-llama/llama-cookbook#234). DeepSpeed's fused Adam
    has no such copy but makes the shard's gradients fp32 (deepspeed/runtime/zero/stage_1_and_2.py:
    the 18P/N of its estimator), in stage 3 by groups of at most `sub_group_size` elements.
    Megatron-LM's gradients are fp32 already.
    """
    optimizer, implementation = step.split("/")
    if layout.offload_optimizer != "none" or layout.engine == "megatron":
        return 0.0
    updated = states.sharded_elements if layout.zero_stage >= 1 else _elements(states, precision)
    if layout.engine == "deepspeed":
        kept = precision.gradients in ("fp32", "16-bit+fp32")
        at_once = min(updated, SUB_GROUP) if layout.zero_stage == 3 else updated
        return 0.0 if kept or not precision.master_bytes else 4.0 * at_once
    foreach = optimizer == "adamw" and implementation == "foreach"
    return precision.state_bytes * updated if foreach else 0.0


def _elements(states: States, precision: Precision) -> float:
    return states.parameters / precision.parameter_bytes


def _fsdp(
    stage: Stage, layout: Layout, precision: Precision, temporary: float, units: Units
) -> Buffers:
    """FSDP gathers a block, its successor (prefetch) and the root unit (embedding, norm, head).

    The root stays gathered from forward's start to backward's end. At the end of forward the last
    block's all-gather buffer is still held, and as backward starts the last block is prefetched
    (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; traced). Without resharding every
    block stays gathered until its backward. The root's reduction closes backward: its gradients in
    compute type and the reduce-scatter's input; `backward.py` has the blocks'.
    """
    compute, reduce = gathered_element(precision), precision.reduce_bytes
    last, all_units = units.blocks[-1] if units.blocks else 0, sum(units.blocks)
    keeps = layout.zero_stage == 3
    root = compute * units.root
    return Buffers(
        gathered_forward=root + compute * (last if keeps else all_units + last),
        gathered_loss=root + compute * (last if keeps else all_units),
        extra_end=compute * stage.root + reduce * units.root,
        extra_step=temporary,
    )


def _deepspeed(
    stage: Stage, layout: Layout, precision: Precision, ranks: int, temporary: float
) -> Buffers:
    """DeepSpeed's buckets, at their default sizes and never larger than the model.

    A reduce bucket of 5e8 elements (twice with overlap_comm, the default of stage 3) in stages 1
    to 3, an all-gather bucket of 5e8 at the step in stages 1 and 2; in stage 3 up to 1e9 live
    gathered parameters and a prefetch bucket (deepspeed/runtime/zero/config.py).
    """
    element, elements = precision.compute_bytes, stage.elements
    if layout.zero_stage == 0 or ranks == 1:
        return Buffers(extra_step=temporary)
    bucket = element * min(REDUCE_BUCKET, elements)
    if layout.zero_stage < 3:
        gather = element * min(ALLGATHER_BUCKET, elements)
        return Buffers(extra_backward=bucket, extra_end=bucket, extra_step=max(temporary, gather))
    largest = max((*stage.units, stage.root), default=0)
    live = element * min(elements, max(MAX_LIVE_PARAMETERS, largest + PREFETCH_BUCKET))
    return Buffers(
        gathered_forward=live,
        gathered_loss=live,
        gathered_backward=live,
        extra_backward=2 * bucket + element * largest,
        extra_end=2 * bucket,
        extra_step=temporary,
    )
