"""The memory of one stage over a training step, phase by phase and part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.core.memory.activations import (
    Kernel,
    Saved,
    Tokens,
    block_saved,
    kept_bytes,
    recomputed_bytes,
)
from shardwise.core.memory.buffers import Buffers, stage_buffers
from shardwise.core.memory.loss import LossBytes, loss_bytes
from shardwise.core.memory.report import PARTS, PHASES
from shardwise.core.memory.stages import Stage, stages_of
from shardwise.core.memory.states import States, stage_states
from shardwise.core.model import BlockShape
from shardwise.core.scenario import Scenario


@dataclass(frozen=True)
class StageActivations:
    """Bytes that one stage's blocks keep for one micro-batch, and the largest working set."""

    kept: float
    first_block: float
    working_set: float


def stage_phases(
    scenario: Scenario, index: int
) -> tuple[Stage, float, Mapping[str, Mapping[str, float]]]:
    """One stage, its micro-batches in flight, and its bytes by phase and part.

    Gradients appear block by block in backward while activations go, so the worst moment is at
    the first block's backward or at the last's; both are tried. With accumulation (or a pipeline)
    the gradients of earlier micro-batches are there throughout.
    """
    layout, training = scenario.layout, scenario.training
    stage = stages_of(scenario.model, layout)[index]
    states = stage_states(stage, layout, training.precision, training.optimizer, scenario.shard)
    on_gpu = after_offload(states, scenario)
    ranks = ranks_reduced(scenario)
    step = f"{training.optimizer}/{training.optimizer_implementation}"
    buffers = stage_buffers(stage, layout, training.precision, states, ranks, step)
    flight = in_flight(scenario, index)
    activations = stage_activations(scenario, stage)
    loss = stage_loss(scenario, stage)
    return stage, flight, _phases(scenario, on_gpu, buffers, activations, loss, flight)


def _phases(
    scenario: Scenario,
    states: States,
    buffers: Buffers,
    activations: StageActivations,
    loss: LossBytes,
    flight: float,
) -> Mapping[str, Mapping[str, float]]:
    held = states.gradients if holds_gradients(scenario) else 0.0
    between = states.gradients if persistent_gradients(scenario) else 0.0
    kept = activations.kept * flight
    others = activations.kept * (flight - 1)
    waiting = loss.saved * (flight - 1) if scenario.layout.schedule == "gpipe" else 0.0

    def at(
        gradients: float, gathered: float, active: float, logits: float, extra: float
    ) -> dict[str, float]:
        master, state = states.master_weights, states.optimizer_state
        sizes = (states.parameters, gradients, master, state, gathered, active, logits)
        return dict(zip(PARTS, (*sizes, buffers.held + extra), strict=True))

    working = activations.working_set
    starts = at(held, buffers.gathered_backward, kept + working, waiting, buffers.extra_backward)
    ends = at(
        states.gradients,
        buffers.gathered_backward,
        others + activations.first_block + working,
        waiting,
        buffers.extra_backward,
    )
    worst = max(starts, ends, key=lambda parts: sum(parts.values()))
    rows = (
        at(between, 0.0, 0.0, 0.0, 0.0),
        at(held, buffers.gathered_forward, kept, loss.forward + waiting, 0.0),
        at(held, buffers.gathered_backward, kept, loss.backward + waiting, 0.0),
        worst,
        at(states.gradients, 0.0, others, waiting, buffers.extra_end),
        at(states.gradients, 0.0, 0.0, 0.0, buffers.extra_step),
    )
    return dict(zip(PHASES, rows, strict=True))


def ranks_reduced(scenario: Scenario) -> int:
    """Ranks that gradients are summed over: data times context parallelism."""
    return scenario.data_parallel * scenario.layout.context_parallel


def after_offload(states: States, scenario: Scenario) -> States:
    """What stays on the GPU of a stage's states.

    An offloaded optimizer takes master weights, moments and the reduced gradients to the host
    (ZeRO-Offload, Ren et al. 2021, section 4.1); FSDP's CPUOffloadPolicy takes the parameter shards
    too; Megatron-LM's offload leaves the gradients.
    """
    layout = scenario.layout
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
    )


def persistent_gradients(scenario: Scenario) -> bool:
    """Whether gradient buffers outlive the step.

    Megatron-LM's do (megatron/core/distributed/param_and_grad_buffer.py), DeepSpeed's stage 3's too
    (`grad_partitions_flat_buffer` of deepspeed/runtime/zero/stage3.py).
    """
    layout = scenario.layout
    return layout.engine == "megatron" or (layout.engine == "deepspeed" and layout.zero_stage == 3)


def holds_gradients(scenario: Scenario) -> bool:
    """Whether a micro-batch runs while gradients of earlier ones are held."""
    return scenario.micro_batches > 1 or persistent_gradients(scenario)


def in_flight(scenario: Scenario, index: int) -> float:
    """Micro-batches whose activations a stage holds at once.

    GPipe all m; 1F1B and zero bubble (ZB-H1) min(m, p - i) on stage i (Narayanan et al. 2021,
    section 2.2); interleaved 1F1B 1 + (p - 1)/(p v) times as many layers' worth on the first stage
    (same, section 2.2; Korthikanti et al. 2022, section 4.2.3).
    """
    layout, micro_batches = scenario.layout, scenario.micro_batches
    stages = layout.pipeline_parallel
    if stages == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return float(micro_batches)
    warm_up = float(min(micro_batches, stages - index))
    if layout.schedule == "interleaved":
        extra = (stages - 1) / (stages * layout.virtual_stages)
        return min(float(micro_batches), warm_up * (1 + extra))
    return warm_up


def kernel_of(scenario: Scenario) -> Kernel:
    """How this scenario's blocks run."""
    layout, training = scenario.layout, scenario.training
    return Kernel(
        element_bytes=training.precision.compute_bytes,
        tensor=layout.tensor_parallel,
        sequence_parallel=layout.sequence_parallel,
        attention=training.attention,
        model_code=training.model_code,
    )


def tokens_of(scenario: Scenario, shape: BlockShape) -> Tokens:
    """The tokens that a block of this shape sees: vision and audio encoders have their own."""
    training, fixed = scenario.training, scenario.model.fixed_sequence
    whole = fixed if fixed and shape.tokens != "sequence" else training.sequence_length
    cross = scenario.layout.context_parallel
    return Tokens(training.micro_batch, whole / cross, whole)


def stage_activations(scenario: Scenario, stage: Stage) -> StageActivations:
    """Bytes kept by a stage's blocks for one micro-batch, under its checkpointing."""
    kernel, training = kernel_of(scenario), scenario.training
    kept = working = first = 0.0
    position = 0
    for shape, count in stage.blocks:
        saved = block_saved(shape, tokens_of(scenario, shape), kernel)
        recomputed = _recomputed_count(training.checkpoint_every, position, count)
        kind = training.activation_checkpointing
        if kind == "every":
            run = kept_bytes(saved, "full") * recomputed + saved.total * (count - recomputed)
            kind = "full" if recomputed else "none"
        else:
            run = kept_bytes(saved, kind) * count
        first = first or run / count
        kept += run
        own = backward_working_set(saved, shape, kernel)
        working = max(working, recomputed_bytes(saved, kind) + own)
        position += count
    return StageActivations(kept, first, working)


def _recomputed_count(every: int, position: int, count: int) -> int:
    """How many of the blocks [position, position + count) are every k-th one."""
    return 0 if not every else (position + count) // every - position // every


def backward_working_set(saved: Saved, shape: BlockShape, kernel: Kernel) -> float:
    """Gradients alive inside one block's backward, besides what the block saved.

    Traced on transformers' LLaMA blocks: 6f + 2h bytes a token in the MLP (gradients of product,
    activated gate and up) and 22h in the backward of an RMSNorm computed in fp32
    (`data/traces/ACTIVATIONS.md`); 2h-wide gradients of input and residual elsewhere.
    """
    sizes = dict(saved.operators)
    widest = max(sizes.get("MLP", 0.0), sizes.get("experts", 0.0))
    in_fp32 = kernel.model_code == "transformers" and shape.norm == "rmsnorm"
    norm = (11 if in_fp32 and kernel.element_bytes < 4 else 2) * saved.input_bytes
    return max(0.75 * widest + saved.input_bytes, norm)


def stage_loss(scenario: Scenario, stage: Stage) -> LossBytes:
    """Logits and loss on the stage that has the head; nothing elsewhere or without a vocabulary."""
    model, training, layout = scenario.model, scenario.training, scenario.layout
    if not stage.has_head or not model.vocabulary:
        return LossBytes(0.0, 0.0, 0.0)
    tokens = training.micro_batch * training.sequence_length / layout.context_parallel
    return loss_bytes(
        tokens,
        model.vocabulary / layout.tensor_parallel,
        training.precision.compute_bytes,
        training.loss,
        model.hidden,
    )
