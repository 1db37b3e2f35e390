"""What an estimate returns: bytes by phase and part for each stage, verdict and assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwise.core.hashed import once
from shardwise.core.memory.reserve import device_bytes
from shardwise.core.units import format_gib

if TYPE_CHECKING:
    from shardwise.core.memory.explanation import Explanation
    from shardwise.core.memory.loading import Loading
    from shardwise.core.memory.ranks import RankGroup
    from shardwise.core.memory.timeline import PhaseRow
    from shardwise.core.scenario import Scenario

PARTS: Mapping[str, str] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "master weights": "fp32 master weights",
    "optimizer state": "optimizer state",
    "gathered layers": "gathered layers",
    "activations": "activations",
    "logits and loss": "logits and loss",
    "buffers": "buckets and temporaries",
}
"""Every part of a phase, in the order in which bars are stacked, with its label."""

PHASES = ("between steps", "forward", "loss", "backward", "gradients complete", "optimizer step")
"""The moments of one step at which memory is counted, in order of time.

Of several micro-batches these are a later one's, which finds the gradients of earlier ones; what is
there before and in the first step is in `MemoryReport.timeline`.
"""


@dataclass(frozen=True)
class StageReport:
    """One pipeline stage: allocated bytes on its fullest rank by phase and part."""

    index: int
    layers: int
    in_flight: float
    phases: Mapping[str, Mapping[str, float]]

    @once
    def totals(self) -> Mapping[str, float]:
        """Allocated bytes by phase."""
        return {phase: sum(parts.values()) for phase, parts in self.phases.items()}

    @once
    def binding_phase(self) -> str:
        """The phase with the most bytes; the earliest of equals."""
        totals = self.totals
        return max(totals, key=totals.__getitem__)

    @once
    def peak_bytes(self) -> float:
        """Allocated bytes at the worst phase."""
        return max(self.totals.values())

    @property
    def steady_bytes(self) -> float:
        """Allocated bytes between steps."""
        return self.totals[PHASES[0]]


@dataclass(frozen=True, repr=False)
class MemoryReport:
    """The memory of one scenario; all sizes in bytes, of the rank that needs most.

    `peak_bytes` is allocated by tensors, `reserved_bytes` held by the caching allocator,
    `device_bytes` what nvidia-smi shows; `cached_bytes` of the last two are idle blocks that the
    allocator gives back before a request fails, so the card must have `needed_bytes`. `low_bytes`
    and `high_bytes` bound it, with no fragmentation and with 8 % of what is allocated (`high_bytes`
    is never below what the meter shows; `needed_high_bytes` is the band's own end).

    `verdict`, against the card's `usable_bytes`: fits (the whole band is below), tight (the card's
    end lies inside the band), does not fit (the whole band is above), uncertain (would fit, but the
    architecture is a guess and less than a fifth of the card is left, or activations are missing
    from the estimate: `not_modelled`).
    """

    scenario: Scenario
    stages: tuple[StageReport, ...]
    reserved_bytes: float
    device_bytes: float
    low_bytes: float
    high_bytes: float
    cached_bytes: float
    usable_bytes: int
    host_bytes_per_node: float
    verdict: str

    def __repr__(self) -> str:
        """What is needed of what, in one line."""
        return (
            f"MemoryReport({format_gib(self.peak_bytes)} allocated at {self.binding_phase}, "
            f"{format_gib(self.needed_bytes)} needed of {format_gib(self.usable_bytes)}: "
            f"{self.verdict})"
        )

    @once
    def worst(self) -> StageReport:
        """The stage with the highest peak."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def needed_bytes(self) -> float:
        """What the card must have: the device figure without idle cached blocks."""
        return self.device_bytes - self.cached_bytes

    @property
    def needed_high_bytes(self) -> float:
        """The upper end of what the card must have, with more fragmentation than expected."""
        return device_bytes(self.peak_bytes, self.scenario.layout.process_groups).high

    @once
    def largest_bytes(self) -> float:
        """The worst stage's largest tensor that comes and goes within a step."""
        from shardwise.core.memory.largest import largest_tensor_bytes

        return largest_tensor_bytes(self.scenario, self.worst.index)

    @property
    def default_allocator_bytes(self) -> float:
        """The same without expandable segments: one more block for the largest tensor at most.

        Of 61 traced steps replayed in the default allocator 55 need no more, against 29 with the
        band's 8 % (tests/accuracy/compare_reserved.py).
        """
        return max(self.needed_high_bytes, self.needed_bytes + self.largest_bytes)

    @property
    def doubt(self) -> str:
        """Why a verdict that would be fits is uncertain."""
        if self.scenario.model.known:
            return "activations of its state-space layers are not counted"
        return "the model's shape is guessed"

    @property
    def peak_bytes(self) -> float:
        """Allocated bytes at the worst phase of the worst stage."""
        return self.worst.peak_bytes

    @property
    def steady_bytes(self) -> float:
        """Allocated bytes between steps on the worst stage."""
        return max(stage.steady_bytes for stage in self.stages)

    @property
    def phases(self) -> Mapping[str, Mapping[str, float]]:
        """Bytes by phase and part on the worst stage."""
        return self.worst.phases

    @property
    def binding_phase(self) -> str:
        """The phase that decides."""
        return self.worst.binding_phase

    @property
    def parts(self) -> Mapping[str, float]:
        """Bytes by part at the peak."""
        return self.phases[self.binding_phase]

    @property
    def state_bytes(self) -> float:
        """Bytes of model states at the peak: parameters, gradients, master weights, optimizer."""
        names = ("parameters", "gradients", "master weights", "optimizer state")
        return sum(self.parts[name] for name in names)

    @once
    def replayed_bytes(self) -> int | None:
        """Reserved bytes of the worst stage by replay of two steps in torch's allocator.

        In place of a percentage for fragmentation; None where the order of the code's tensors is
        not written down (`memory/replayed.py`). Takes a tenth of a second.
        """
        from shardwise.core.memory.replayed import replayed

        memory = replayed(self.scenario, self.worst.index)
        return None if memory is None else memory.peak_reserved

    @once
    def timeline(self) -> tuple[PhaseRow, ...]:
        """The worst stage from load to the next step: first and later micro-batches apart."""
        from shardwise.core.memory.timeline import timeline

        return timeline(self.scenario, self.worst.index)

    @once
    def ranks(self) -> tuple[RankGroup, ...]:
        """Ranks that hold the same bytes, stage by stage, each group with its peak."""
        from shardwise.core.memory.ranks import rank_groups

        return rank_groups(self)

    @once
    def loading(self) -> tuple[Loading, ...]:
        """Ways to load the model, each with the most that a GPU of the worst stage holds."""
        from shardwise.core.memory.loading import ways_to_load

        return ways_to_load(self.scenario, self.worst.index)

    @once
    def assumptions(self) -> tuple[str, ...]:
        """What was taken for granted, one sentence each."""
        from shardwise.core.memory.assumptions import assumptions_of

        return assumptions_of(self.scenario)

    @once
    def not_modelled(self) -> tuple[str, ...]:
        """Terms that a real run may have and this estimate leaves out."""
        from shardwise.core.memory.assumptions import not_modelled_in

        return not_modelled_in(self.scenario)

    def explain(self, part: str) -> Explanation:
        """The formula of one part at the peak, with the values put in and its source.

        Raises:
            ScenarioError: not a key of `PARTS`.
        """
        from shardwise.core.memory.explain import explain

        return explain(self, part)
