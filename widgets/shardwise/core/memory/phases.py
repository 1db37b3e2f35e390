"""The memory of one stage over a training step, phase by phase and part by part."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.core.arrays import highest, least, there
from shardwise.core.layout import Layout
from shardwise.core.memory import nanotron
from shardwise.core.memory.backward import Point, worst_point
from shardwise.core.memory.frame import Frame, frame_of
from shardwise.core.memory.head import stage_loss
from shardwise.core.memory.kept import StageActivations, stage_activations
from shardwise.core.memory.loss import LossBytes
from shardwise.core.memory.megatron import resident_bytes
from shardwise.core.memory.outside import table_bytes
from shardwise.core.memory.pipelines import (
    handed_on_bytes,
    held_elsewhere,
    in_flight,
    kept_bytes,
    receive_buffer_bytes,
    retained_input_bytes,
)
from shardwise.core.memory.report import PHASES
from shardwise.core.memory.stages import Stage
from shardwise.core.precision import Precision
from shardwise.core.scenario import Scenario


def stage_phases(
    scenario: Scenario, index: int, *, first: bool = False
) -> tuple[Stage, float, Mapping[str, Mapping[str, float]]]:
    """One stage, its micro-batches in flight, and its bytes by phase and part.

    With accumulation (or a pipeline) the gradients of earlier micro-batches are there throughout;
    without (and in the `first` micro-batch) they appear block by block in backward while
    activations go (`backward.py`).
    """
    frame = frame_of(scenario, index, first=first)
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
    handed_on = handed_on_bytes(scenario, index) + kept_bytes(scenario, index) * flight
    retained = retained_input_bytes(scenario, index)
    others = held_elsewhere(
        scenario, index, activations.whole, (activations.early, activations.late)
    )
    others = others + handed_on
    kept = activations.whole + others
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

    # DeepSpeed's pipelines and nanotron reduce when no micro-batch is in flight any more.
    at_end = 0.0 if scenario.layout.engine in ("deepspeed", "nanotron") else others
    point = _backward_point(scenario.layout, frame, activations, loss.product)
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
        at(*_gradients_complete(frame, scenario.training.precision, at_end, waiting)),
        at(states.gradients, 0.0, retained, 0.0, buffers.extra_step),
    )
    return dict(zip(PHASES, rows, strict=True))


def _forward(
    frame: Frame, activations: StageActivations, kept: float, loss: float, waiting: float
) -> tuple[float, float, float]:
    """(gathered, activations, logits) at forward's end, or as FSDP enters the last block.

    There its all-gather buffer is copied out while the one of the block before is still held: three
    whole blocks (traced; it binds where frozen experts save little for backward). As it enters the
    first block the root's all-gather buffer is still held, and the block's with its copy: it binds
    where the root is most of a shallow model (traced).
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
    first = activations.memories[frame.run.spots[0].step.kind]
    begun = kept - activations.whole + activations.early + first.hidden_bytes
    gathered, active, logits = highest(
        [
            end,
            (frame.buffers.gathered_entering, before, 1.0 * waiting),
            (frame.buffers.gathered_first, begun, 1.0 * waiting),
        ]
    )
    return gathered, active, logits


def _backward_point(
    layout: Layout, frame: Frame, activations: StageActivations, product: float
) -> Point:
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
    point = _at_the_head(frame, activations, point, product)
    gradients = least(point.gradients, states.gradients)
    if frame.run.fsdp:
        return Point(gradients, point.gathered, point.activations, point.extra)
    gathered = point.gathered + buffers.gathered_backward
    return Point(gradients, gathered, point.activations, point.extra + buffers.extra_backward)


def _at_the_head(
    frame: Frame, activations: StageActivations, point: Point, product: float
) -> Point:
    """That point, or the head's product, or the final norm's backward, with all before still there.

    Over earlier gradients the head's own one is there until it is added to them, and under autocast
    in 16 bits while it is cast, after the logits' gradient: with few tokens it is the larger one
    (traced).
    """
    assert frame.run is not None
    spot = frame.run.spots[-1]
    saved = activations.kept + activations.early + activations.closing
    gathered = frame.buffers.gathered_loss if frame.run.fsdp else spot.gathered
    rows = [point, (spot.gradients, gathered, saved, spot.extra)]
    if frame.head_passing:
        extra = spot.extra + frame.head_passing + (0.0 if frame.head_cast else product)
        rows.append((spot.gradients, gathered, activations.whole, extra))
    return Point(*highest(rows))


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
