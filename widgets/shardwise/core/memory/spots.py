"""What each block of a backward pass has besides activations, engine by engine."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.layout import Layout
from shardwise.core.memory.buffers import (
    all_reduce_held,
    embedding_slice,
    gathered_element,
    last_gradient,
    whole_embedding_gradient,
)
from shardwise.core.memory.nanotron import piles_up
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.states import Units
from shardwise.core.memory.walk import Step, Walk
from shardwise.core.precision import Precision


@dataclass(frozen=True)
class Spot:
    """What one step of backward has besides activations, in bytes.

    `feed_forward` and `others` are the gradients of all those weights of the block, which come into
    being moment by moment; `passing` is the largest one that is there only until it is added or
    cast. Under FSDP: `entering` is gathered as the block's backward begins (None:
    nothing changes there), `leaving` gathered and `reduced` in buffers as its gradients are reduced
    (None: not block by block).
    """

    step: Step
    gradients: float
    gathered: float
    extra: float
    feed_forward: float
    others: float
    passing: float = 0.0
    entering: float | None = None
    leaving: float | None = None
    reduced: float = 0.0


@dataclass(frozen=True)
class Pass:
    """A backward pass of one stage: all that does not depend on tokens, worked out once.

    `held` are the gradients of earlier micro-batches; `apart`: new ones are not added to them as
    they come, but wait in the compute type.
    `closing` is the embedding's backward, after all blocks: gradients, gathered, extra; `encoder`
    are the kinds of block that stand before a decoder in the same stage.
    """

    walk: Walk
    fsdp: bool
    held: float
    spots: tuple[Spot, ...]
    closing: tuple[float, float, float]
    apart: bool = False
    encoder: frozenset[int] = frozenset()


def pass_of(
    stage: Stage,
    layout: Layout,
    precision: Precision,
    units: Units,
    walk: Walk,
    held: float,
    arriving: int,
    copies: tuple[float, ...],
    whole: float = 0.0,
) -> Pass:
    """The pass over a stage's blocks under one engine; `whole` as `whole_bytes` has it.

    `arriving` are bytes that each element's gradient adds to the `held` ones as it is made.
    """
    fsdp = layout.engine in ("fsdp1", "fsdp2")
    if whole:
        spots = tuple(
            _whole_spot(
                stage, precision, units, step, whole + (copies[step.position] if copies else 0.0)
            )
            for step in walk.steps
        )
        last = gathered_element(precision) * float(stage.root + 2 * stage.tied)
        return Pass(walk, fsdp, held, spots, (0.0, whole, last))
    spot_of = _fsdp_spot if fsdp else _piling_spot if piles_up(layout) else _plain_spot
    spots = tuple(
        spot_of(
            stage,
            layout,
            precision,
            units,
            step,
            held,
            arriving,
            copies[step.position] if copies else 0.0,
        )
        for step in walk.steps
    )
    closing = _closing(stage, layout, precision, units, held, arriving)
    if piles_up(layout):
        weights = sum(stage.units) + stage.root + 2 * stage.tied
        closing = held, 0.0, float(precision.compute_bytes * weights)
    return Pass(walk, fsdp, held, spots, closing, piles_up(layout), _encoder(walk))


def _encoder(walk: Walk) -> frozenset[int]:
    kinds = {index: shape for index, (shape, _) in enumerate(walk.kinds)}
    seeing = {index for index, shape in kinds.items() if shape.tokens == "image"}
    if seeing:  # a vision tower
        return frozenset(seeing)
    crossing = {index for index, shape in kinds.items() if shape.cross_attention}
    return frozenset(set(kinds) - crossing if crossing else ())


def _closing(
    stage: Stage,
    layout: Layout,
    precision: Precision,
    units: Units,
    held: float,
    arriving: int,
) -> tuple[float, float, float]:
    """The embedding's backward: its gradient, and as a tied head's also the sum.

    Under FSDP the root is still gathered and the first block's reduce-scatter input held.
    """
    if layout.engine not in ("fsdp1", "fsdp2"):
        weights = sum(stage.units) + stage.root + whole_embedding_gradient(stage, layout)
        # Over earlier gradients the three are temporaries; else the sum becomes the gradient.
        tied = 3 if held and not arriving else 2
        gradients = held + arriving * weights
        return gradients, 0.0, precision.parameter_bytes * tied * float(stage.tied)
    compute = gathered_element(precision)
    whole = whole_embedding_gradient(stage, layout) + embedding_slice(stage, layout)
    made: float = compute * (stage.root + 2 * stage.tied + whole)
    made += all_reduce_held(layout, precision, held, sum(units.shares))
    reduced = held + arriving * sum(units.shares)
    before = precision.reduce_bytes * units.blocks[0]
    return reduced, units.gathered_root, float(made + before)


def _weights(element: float, stage: Stage, units: Units, step: Step) -> dict[str, float]:
    """`Spot`'s gradients of the block's MLP and of its other weights, at `element` bytes each."""
    feed_forward = units.feed_forward[step.position]
    others = stage.units[step.position] - feed_forward
    return {"feed_forward": float(element * feed_forward), "others": float(element * others)}


def _fsdp_spot(
    stage: Stage,
    layout: Layout,
    precision: Precision,
    units: Units,
    step: Step,
    held: float,
    arriving: int,
    copies: float,
) -> Spot:
    """A block's moments, then its reduction, under FSDP.

    Gathered: the root, the block, and the one before it (prefetched; without resharding all that
    are left). The block's all-gather buffer is copied out before it is freed. The previous block's
    reduce-scatter input lives until this block's is made; the head's gradient, unsharded, until the
    root is reduced (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py). One rank alone
    gathers a block as its backward begins, from its own shard.
    """
    position, reshards = step.position, layout.zero_stage == 3
    compute, reduce = gathered_element(precision), precision.reduce_bytes
    own, root = units.gathered[position], units.gathered_root
    before = units.gathered[position - 1] if position else 0.0
    alone = layout.shard == 1
    before = 0.0 if alone else before
    ahead = before if reshards else sum(units.gathered[:position])
    behind = units.blocks[position + 1] if position + 1 < len(units.blocks) else 0
    done = sum(units.shares[position + 1 :])
    waiting = compute * stage.late + all_reduce_held(layout, precision, held, done)
    last = 0 if alone else last_gradient(stage.unit_tensors[position])
    return Spot(
        step=step,
        gradients=held + arriving * done,
        gathered=root + own + ahead + copies,
        extra=float(waiting + reduce * behind),
        **_weights(compute, stage, units, step),
        entering=root + 2 * own + copies if reshards and not alone else None,
        leaving=root + ahead + copies,
        reduced=float(
            waiting
            + reduce * units.blocks[position]
            + max(compute * stage.units[position], reduce * units.shares[position] + compute * last)
        ),
    )


def _plain_spot(
    stage: Stage,
    layout: Layout,
    precision: Precision,
    units: Units,
    step: Step,
    held: float,
    arriving: int,
    copies: float,
) -> Spot:
    """A block's moments where weights are whole: gradients pile up from the head down."""
    position = step.position
    done = stage.late + sum(stage.units[position + 1 :])
    # As a weight's gradient is made, autocast's copy of the weight goes.
    cast = precision.compute_bytes if copies else 0
    # A gradient is a tensor of its own until it is added to an earlier one, or cast by autocast.
    added = precision.gradient_bytes if held and not arriving else 0
    wide = (t.elements for t in stage.unit_tensors[position] if t.part in ("mlp", "experts"))
    return Spot(
        step=step,
        gradients=held + float(arriving * done),
        gathered=copies,
        passing=float((added + cast) * max(wide, default=0)),
        extra=float(precision.parameter_bytes * stage.tied) if held and not arriving else 0.0,
        **_weights(arriving - cast, stage, units, step),
    )


def _piling_spot(
    stage: Stage,
    layout: Layout,
    precision: Precision,
    units: Units,
    step: Step,
    held: float,
    arriving: int,
    copies: float,
) -> Spot:
    """A block's moments where 16-bit gradients wait until backward is over (nanotron)."""
    done = stage.late + sum(stage.units[step.position + 1 :])
    compute = precision.compute_bytes
    return Spot(
        step=step,
        gradients=held,
        gathered=copies,
        extra=float(compute * done),
        **_weights(compute, stage, units, step),
    )


def whole_bytes(stage: Stage, layout: Layout, precision: Precision, units: Units) -> float:
    """Gathered weights and whole gradients that FSDP keeps through a pipeline's step; else 0.

    torch/distributed/pipelining/stage.py, `backward_maybe_with_nosync`: until the last micro-batch
    nothing is resharded after backward nor reduced, so that each rank accumulates the stage's
    gradients whole, in the type that they will be reduced in (`to_accumulated_grad_if_needed` of
    torch/distributed/fsdp/_fully_shard/_fsdp_param.py).
    """
    if layout.engine not in ("fsdp1", "fsdp2") or layout.pipeline_parallel == 1:
        return 0.0
    gathered = sum(units.gathered) + units.gathered_root
    return gathered + precision.reduce_bytes * float(stage.elements)


def _whole_spot(stage: Stage, precision: Precision, units: Units, step: Step, whole: float) -> Spot:
    """A block's moments where nothing is resharded or reduced before the last micro-batch."""
    element = gathered_element(precision)
    return Spot(
        step=step,
        gradients=0.0,
        gathered=whole,
        extra=0.0,
        **_weights(element, stage, units, step),
    )
