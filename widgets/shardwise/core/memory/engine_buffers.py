"""What each engine keeps besides states and activations: the buffers of one stage."""

from __future__ import annotations

from dataclasses import replace

from shardwise.core.layout import Layout
from shardwise.core.memory.autocast import cast_copies
from shardwise.core.memory.buffers import Buffers, gathered_element, holds_buckets, last_gradient
from shardwise.core.memory.deepspeed import deepspeed_buffers
from shardwise.core.memory.nanotron import bucket_bytes, piles_up, sync_bytes
from shardwise.core.memory.optimizer_step import step_temporary
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.states import States, Units
from shardwise.core.precision import Precision


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
    temporary = step_temporary(states, layout, precision, step, stage)
    copies = cast_copies(stage, layout, precision)
    if layout.engine in ("fsdp1", "fsdp2"):
        own = fsdp_buffers(stage, layout, precision, temporary, units)
    elif layout.engine == "deepspeed":
        own = deepspeed_buffers(stage, layout, precision, temporary)
    else:
        held = states.gradients if holds_buckets(layout, ranks) else 0.0
        until_next = temporary if layout.engine == "megatron" else 0.0
        element = precision.compute_bytes
        held += bucket_bytes(layout, ranks, stage.elements, element)
        waiting = element * float(stage.elements) if piles_up(layout) else 0.0
        reduced, gathered = sync_bytes(layout, ranks, stage.elements)
        own = Buffers(
            held=held,
            extra_end=max(waiting, reduced),
            extra_step=max(temporary, gathered),
            extra_between=until_next,
        )
    return replace(
        own,
        gathered_running=own.gathered_running + copies,
        gathered_forward=own.gathered_forward + copies,
        gathered_loss=own.gathered_loss + copies,
    )


def fsdp_buffers(
    stage: Stage, layout: Layout, precision: Precision, temporary: float, units: Units
) -> Buffers:
    """FSDP gathers a block, its successor (prefetch) and the root unit (embedding, norm, head).

    The root stays gathered from forward's start to backward's end. At the end of forward the last
    block's all-gather buffer is still held, inside it the block as well, and as backward starts the
    last block is prefetched (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; traced).
    Without resharding every
    block stays gathered until its backward. The root's reduction closes backward: its gradients in
    compute type and the reduce-scatter's input (all but the last are freed before its output is
    made: `foreach_reduce`'s loop variable still names that one, in a head of its own the head's);
    `spots.py` has the blocks'. One rank alone gathers nothing: no buffer and no prefetch.
    """
    compute, reduce = gathered_element(precision), precision.reduce_bytes
    last, every = units.gathered[-1] if units.gathered else 0.0, sum(units.gathered)
    second = units.gathered[-2] if len(units.gathered) > 1 else 0.0
    keeps = layout.zero_stage == 3
    root = units.gathered_root
    if layout.shard == 1:
        here = root + (0.0 if keeps else every)
        return Buffers(
            gathered_forward=here,
            gathered_loss=here,
            gathered_entering=root + (last if keeps else every),
            gathered_running=root + (last if keeps else every),
            extra_end=reduce * units.root + max(compute * stage.root, reduce * units.root_share),
            extra_step=temporary,
        )
    return Buffers(
        gathered_forward=root + (last if keeps else every + last),
        gathered_loss=root + (last if keeps else every),
        gathered_entering=root + (2 * last if keeps else every + last) + second,
        gathered_running=root + (2 * last if keeps else every + last),
        gathered_first=2 * root + 2 * units.gathered[0] if units.gathered else 0.0,
        extra_end=reduce * units.root
        + max(
            compute * stage.root,
            reduce * units.root_share + compute * last_gradient(stage.root_tensors),
        ),
        extra_step=temporary,
    )
