"""The memory of one stage over a training step, phase by phase and part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from shardwise.core.memory.backward import Pass, Point, worst_point
from shardwise.core.memory.buffers import Buffers, autocasts, cast_copies, stage_buffers
from shardwise.core.memory.kept import StageActivations, stage_activations
from shardwise.core.memory.loss import LossBytes, loss_bytes
from shardwise.core.memory.report import PARTS, PHASES
from shardwise.core.memory.stages import Stage, stages_of
from shardwise.core.memory.states import States, stage_states, stage_units
from shardwise.core.scenario import Scenario


def stage_phases(
    scenario: Scenario, index: int
) -> tuple[Stage, float, Mapping[str, Mapping[str, float]]]:
    """One stage, its micro-batches in flight, and its bytes by phase and part.

    With accumulation (or a pipeline) the gradients of earlier micro-batches are there throughout;
    without, they appear block by block in backward while activations go (`backward.py`).
    """
    layout, training = scenario.layout, scenario.training
    stage = stages_of(scenario.model, layout)[index]
    states = stage_states(stage, layout, training.precision, training.optimizer, scenario.shard)
    units = stage_units(stage, layout, scenario.shard)
    ranks = ranks_reduced(scenario)
    step = f"{training.optimizer}/{training.optimizer_implementation}"
    buffers = stage_buffers(stage, layout, training.precision, states, ranks, step, units)
    flight = in_flight(scenario, index)
    activations = stage_activations(scenario, stage)
    run = Pass(
        stage=stage,
        layout=layout,
        precision=training.precision,
        units=units,
        blocks=activations.blocks,
        early=activations.early,
        held=states.gradients if holds_gradients(scenario) else 0.0,
        copies=cast_copies(stage, layout, training.precision),
    )
    on_gpu = after_offload(states, scenario)
    loss = stage_loss(scenario, stage)
    return stage, flight, _phases(scenario, on_gpu, buffers, activations, loss, flight, run)


def _phases(
    scenario: Scenario,
    states: States,
    buffers: Buffers,
    activations: StageActivations,
    loss: LossBytes,
    flight: float,
    run: Pass,
) -> Mapping[str, Mapping[str, float]]:
    held = states.gradients if holds_gradients(scenario) else 0.0
    between = states.gradients if persistent_gradients(scenario) else 0.0
    kept, others = activations.whole * flight, activations.whole * (flight - 1)
    waiting = loss.saved * (flight - 1) if scenario.layout.schedule == "gpipe" else 0.0

    def at(
        gradients: float, gathered: float, active: float, logits: float, extra: float
    ) -> dict[str, float]:
        master, state = states.master_weights, states.optimizer_state
        sizes = (states.parameters, gradients, master, state, gathered, active, logits)
        return dict(zip(PARTS, (*sizes, buffers.held + extra), strict=True))

    point = _backward_point(scenario, run, buffers, states)
    rows = (
        at(between, 0.0, 0.0, 0.0, 0.0),
        at(held, buffers.gathered_forward, kept, loss.forward + waiting, 0.0),
        at(held, buffers.gathered_loss, kept, loss.backward + waiting, 0.0),
        at(
            point.gradients,
            point.gathered,
            others + point.activations,
            waiting,
            point.extra,
        ),
        _gradients_complete(at, run, buffers, states, others, waiting),
        at(states.gradients, 0.0, 0.0, 0.0, buffers.extra_step),
    )
    return dict(zip(PHASES, rows, strict=True))


def _backward_point(scenario: Scenario, run: Pass, buffers: Buffers, states: States) -> Point:
    """The worst point of backward; offloaded gradients leave the GPU as they come."""
    if not run.blocks:
        return Point(states.gradients, buffers.gathered_backward, 0.0, buffers.extra_backward)
    point = worst_point(run)
    gradients = min(point.gradients, states.gradients)
    if run.fsdp:
        return replace(point, gradients=gradients)
    whole = scenario.layout.engine in ("ddp", "zero-redundancy")
    gathered = point.gathered if whole else buffers.gathered_backward
    return replace(
        point, gradients=gradients, gathered=gathered, extra=point.extra + buffers.extra_backward
    )


def _gradients_complete(
    at: Callable[..., dict[str, float]],
    run: Pass,
    buffers: Buffers,
    states: States,
    others: float,
    waiting: float,
) -> dict[str, float]:
    """The end of backward: under FSDP the root's own shard is not made yet as its buffers peak."""
    gradients = states.gradients
    if run.fsdp and not run.held:
        gradients -= min(gradients, run.precision.gradient_bytes * run.units.root_share)
    last = at(states.gradients, 0.0, others, waiting, 0.0)
    peak = at(gradients, 0.0, others, waiting, buffers.extra_end)
    return max(peak, last, key=lambda parts: sum(parts.values()))


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


def stage_loss(scenario: Scenario, stage: Stage) -> LossBytes:
    """Logits and loss on the stage that has the head; nothing elsewhere or without a vocabulary."""
    model, training, layout = scenario.model, scenario.training, scenario.layout
    if not stage.has_head or not model.vocabulary:
        return LossBytes(0.0, 0.0, 0.0)
    tokens = training.micro_batch * training.sequence_length / layout.context_parallel
    last = stage.blocks[-1][0] if stage.blocks else None
    return loss_bytes(
        tokens,
        model.vocabulary / layout.tensor_parallel,
        training.precision.compute_bytes,
        training.loss,
        model.hidden,
        upcast=_upcasts(scenario, stage),
        soft_cap=last is not None and last.soft_cap,
    )


def _upcasts(scenario: Scenario, stage: Stage) -> bool:
    """Whether the loss is fp32: causal language models upcast, and autocast does for all."""
    if not stage.blocks or scenario.training.model_code != "transformers":
        return True
    last = stage.blocks[-1][0]
    causal = last.causal and not last.cross_attention
    return causal or autocasts(scenario.layout, scenario.training.precision)
