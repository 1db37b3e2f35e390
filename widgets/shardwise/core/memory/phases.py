"""The memory of each stage over a training step, phase by phase and part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add

from shardwise.core.arrays import at_highest, first_highest
from shardwise.core.memory.loss import LossBytes
from shardwise.core.memory.open_step import Figures, OpenStage, OpenStep
from shardwise.core.memory.pipelines import held_elsewhere, in_flight
from shardwise.core.memory.states import States
from shardwise.core.scenario import Scenario

FIGURES = len(Figures._fields)
LOSS = FIGURES - len(LossBytes._fields)
Phases = Mapping[str, Mapping[str, float]]
"""Bytes by phase and part."""


def step_phases(scenario: Scenario, step: OpenStep) -> list[tuple[float, Phases]]:
    """Each stage's micro-batches in flight, and its bytes by phase and part.

    With accumulation (or a pipeline) the gradients of earlier micro-batches are there throughout;
    without (and in the `first` micro-batch) they appear block by block in backward while
    activations go (`backward.py`).
    """
    training, found = scenario.training, []
    figures = step.table.at(
        {
            "micro_batch": 1.0 * training.micro_batch,
            "sequence_length": 1.0 * training.sequence_length,
        }
    )
    for index, stage in enumerate(step.stages):
        flight = in_flight(scenario, index)
        own = stage.rows(figures)
        found.append((flight, _phases(scenario, stage, own, flight)))
    return found


def _phases(
    scenario: Scenario, stage: OpenStage, figures: Sequence[float], flight: float
) -> Phases:
    """The phases of `report.PHASES`."""
    saved, early, late, handed_on, output, retained, resident, received = figures[:LOSS]
    made_loss, begun_loss, waiting_loss, product = figures[LOSS:FIGURES]
    frame, states, buffers = stage.frame, stage.frame.on_gpu, stage.frame.buffers
    others = held_elsewhere(scenario, frame.stage.index, flight, saved, (early, late))
    others = others + handed_on + output * flight
    kept = saved + others
    resident = resident + received * scenario.micro_batches
    # GPipe has every micro-batch's loss wait.
    logits = waiting_loss * (flight - 1) if scenario.layout.schedule == "gpipe" else 0.0
    # DeepSpeed's pipelines and nanotron reduce when no micro-batch is in flight any more.
    at_end = 0.0 if scenario.layout.engine in ("deepspeed", "nanotron") else others
    begun = begun_loss + logits
    first = FIGURES + len(stage.entering)
    gathered, over, made = _forward(stage, made_loss, figures[FIGURES:first])
    gradients, whole, extra, active = _backward(stage, product, figures[first:])
    end, closing = stage.complete
    between, step = resident + buffers.extra_between, resident + buffers.extra_step
    return {
        "between steps": _parts(states, frame.between, 0.0, retained, 0.0, between),
        "forward": _parts(states, frame.held, gathered, kept + over, made + logits, resident),
        "loss": _parts(states, frame.held, buffers.gathered_loss, kept, begun, resident),
        "backward": _parts(states, gradients, whole, others + active, logits, resident + extra),
        "gradients complete": _parts(states, end, 0.0, at_end, logits, resident + closing),
        "optimizer step": _parts(states, states.gradients, 0.0, retained, 0.0, step),
    }


def _parts(
    states: States, gradients: float, gathered: float, active: float, logits: float, buffers: float
) -> Mapping[str, float]:
    """One phase by `report.PARTS`."""
    return {
        "parameters": states.parameters,
        "gradients": gradients,
        "master weights": states.master_weights,
        "optimizer state": states.optimizer_state,
        "gathered layers": gathered,
        "activations": active,
        "logits and loss": logits,
        "buffers": buffers,
    }


def _forward(
    stage: OpenStage, loss: float, entering: Sequence[float]
) -> tuple[float, float, float]:
    """(gathered, activations over those at its end, loss) at forward's worst moment."""
    end = stage.frame.buffers.gathered_forward
    if not entering:
        return end, 0.0, loss
    rows = [(end + loss, end, 0.0, loss)]
    for gathered, active in zip(stage.entering, entering, strict=True):
        rows.append((gathered + active, gathered, active, 0.0))
    _, *worst = first_highest(rows)
    return tuple(worst)


def _backward(
    stage: OpenStage, product: float, activations: Sequence[float]
) -> tuple[float, float, float, float]:
    """Gradients, gathered layers, temporaries and activations at backward's worst moment.

    The logits' gradient, the head's `product`, is a temporary where it is among what lives.
    """
    totals = list(map(add, activations, stage.besides))
    rows = list(zip(*stage.points, activations, strict=True))
    gradients, gathered, extra, heads, active = at_highest(rows, totals)
    if not stage.at_head:
        return gradients, gathered, extra, active
    return gradients, gathered, extra + heads * product, active - heads * product
