"""What one stage has whatever its tokens are: states, buffers, and its pass of backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from shardwise.core.arrays import everywhere
from shardwise.core.layout import Layout
from shardwise.core.memory.autocast import (
    autocasts,
    block_copies,
    cast_copies,
    copies_in_backward,
)
from shardwise.core.memory.buffers import (
    Buffers,
    all_reduce_held,
    embedding_slice,
    gathered_element,
    views_buckets,
    whole_embedding_gradient,
)
from shardwise.core.memory.deepspeed import bf16_optimizer
from shardwise.core.memory.engine_buffers import stage_buffers
from shardwise.core.memory.host import after_offload
from shardwise.core.memory.kernel import kernel_of
from shardwise.core.memory.operators.run import Kernel
from shardwise.core.memory.rounding import Rounding, rounding_on_gpu
from shardwise.core.memory.spots import Pass, pass_of, whole_bytes
from shardwise.core.memory.stages import Stage, stages_of
from shardwise.core.memory.states import States, Units, stage_states, stage_units
from shardwise.core.memory.walk import walk_of
from shardwise.core.model import Model
from shardwise.core.precision import Precision
from shardwise.core.scenario import Scenario
from shardwise.core.trainable import Trainable


@dataclass(frozen=True)
class Frame:
    """All of one stage that does not depend on tokens, worked out once for many estimates.

    `on_gpu` are its states after offload; `held` the gradients that a micro-batch finds there,
    `between` those that outlive the step; `rounding` what the allocator adds to the states (it is
    in `buffers` too); `head_passing` the head's gradient until it is added to an earlier one, or
    cast (`head_cast`) by autocast.
    `whole_units` are bytes of the gathered root and of the largest gathered block.
    """

    stage: Stage
    kernel: Kernel
    on_gpu: States
    buffers: Buffers
    run: Pass | None
    held: float
    between: float
    root_share: float
    whole_units: tuple[float, float]
    rounding: Rounding
    head_passing: float
    head_cast: bool


def frame_of(scenario: Scenario, index: int, several: bool | None = None) -> Frame:
    """The frame of one stage of a scenario.

    `several`: whether a micro-batch finds gradients of earlier ones; None: as the step has them.
    """
    training = scenario.training
    return _frame(
        scenario.model,
        scenario.layout,
        training.precision,
        (training.optimizer, training.optimizer_implementation),
        (training.activation_checkpointing, training.checkpoint_every),
        scenario.shard,
        ranks_reduced(scenario),
        everywhere(scenario.micro_batches > 1) if several is None else several,
        index,
        training.trainable,
        kernel_of(scenario),
    )


@lru_cache(maxsize=4096)
def _frame(
    model: Model,
    layout: Layout,
    precision: Precision,
    optimizer: tuple[str, str],
    checkpointing: tuple[str, int],
    shard: int,
    ranks: int,
    several: bool,
    index: int,
    trainable: Trainable,
    kernel: Kernel,
) -> Frame:
    stage = stages_of(model, layout, trainable)[index]
    states = _states(stage, layout, precision, optimizer[0], shard)
    units = stage_units(stage, layout, shard, gathered_element(precision))
    rounding = rounding_on_gpu(stage, layout, precision, optimizer, shard)
    buffers = _buffers(stage, layout, precision, optimizer, states, units, ranks, rounding)
    views = views_buckets(layout, ranks)
    kept = 1.0 if views else persistent_share(layout, precision)
    there = 1.0 if several else kept
    held, twice = there * states.gradients, views and several
    if twice:
        buffers = replace(buffers, extra_backward=buffers.extra_backward + states.gradients)
    gone, copies = copies_in_backward(block_copies(stage, layout, precision), *checkpointing)
    if gone:
        buffers = _without_copies(buffers, stage, gone)
    end = buffers.extra_end + all_reduce_held(layout, precision, held, sum(units.shares))
    buffers = replace(buffers, extra_end=end)
    whole = whole_bytes(stage, layout, precision, units)
    if whole:
        gathered = whole + cast_copies(stage, layout, precision)
        buffers, held = _unresharded(buffers, precision, units, whole, gathered, gone), 0.0
    run = None
    if stage.blocks:
        walk = walk_of(stage.blocks, *checkpointing)
        arriving = round((1 - there) * precision.gradient_bytes)
        run = pass_of(stage, layout, precision, units, walk, held, arriving, copies, whole)
    on_gpu = after_offload(states, layout)
    return Frame(
        stage=stage,
        kernel=kernel,
        on_gpu=on_gpu,
        buffers=buffers,
        run=run,
        held=(2 if twice else 1) * there * on_gpu.gradients if held else 0.0,
        between=kept * on_gpu.gradients,
        root_share=units.root_share,
        whole_units=(units.gathered_root, max(units.gathered, default=0.0)),
        rounding=rounding,
        head_passing=_head_passing(stage, layout, precision, several),
        head_cast=autocasts(layout, precision),
    )


def _states(
    stage: Stage, layout: Layout, precision: Precision, optimizer: str, shard: int
) -> States:
    """The stage's states; under DDP with all rows of a split embedding's gradient on every rank.

    SGD's momentum begins as a copy of the gradient (torch/optim/sgd.py, `torch.clone(grad)`), so it
    has all rows too; AdamW's moments are made like the parameter (traced).
    """
    states = stage_states(stage, layout, precision, optimizer, shard)
    waste = precision.gradient_bytes * whole_embedding_gradient(stage, layout)
    if layout.engine != "ddp" or not waste:
        return states
    momentum = waste if optimizer == "sgd-momentum" else 0.0
    return replace(
        states,
        gradients=states.gradients + waste,
        optimizer_state=states.optimizer_state + momentum,
    )


def _buffers(
    stage: Stage,
    layout: Layout,
    precision: Precision,
    optimizer: tuple[str, str],
    states: States,
    units: Units,
    ranks: int,
    rounding: Rounding,
) -> Buffers:
    """The engine's buffers with the allocator's rounding.

    Under DDP also SGD's own slice of a split embedding's whole gradient (traced).
    """
    buffers = stage_buffers(stage, layout, precision, states, ranks, "/".join(optimizer), units)
    step, sgd = buffers.extra_step, optimizer[0].startswith("sgd")
    if layout.engine == "ddp" and sgd and whole_embedding_gradient(stage, layout):
        step += precision.gradient_bytes * embedding_slice(stage, layout)
    return replace(
        buffers,
        held=buffers.held + rounding.parameters + rounding.state,
        extra_step=step + rounding.step,
    )


def _unresharded(
    buffers: Buffers, precision: Precision, units: Units, whole: float, gathered: float, gone: float
) -> Buffers:
    """The buffers of a pipeline's stage that FSDP neither reshards nor reduces until its end.

    `whole` as `whole_bytes` has it, `gathered` with autocast's copies, of which `gone` are not
    there any more as the loss is made.
    """
    return replace(
        buffers,
        gathered_entering=0.0,
        gathered_running=gathered,
        gathered_forward=gathered,
        gathered_loss=gathered - gone,
        extra_end=whole + precision.reduce_bytes * max(0, *units.blocks, units.root),
    )


def _head_passing(stage: Stage, layout: Layout, precision: Precision, several: bool) -> float:
    """The head's gradient while it is a tensor beside the one that stays, as `Spot.passing` is.

    Under FSDP it waits for the root's reduction in any case, and other engines add to flat buffers.
    """
    if layout.engine not in ("ddp", "zero-redundancy") or not stage.has_head:
        return 0.0
    head = sum(tensor.elements for tensor in stage.root_tensors if tensor.part == "head")
    added = precision.gradient_bytes if several else 0
    cast = precision.compute_bytes if autocasts(layout, precision) else 0
    return float((added + cast) * head)


def _without_copies(buffers: Buffers, stage: Stage, gone: float) -> Buffers:
    """Buffers less autocast's copies of recomputed blocks, gone once forward is over.

    Falcon multiplies by a transposed weight, which autocast does not cache in forward either.
    """
    uncached = gone if stage.blocks[0][0].masked else 0.0
    return replace(
        buffers,
        gathered_running=buffers.gathered_running - uncached,
        gathered_forward=buffers.gathered_forward - uncached,
        gathered_loss=buffers.gathered_loss - gone,
    )


def ranks_reduced(scenario: Scenario) -> int:
    """Ranks that gradients are summed over: data times context parallelism."""
    return scenario.data_parallel * scenario.layout.context_parallel


def persistent_share(layout: Layout, precision: Precision) -> float:
    """The share of the gradients' bytes that outlives the step, in buffers made with the engine.

    All of Megatron-LM's (megatron/core/distributed/param_and_grad_buffer.py), nanotron's
    (optim/gradient_accumulator.py) and DeepSpeed's stage 3's (`grad_partitions_flat_buffer` of
    deepspeed/runtime/zero/stage3.py); the fp32 ones, 4 of 6 bytes, of DeepSpeed's stage 1 over bf16
    with fp32 accumulation, whose 16-bit ones `zero_grad` drops (`fp32_groups_gradients_flat` of
    deepspeed/runtime/bf16_optimizer.py).
    """
    by_stage = layout.engine == "deepspeed" and layout.zero_stage == 3
    if layout.engine in ("megatron", "nanotron") or by_stage:
        return 1.0
    return 4 / precision.gradient_bytes if bf16_optimizer(layout, precision) else 0.0
