"""Which ranks hold the same bytes, how the others differ, and which of them decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.host import after_offload
from shardwise.core.memory.optimizer_step import step_temporary
from shardwise.core.memory.shares import Share, shares_of
from shardwise.core.memory.states import States, stage_states
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib

if TYPE_CHECKING:
    from shardwise.core.memory.report import MemoryReport, StageReport

PARTS: Mapping[str, str] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "master weights": "master_weights",
    "optimizer state": "optimizer_state",
}
"""The parts by which ranks differ, with their fields in `States`."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks of one stage that hold the same bytes of states.

    `ranks` is how many there are; `shards` the first and the last of them on the sharding axis, of
    which `every` says whether all in between belong to them too. `states` are bytes by part as the
    optimizer steps, on the GPU; `why` says what such a rank holds.
    """

    stage: int
    ranks: int
    shards: tuple[int, int]
    every: bool
    states: Mapping[str, float]
    peak_bytes: float
    binding_phase: str
    why: str


def rank_groups(report: MemoryReport) -> tuple[RankGroup, ...]:
    """The groups of every stage, in order of stage and of their first rank.

    >>> from shardwise.core.memory.estimate import estimate
    >>> given = {"model": "gpt2", "training": {"precision": "fsdp-mixed"}}
    >>> groups = rank_groups(estimate(Scenario.from_dict(given)))
    >>> [(group.ranks, group.shards) for group in groups]
    [(7, (0, 6)), (1, (7, 7))]
    """
    return tuple(group for stage in report.stages for group in _of_stage(report.scenario, stage))


def _of_stage(scenario: Scenario, report: StageReport) -> list[RankGroup]:
    stage = frame_of(scenario, report.index).stage
    layout, training = scenario.layout, scenario.training
    fullest = stage_states(stage, layout, training.precision, training.optimizer, scenario.shard)
    ranks = scenario.cluster.world_size // layout.pipeline_parallel
    groups = []
    for share in shares_of(scenario, stage, fullest):
        phases = _phases_of(scenario, report, fullest, share)
        totals = {phase: sum(parts.values()) for phase, parts in phases.items()}
        binding = max(totals, key=lambda phase: totals[phase])
        first, last = share.span
        groups.append(
            RankGroup(
                stage=stage.index,
                ranks=share.shards * (ranks // scenario.shard),
                shards=share.span,
                every=last - first + 1 == share.shards,
                states={part: phases["optimizer step"][part] for part in PARTS},
                peak_bytes=totals[binding],
                binding_phase=binding,
                why=share.why,
            )
        )
    return groups


def _phases_of(
    scenario: Scenario, report: StageReport, fullest: States, share: Share
) -> Mapping[str, Mapping[str, float]]:
    """The stage's phases on such a rank.

    States differ, and with them the optimizer's temporary; gathered layers, reductions and
    activations are the same on every rank.
    """
    own = share.states
    if own == fullest:
        return report.phases
    layout, training = scenario.layout, scenario.training
    step = f"{training.optimizer}/{training.optimizer_implementation}"
    stage = frame_of(scenario, report.index).stage
    most, least = (
        step_temporary(states, layout, training.precision, step, stage) for states in (fullest, own)
    )
    here, there = after_offload(fullest, layout), after_offload(own, layout)
    less = {part: getattr(here, name) - getattr(there, name) for part, name in PARTS.items()}
    kept = there.gradients / here.gradients if here.gradients else 1.0
    phases = {}
    for phase, parts in report.phases.items():
        changed = {part: size - less.get(part, 0.0) for part, size in parts.items()}
        changed["gradients"] = parts["gradients"] * kept
        if phase == "optimizer step":
            changed["buffers"] -= most - least
        phases[phase] = changed
    return phases


def binding_sentence(report: MemoryReport) -> str:
    """Which ranks bind, and why."""
    groups = report.ranks
    worst = max(groups, key=lambda group: group.peak_bytes)
    least = min(groups, key=lambda group: group.peak_bytes)
    at_peak = f"{format_gib(worst.peak_bytes)} at {worst.binding_phase}"
    if len(groups) == 1:
        whose = "One rank" if worst.ranks == 1 else f"All {worst.ranks:,} ranks alike"
        return f"{whose}, {at_peak}: {worst.why}."
    binding = [group for group in groups if group.peak_bytes == worst.peak_bytes]
    count = sum(group.ranks for group in binding)
    verb = "binds" if count == 1 else "bind"
    world = f"{report.scenario.cluster.world_size:,}"
    said = f"{counted(count)} of {world} {verb}, with {at_peak}"
    lighter = format_gib(worst.peak_bytes - least.peak_bytes)
    if worst.stage != least.stage:
        own, other = stage_said(report, worst.stage), stage_said(report, least.stage)
        return f"{said}: {own}. The lightest have {lighter} less: {other}."
    return (
        f"{said}: {worst.why}. The lightest ({counted(least.ranks)}) have {lighter} less: "
        f"{least.why}."
    )


def counted(ranks: int) -> str:
    """So many ranks.

    >>> counted(1), counted(1024)
    ('1 rank', '1,024 ranks')
    """
    return "1 rank" if ranks == 1 else f"{ranks:,} ranks"


def stage_said(report: MemoryReport, index: int) -> str:
    """What a stage runs."""
    stage = frame_of(report.scenario, index).stage
    flight = report.stages[index].in_flight
    ends = {"embedding": stage.has_embedding, "head": stage.has_head}
    runs = [f"{stage.layers} layers", *(name for name, has in ends.items() if has)]
    many = "1 micro-batch" if flight == 1 else f"{flight:.3g} micro-batches"
    return f"stage {index} ({', '.join(runs)}; {many} in flight)"
