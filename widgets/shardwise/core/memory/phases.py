"""The memory of one stage over a training step, phase by phase and part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from shardwise.core.arrays import everywhere, highest, least, there
from shardwise.core.layout import Layout
from shardwise.core.memory import nanotron
from shardwise.core.memory.autocast import autocasts, block_copies, cast_copies, copies_in_backward
from shardwise.core.memory.backward import Pass, Point, pass_of, whole_bytes, worst_point
from shardwise.core.memory.buffers import (
    Buffers,
    all_reduce_held,
    embedding_slice,
    gathered_element,
    whole_embedding_gradient,
)
from shardwise.core.memory.engine_buffers import stage_buffers
from shardwise.core.memory.kept import StageActivations, kernel_of, stage_activations
from shardwise.core.memory.loss import LossBytes, loss_bytes
from shardwise.core.memory.megatron import head_loss, resident_bytes
from shardwise.core.memory.operators.run import Kernel
from shardwise.core.memory.outside import table_bytes
from shardwise.core.memory.pipelines import (
    handed_on_bytes,
    interleaved_in_flight,
    kept_output_bytes,
    receive_buffer_bytes,
    retained_input_bytes,
)
from shardwise.core.memory.report import PHASES
from shardwise.core.memory.stages import Stage, stages_of
from shardwise.core.memory.states import States, stage_states, stage_units
from shardwise.core.memory.walk import walk_of
from shardwise.core.model import Model
from shardwise.core.precision import Precision
from shardwise.core.scenario import Scenario
from shardwise.core.trainable import Trainable

# Code that runs torch's `loss_parallel` over logits split by vocabulary.
_LOSS_PARALLEL = ("transformers", "torchtitan", "compiled")


@dataclass(frozen=True)
class Frame:
    """All of one stage that does not depend on tokens, worked out once for many estimates.

    `on_gpu` are its states after offload; `held` the gradients that a micro-batch finds there.
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


def frame_of(scenario: Scenario, index: int) -> Frame:
    """The frame of one stage of a scenario."""
    training = scenario.training
    return _frame(
        scenario.model,
        scenario.layout,
        training.precision,
        (training.optimizer, training.optimizer_implementation),
        (training.activation_checkpointing, training.checkpoint_every),
        scenario.shard,
        ranks_reduced(scenario),
        everywhere(scenario.micro_batches > 1),
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
    states = stage_states(stage, layout, precision, optimizer[0], shard)
    units = stage_units(stage, layout, shard, gathered_element(precision))
    waste = whole_embedding_gradient(stage, layout)
    if layout.engine == "ddp" and waste:
        states = _with_whole_embedding(states, precision.gradient_bytes * waste, optimizer[0])
    buffers = stage_buffers(stage, layout, precision, states, ranks, "/".join(optimizer), units)
    if layout.engine == "ddp" and waste and optimizer[0].startswith("sgd"):
        own = precision.gradient_bytes * embedding_slice(stage, layout)
        buffers = replace(buffers, extra_step=buffers.extra_step + own)
    persistent = persistent_gradients(layout)
    held = states.gradients if several or persistent else 0.0
    on_gpu = after_offload(states, layout)
    walk = walk_of(stage.blocks, *checkpointing)
    gone, copies = copies_in_backward(block_copies(stage, layout, precision), *checkpointing)
    if gone:
        buffers = _without_copies(buffers, stage, gone)
    waiting = all_reduce_held(layout, precision, held, sum(units.shares))
    buffers = replace(buffers, extra_end=buffers.extra_end + waiting) if waiting else buffers
    whole = whole_bytes(stage, layout, precision, units)
    if whole:
        made = cast_copies(stage, layout, precision)
        held = 0.0
        reduced = precision.reduce_bytes * max(0, *units.blocks, units.root)
        buffers = replace(
            buffers,
            gathered_entering=0.0,
            gathered_forward=whole + made,
            gathered_loss=whole + made - gone,
            extra_end=whole + reduced,
        )
    run = (
        pass_of(stage, layout, precision, units, walk, held, copies, whole)
        if stage.blocks
        else None
    )
    return Frame(
        stage=stage,
        kernel=kernel,
        on_gpu=on_gpu,
        buffers=buffers,
        run=run,
        held=on_gpu.gradients if held else 0.0,
        between=on_gpu.gradients if persistent else 0.0,
        root_share=units.root_share,
        whole_units=(units.gathered_root, max(units.gathered, default=0.0)),
    )


def _with_whole_embedding(states: States, waste: float, optimizer: str) -> States:
    """States with all rows of a split embedding's gradient on every tensor rank.

    SGD's momentum begins as a copy of the gradient (torch/optim/sgd.py, `torch.clone(grad)`), so it
    has all rows too; AdamW's moments are made like the parameter (traced).
    """
    momentum = waste if optimizer == "sgd-momentum" else 0.0
    return replace(
        states,
        gradients=states.gradients + waste,
        optimizer_state=states.optimizer_state + momentum,
    )


def _without_copies(buffers: Buffers, stage: Stage, gone: float) -> Buffers:
    """Buffers less autocast's copies of recomputed blocks, gone once forward is over.

    Falcon multiplies by a transposed weight, which autocast does not cache in forward either.
    """
    uncached = gone if stage.blocks[0][0].masked else 0.0
    return replace(
        buffers,
        gathered_forward=buffers.gathered_forward - uncached,
        gathered_loss=buffers.gathered_loss - gone,
    )


def stage_phases(
    scenario: Scenario, index: int
) -> tuple[Stage, float, Mapping[str, Mapping[str, float]]]:
    """One stage, its micro-batches in flight, and its bytes by phase and part.

    With accumulation (or a pipeline) the gradients of earlier micro-batches are there throughout;
    without, they appear block by block in backward while activations go (`backward.py`).
    """
    frame = frame_of(scenario, index)
    flight = in_flight(scenario, index)
    activations = stage_activations(scenario, frame.stage, frame.kernel)
    loss = stage_loss(scenario, frame.stage)
    return frame.stage, flight, _phases(scenario, frame, activations, loss, flight)


def _phases(
    scenario: Scenario,
    frame: Frame,
    activations: StageActivations,
    loss: LossBytes,
    flight: float,
) -> Mapping[str, Mapping[str, float]]:
    states, buffers, held = frame.on_gpu, frame.buffers, frame.held
    index = frame.stage.index
    handed_on = handed_on_bytes(scenario, index) + kept_output_bytes(scenario, index) * flight
    retained = retained_input_bytes(scenario, index)
    kept = activations.whole * flight + handed_on
    others = activations.whole * (flight - 1) + handed_on
    resident = buffers.held + resident_bytes(scenario, frame.stage)
    resident = resident + nanotron.gather_buffer_bytes(scenario)
    resident = resident + receive_buffer_bytes(scenario, frame.stage.index)
    resident = resident + table_bytes(scenario, frame.stage)
    waiting = loss.saved * (flight - 1) if scenario.layout.schedule == "gpipe" else 0.0

    def at(
        gradients: float, gathered: float, active: float, logits: float, extra: float
    ) -> dict[str, float]:
        return {
            "parameters": states.parameters,
            "gradients": gradients,
            "master weights": states.master_weights,
            "optimizer state": states.optimizer_state,
            "gathered layers": gathered,
            "activations": active,
            "logits and loss": logits,
            "buffers": resident + extra,
        }

    point = _backward_point(scenario.layout, frame, activations)
    rows = (
        at(frame.between, 0.0, retained, 0.0, buffers.extra_between),
        at(held, *_forward(frame, activations, kept, loss.forward, waiting), 0.0),
        at(held, buffers.gathered_loss, kept, loss.backward + waiting, 0.0),
        at(
            point.gradients,
            point.gathered,
            others + point.activations,
            waiting,
            point.extra,
        ),
        at(*_gradients_complete(frame, scenario.training.precision, others, waiting)),
        at(states.gradients, 0.0, retained, 0.0, buffers.extra_step),
    )
    return dict(zip(PHASES, rows, strict=True))


def _forward(
    frame: Frame, activations: StageActivations, kept: float, loss: float, waiting: float
) -> tuple[float, float, float]:
    """(gathered, activations, logits) at forward's end, or as FSDP enters the last block.

    There its all-gather buffer is copied out while the one of the block before is still held: three
    whole blocks (traced; it binds where frozen experts save little for backward).
    """
    end = (frame.buffers.gathered_forward, kept, loss + waiting)
    adapted = activations.adapting
    if there(adapted):
        inside = (end[0], kept - activations.late + adapted, 1.0 * waiting)
        end = highest([end, inside])
    if frame.run is None or not frame.buffers.gathered_entering:
        return end
    last = activations.memories[frame.run.spots[-1].step.kind]
    before = kept - last.kept - activations.late + last.hidden_bytes
    gathered, active, logits = highest(
        [end, (frame.buffers.gathered_entering, before, 1.0 * waiting)]
    )
    return gathered, active, logits


def _backward_point(layout: Layout, frame: Frame, activations: StageActivations) -> Point:
    """The worst point of backward; offloaded gradients leave the GPU as they come."""
    states, buffers = frame.on_gpu, frame.buffers
    if frame.run is None:
        return Point(states.gradients, buffers.gathered_backward, 0.0, buffers.extra_backward)
    point = worst_point(
        frame.run,
        activations.memories,
        activations.early,
        (activations.shared, activations.decoder),
    )
    point = _after_the_head(frame, activations, point)
    gradients = least(point.gradients, states.gradients)
    if frame.run.fsdp:
        return Point(gradients, point.gathered, point.activations, point.extra)
    gathered = point.gathered + buffers.gathered_backward
    return Point(gradients, gathered, point.activations, point.extra + buffers.extra_backward)


def _after_the_head(frame: Frame, activations: StageActivations, point: Point) -> Point:
    """That point, or the final norm's backward, with everything saved before it still there."""
    assert frame.run is not None
    spot = frame.run.spots[-1]
    saved = activations.kept + activations.early + activations.closing
    gathered = frame.buffers.gathered_loss if frame.run.fsdp else spot.gathered
    return Point(*highest([point, (spot.gradients, gathered, saved, spot.extra)]))


def _gradients_complete(
    frame: Frame, precision: Precision, others: float, waiting: float
) -> tuple[float, float, float, float, float]:
    """The end of backward: under FSDP the root's own shard is not made yet as its buffers peak."""
    whole = frame.on_gpu.gradients
    gradients, extra = whole, frame.buffers.extra_end
    if frame.run is not None and frame.run.fsdp and not frame.run.held:
        gradients -= min(gradients, precision.gradient_bytes * frame.root_share)
    if gradients + extra < whole:
        gradients, extra = whole, 0.0
    return gradients, 0.0, others, waiting, extra


def ranks_reduced(scenario: Scenario) -> int:
    """Ranks that gradients are summed over: data times context parallelism."""
    return scenario.data_parallel * scenario.layout.context_parallel


def after_offload(states: States, layout: Layout) -> States:
    """What stays on the GPU of a stage's states.

    An offloaded optimizer takes master weights, moments and the reduced gradients to the host
    (ZeRO-Offload, Ren et al. 2021, section 4.1); FSDP's CPUOffloadPolicy takes the parameter shards
    too; Megatron-LM's offload leaves the gradients.
    """
    if layout.offload_optimizer == "none" and layout.offload_parameters == "none":
        return states
    optimizer_stays = layout.offload_optimizer == "none"
    parameters_go = layout.offload_parameters != "none" or (
        not optimizer_stays and layout.engine in ("fsdp1", "fsdp2")
    )
    gradients_stay = optimizer_stays or layout.engine == "megatron"
    return States(
        parameters=0.0 if parameters_go else states.parameters,
        gradients=states.gradients if gradients_stay else 0.0,
        master_weights=states.master_weights if optimizer_stays else 0.0,
        optimizer_state=states.optimizer_state if optimizer_stays else 0.0,
        sharded_elements=states.sharded_elements,
        frozen=0.0 if parameters_go else states.frozen,
    )


def persistent_gradients(layout: Layout) -> bool:
    """Whether gradient buffers outlive the step.

    Megatron-LM's do (megatron/core/distributed/param_and_grad_buffer.py), nanotron's too
    (optim/gradient_accumulator.py), and DeepSpeed's stage 3's (`grad_partitions_flat_buffer` of
    deepspeed/runtime/zero/stage3.py).
    """
    by_stage = layout.engine == "deepspeed" and layout.zero_stage == 3
    return layout.engine in ("megatron", "nanotron") or by_stage


def in_flight(scenario: Scenario, index: int) -> float:
    """Micro-batches whose activations a stage holds at once.

    GPipe all m; 1F1B and zero bubble (ZB-H1) min(m, p - i) on stage i (Narayanan et al. 2021,
    section 2.2); interleaved 1F1B 1 + (p - 1)/(p v) times as many layers' worth on the first stage
    (same, section 2.2; Korthikanti et al. 2022, section 4.2.3), see `interleaved_in_flight`.
    """
    layout, micro_batches = scenario.layout, scenario.micro_batches
    stages = layout.pipeline_parallel
    if stages == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return 1.0 * micro_batches
    if layout.schedule == "interleaved":
        return interleaved_in_flight(micro_batches, layout, index)
    return 1.0 * least(micro_batches, stages - index)


def stage_loss(scenario: Scenario, stage: Stage) -> LossBytes:
    """Logits and loss on the stage that has the head; nothing elsewhere or without a vocabulary."""
    model, training, layout = scenario.model, scenario.training, scenario.layout
    if not stage.has_head or not model.vocabulary:
        return LossBytes(0.0, 0.0, 0.0)
    if training.model_code == "megatron" and training.loss in ("full", "fused"):
        return head_loss(scenario, stage)
    if training.model_code == "nanotron":
        return nanotron.head_loss(scenario)
    tokens = training.micro_batch * training.sequence_length / layout.context_parallel
    last = stage.blocks[-1][0] if stage.blocks else None
    return loss_bytes(
        tokens,
        model.vocabulary / layout.vocabulary_ranks,
        training.precision.compute_bytes,
        training.loss,
        model.hidden,
        upcast=_upcasts(scenario, stage),
        soft_cap=last is not None and last.soft_cap,
        split=layout.vocabulary_ranks > 1 and training.model_code in _LOSS_PARALLEL,
    )


def _upcasts(scenario: Scenario, stage: Stage) -> bool:
    """Whether the loss is fp32: causal language models upcast, and autocast does for all."""
    if not stage.blocks or scenario.training.model_code != "transformers":
        return True
    last = stage.blocks[-1][0]
    causal = last.causal and not last.cross_attention
    return causal or autocasts(scenario.layout, scenario.training.precision)
