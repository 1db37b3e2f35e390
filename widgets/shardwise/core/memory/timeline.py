"""A run in order of time: after load and wrap, micro-batch by micro-batch, the step, the next one.

`MemoryReport.phases` has each phase at its fullest, which is what decides; this has the phases that
are not: before any optimizer state exists, and before earlier micro-batches left gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.core.layout import Layout
from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.open_step import open_step
from shardwise.core.memory.outside import table_bytes
from shardwise.core.memory.phases import step_phases
from shardwise.core.memory.report import PARTS, PHASES
from shardwise.core.scenario import Scenario

LOADED = "after load and wrap"
MICRO_BATCH = ("forward", "loss", "backward")
"""The phases that every micro-batch goes through."""


@dataclass(frozen=True)
class PhaseRow:
    """One phase: its bytes by part in any step but the first, and the first step's total.

    With several micro-batches `forward 1` is the first one's, `forward 2+` any later one's.
    `first_step_bytes` is what the phase takes before the optimizer has made its state; None where
    the phase comes before any step.
    """

    name: str
    parts: Mapping[str, float]
    first_step_bytes: float | None

    @property
    def total_bytes(self) -> float:
        """Allocated bytes in any step but the first."""
        return sum(self.parts.values())


def timeline(scenario: Scenario, index: int) -> tuple[PhaseRow, ...]:
    """The phases of one stage, in order of time.

    >>> from shardwise.core.scenario import Scenario
    >>> given = {"model": {"parameters": 7e9}, "training": {"global_batch": 16}}
    >>> [row.name for row in timeline(Scenario.from_dict(given), 0)][:4]
    ['after load and wrap', 'forward 1', 'loss 1', 'backward 1']
    """
    every = step_phases(scenario, open_step(scenario))[index][1]
    frame = frame_of(scenario, index)
    lazily = 0.0
    if not makes_state_at_init(scenario.layout):
        lazily = frame.on_gpu.optimizer_state + frame.rounding.state

    def row(name: str, parts: Mapping[str, float]) -> PhaseRow:
        stepped = name == "optimizer step"  # it makes the state, then its temporaries
        return PhaseRow(name, parts, sum(parts.values()) - (0.0 if stepped else lazily))

    rows = [PhaseRow(LOADED, loaded(scenario, index), None)]
    if scenario.micro_batches > 1:
        first = _first_micro_batch(scenario, index)
        rows += [row(f"{name} 1", first[name]) for name in MICRO_BATCH]
        rows += [row(f"{name} 2+", every[name]) for name in MICRO_BATCH]
    else:
        rows += [row(name, every[name]) for name in MICRO_BATCH]
    rows += [row(name, every[name]) for name in PHASES[4:]]
    between = PhaseRow(PHASES[0], every[PHASES[0]], None)
    return (*rows, between)


def makes_state_at_init(layout: Layout) -> bool:
    """Whether optimizer state exists before the first step.

    torch's optimizers make it in their first step (torch/optim/adam.py, `_init_group`), and so do
    bitsandbytes', Megatron-LM's and DeepSpeed's stages 1 to 3 over them (deepspeed/runtime/zero/
    stage_1_and_2.py and stage3.py, `initialize_optimizer_states`, 0.19: for Adagrad alone; earlier
    releases stepped there). DeepSpeed without ZeRO still steps once with gradients of zero
    (deepspeed/runtime/fp16/fused_optimizer.py).
    """
    return layout.engine == "deepspeed" and layout.zero_stage == 0


def loaded(scenario: Scenario, index: int) -> Mapping[str, float]:
    """Bytes by part once the engine holds the model and before the first batch.

    Parameters as the engine holds them, master weights and gradient buffers that it makes at once
    (`persistent_share`), DDP's and DeepSpeed's stage 3's buckets, rotation tables that are
    buffers. Workspaces, gathered layers and the optimizer's state come with the first step.
    """
    frame, layout = frame_of(scenario, index), scenario.layout
    states = frame.on_gpu
    parts = dict.fromkeys(PARTS, 0.0)
    parts["parameters"] = states.parameters
    parts["gradients"] = frame.between
    parts["master weights"] = states.master_weights
    if makes_state_at_init(layout):
        parts["optimizer state"] = states.optimizer_state
    held = frame.buffers.held + table_bytes(scenario, frame.stage)
    parts["buffers"] = held - (0.0 if makes_state_at_init(layout) else frame.rounding.state)
    return parts


def _first_micro_batch(scenario: Scenario, index: int) -> Mapping[str, Mapping[str, float]]:
    """The phases up to the first backward's end: no gradients of earlier micro-batches.

    In a pipeline as many micro-batches are in flight by then as ever. FSDP there keeps whole
    gradients from the first backward on, which is taken at its end.
    """
    if scenario.layout.pipeline_parallel == 1 or "fsdp" not in scenario.layout.engine:
        first = step_phases(scenario, open_step(scenario, first=True))[index][1]
        ends = (first["backward"], first["gradients complete"])
        return {**first, "backward": max(ends, key=lambda parts: sum(parts.values()))}
    every = step_phases(scenario, open_step(scenario))[index][1]
    whole = scenario.training.precision.reduce_bytes * frame_of(scenario, index).stage.elements
    before = {
        name: {**every[name], "gathered layers": every[name]["gathered layers"] - whole}
        for name in ("forward", "loss")
    }
    return {**every, **before}
