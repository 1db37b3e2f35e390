"""A training step with its sizes left open: all formulas run once, for many estimates.

Estimates of one model, layout and training set-up differ in micro-batch and sequence length only.
So the formulas of activations and loss run on open sizes (`core/terms.py`), and what an estimate
has left to do is to add up coefficients and to compare moments (`phases.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from shardwise.core.arrays import everywhere, least, there
from shardwise.core.cluster import Cluster
from shardwise.core.layout import Layout
from shardwise.core.memory import nanotron
from shardwise.core.memory.backward import Point, backward_points
from shardwise.core.memory.completeness import leaves_something_out
from shardwise.core.memory.frame import Frame, frame_of
from shardwise.core.memory.head import stage_loss
from shardwise.core.memory.host import host_bytes_per_node
from shardwise.core.memory.kept import StageActivations, stage_activations
from shardwise.core.memory.megatron import resident_bytes
from shardwise.core.memory.outside import table_bytes
from shardwise.core.memory.pipelines import (
    handed_on_bytes,
    kept_bytes,
    receive_buffer_bytes,
    retained_input_bytes,
)
from shardwise.core.memory.stages import stages_of
from shardwise.core.model import Model
from shardwise.core.precision import Precision
from shardwise.core.scenario import Scenario
from shardwise.core.terms import Table, not_below_another, size
from shardwise.core.training import Training

SIZES = ("sequence_length", "micro_batch", "global_batch")
"""The fields of `Training` that are left open."""
_SET = tuple(field.name for field in fields(Training) if field.name not in SIZES)
_settings = attrgetter(*_SET)


class Figures(NamedTuple):
    """What of one stage grows with tokens, in bytes a micro-batch.

    `kept` by the blocks and around them for backward, `early` and `late` of it before the first
    block and after the last; `handed_on` once, `output` for each
    micro-batch in flight; `retained` between steps; `resident` all the time, `received` for each
    micro-batch of the step; then the loss (`LossBytes`).
    """

    kept: float
    early: float
    late: float
    handed_on: float
    output: float
    retained: float
    resident: float
    received: float
    loss_forward: float
    loss_backward: float
    loss_saved: float
    loss_product: float


@dataclass(frozen=True)
class OpenStage:
    """One stage: its frame, and the moments of forward and backward that may be highest.

    `entering` are gathered bytes of moments of forward before its end; `points` gradients, gathered
    layers, temporaries and logits' gradients (1 or 0) of backward's, of which the highest with its
    activations counts by what is `besides` them, `at_head` if any has logits' gradients;
    `complete` gradients and temporaries as backward closes. `rows` picks the stage's from the
    step's figures: `Figures`, then activations (and logits' gradients) of each moment.
    """

    frame: Frame
    layers: int
    rows: Callable[[list[float]], tuple[float, ...]]
    entering: tuple[float, ...]
    points: tuple[tuple[float, ...], ...]
    at_head: bool
    besides: tuple[float, ...]
    complete: tuple[float, float]


@dataclass(frozen=True)
class OpenStep:
    """All stages, with the table of what grows with tokens; `host_bytes` are one node's.

    `complete`: no block saves more for backward than is counted.
    """

    stages: tuple[OpenStage, ...]
    table: Table
    host_bytes: float
    complete: bool


def open_step(scenario: Scenario, *, first: bool = False) -> OpenStep:
    """The scenario's step with its sizes left open; the scenario may have arrays of sizes.

    `first`: its first micro-batch, which finds no gradients of earlier ones.

    Of the sizes it knows whether gradients are accumulated, and which windows are full.
    """
    length = scenario.training.sequence_length
    reached = [w for w in scenario.model.windows if everywhere(w <= length)]
    return _open_step(
        scenario.model,
        scenario.cluster,
        scenario.layout,
        _settings(scenario.training),
        not first and everywhere(scenario.micro_batches > 1),
        reached[-1] if reached else 1,
    )


@lru_cache(maxsize=1024)
def _open_step(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    settings: tuple[Any, ...],
    several: bool,
    about: int,
) -> OpenStep:
    opened: dict[str, Any] = {
        "sequence_length": size("sequence_length", about),
        "micro_batch": size("micro_batch"),
    }
    training = Training(**opened, **dict(zip(_SET, settings, strict=True)))
    scenario = Scenario(model, cluster, training, layout, None)
    stages = stages_of(model, layout, training.trainable)
    rows: dict[float, int] = {}
    opened_stages = [
        _open_stage(scenario, frame_of(scenario, index, several), rows)
        for index in range(len(stages))
    ]
    return OpenStep(
        tuple(opened_stages),
        Table(list(rows)),
        host_bytes_per_node(scenario, stages),
        not leaves_something_out(scenario),
    )


def _open_stage(scenario: Scenario, frame: Frame, rows: dict[float, int]) -> OpenStage:
    """One stage; what grows with tokens is added to the step's rows, unless one is the same."""
    activations = stage_activations(scenario, frame.stage, frame.kernel)
    figures = figures_of(scenario, frame, activations)
    entering = _entering(frame, activations, figures.loss_forward)
    points = _points(frame, activations, figures.loss_product)
    living = (p.activations + p.heads * figures.loss_product for p in points)
    own = [*figures, *(active for _, active in entering), *living]
    return OpenStage(
        frame=frame,
        layers=frame.stage.layers,
        rows=itemgetter(*(rows.setdefault(row, len(rows)) for row in own)),
        entering=tuple(gathered for gathered, _ in entering),
        points=tuple(zip(*(_besides_activations(frame, p) for p in points), strict=True)),
        at_head=any(point.heads for point in points),
        besides=tuple(point.besides for point in points),
        complete=_complete(frame, scenario.training.precision),
    )


def figures_of(scenario: Scenario, frame: Frame, activations: StageActivations) -> Figures:
    """What of one stage grows with tokens, from open sizes or from a scenario's own."""
    index, stage = frame.stage.index, frame.stage
    resident = frame.buffers.held + resident_bytes(scenario, stage)
    resident = resident + nanotron.gather_buffer_bytes(scenario)
    once, received = receive_buffer_bytes(scenario, index)
    resident = resident + once
    loss = stage_loss(scenario, stage)
    return Figures(
        activations.whole,
        activations.early,
        activations.late,
        handed_on_bytes(scenario, index),
        kept_bytes(scenario, index),
        retained_input_bytes(scenario, index),
        resident + table_bytes(scenario, stage),
        received,
        *loss,
    )


def _entering(
    frame: Frame, activations: StageActivations, loss: float
) -> list[tuple[float, float]]:
    """(gathered, activations less those at the end) of moments of forward before its end.

    The last block runs an adapter, or holds scores. FSDP enters it: there its all-gather buffer is
    copied out while the one of the block before is still held, three whole blocks (traced; it binds
    where frozen experts save little for backward). As it enters the first block the root's
    all-gather buffer is still held, and the block's with its copy: it binds where the root is most
    of a shallow model (traced).
    """
    end = frame.buffers.gathered_forward
    moments = []
    if there(activations.running):
        running = frame.buffers.gathered_running
        moments.append((running, activations.running - activations.late))
    if frame.run is not None and frame.buffers.gathered_entering:
        last = activations.memories[frame.run.spots[-1].step.kind]
        before = last.hidden_bytes - last.kept - activations.late
        first = activations.memories[frame.run.spots[0].step.kind]
        begun = activations.early + first.hidden_bytes - activations.whole
        moments.append((frame.buffers.gathered_entering, before))
        moments.append((frame.buffers.gathered_first, begun))
    totals = [end + loss, *(gathered + active for gathered, active in moments)]
    return [moments[row - 1] for row in not_below_another(totals) if row]


def _points(frame: Frame, activations: StageActivations, product: float) -> list[Point]:
    """The moments of backward that may be highest.

    After the blocks' own come the final norm's backward and the head's product, with everything
    saved before them still there. Over earlier gradients the head's own one is there until it is
    added to them, and under autocast in 16 bits while it is cast, after the logits' gradient: with
    few tokens it is the larger one (traced).
    """
    run = frame.run
    if run is None:
        return [Point(frame.on_gpu.gradients, 0.0, 0.0, 0.0)]
    shared = (activations.shared, activations.decoder)
    points = backward_points(run, activations.memories, activations.early, shared)
    spot = run.spots[-1]
    saved = activations.kept + activations.early + activations.closing
    gathered = frame.buffers.gathered_loss if run.fsdp else spot.gathered
    points.append(Point(spot.gradients, gathered, saved, spot.extra))
    if frame.head_passing:
        extra, heads = spot.extra + frame.head_passing, 0.0 if frame.head_cast else 1.0
        points.append(Point(spot.gradients, gathered, activations.whole, extra, heads))
    totals = [p.activations + p.heads * product + p.besides for p in points]
    return [points[row] for row in not_below_another(totals)]


def _besides_activations(frame: Frame, point: Point) -> tuple[float, float, float, float]:
    """Gradients (offloaded ones leave the GPU as they come), gathered layers and temporaries."""
    gradients, buffers = least(point.gradients, frame.on_gpu.gradients), frame.buffers
    if frame.run is not None and frame.run.fsdp:
        return gradients, point.gathered, point.extra, point.heads
    gathered = point.gathered + buffers.gathered_backward
    return gradients, gathered, point.extra + buffers.extra_backward, point.heads


def _complete(frame: Frame, precision: Precision) -> tuple[float, float]:
    """The end of backward: under FSDP the root's own shard is not made yet as its buffers peak."""
    whole = frame.on_gpu.gradients
    gradients, extra = whole, frame.buffers.extra_end
    if frame.run is not None and frame.run.fsdp and not frame.run.held:
        gradients -= min(gradients, precision.gradient_bytes * frame.root_share)
    return (whole, 0.0) if gradients + extra < whole else (gradients, extra)
