"""What a trace reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.lab.tracing.saved import AliveRow, SavedRow
from shardwise.lab.tracing.settings import Settings


@dataclass(frozen=True)
class TraceReport:
    """Live bytes of one rank over the traced steps.

    `phases` gives for each phase of the last step the bytes by part at the phase's highest total;
    `phase_ends` the same at its end. `steps` maps the phases of every step to (peak, end) totals.
    `peak_bytes` is the highest total of all phases from the first forward on, `peak_phase` where
    it was; `steady_bytes` what lives between steps (after the optimizer step, gradients dropped).
    `saved_by_module` lists the storages that autograd kept in the last step's first micro-batch,
    `alive_at_peak` lists what lived at the last step's highest total (bytes as asked for),
    `attention_ran` how often each attention kernel ran in the whole trace, `method` says how the
    bytes were found ("fake tensors" or "CUDA allocator").
    """

    settings: Settings
    method: str
    phases: Mapping[str, Mapping[str, int]]
    phase_ends: Mapping[str, Mapping[str, int]]
    steps: Mapping[str, tuple[int, int]]
    peak_bytes: int
    peak_phase: str
    steady_bytes: int
    saved_by_module: tuple[SavedRow, ...]
    alive_at_peak: tuple[AliveRow, ...]
    attention_ran: Mapping[str, int]
    parameters: int
    seconds: float

    @property
    def peak_parts(self) -> Mapping[str, int]:
        """Bytes by part at the highest phase of the last step."""
        phase = max(self.phases, key=lambda name: sum(self.phases[name].values()))
        return self.phases[phase]

    @property
    def saved_bytes(self) -> int:
        """Bytes of all storages that autograd kept for backward in one micro-batch."""
        return sum(row.total_bytes for row in self.saved_by_module)
