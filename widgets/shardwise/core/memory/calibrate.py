"""One measured peak re-fits what lies outside the model, and shows how far off the model was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shardwise.core.errors import ScenarioError, unknown_key
from shardwise.core.memory.assumptions import not_modelled_in
from shardwise.core.memory.completeness import leaves_something_out
from shardwise.core.memory.estimate import estimate
from shardwise.core.memory.report import PHASES, MemoryReport
from shardwise.core.memory.reserve import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    EXPANDABLE_SEGMENTS,
    FRAGMENTATION,
    FRAGMENTATION_HIGH,
    DeviceBytes,
    verdict,
)
from shardwise.core.memory.snapshot import Snapshot, read_snapshot
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib

METERS: Mapping[str, str] = {
    "allocated": "torch.cuda.max_memory_allocated",
    "reserved": "torch.cuda.max_memory_reserved",
    "device": "nvidia-smi",
}
"""What a figure was read from; `nvidia-smi` is accepted for `device`."""

MOST_BYTES = 2e12


@dataclass(frozen=True)
class Calibration:
    """A reserve re-fitted to a measurement.

    `residual_bytes` is measured less estimated, by the same meter, before anything was re-fitted.
    The re-fitted reserve: `offset_bytes` that tensors take beyond the estimate (negative: less),
    `fragmentation` as a share of allocated bytes, `outside_bytes` for CUDA context and
    communicators, `idle_share` of the estimate's idle cached blocks. `may_be` names what the
    residual may be, `how` what was fitted and why.
    """

    scenario: Scenario
    meter: str
    measured_bytes: float
    estimated_bytes: float
    residual_bytes: float
    offset_bytes: float
    fragmentation: float
    outside_bytes: float
    may_be: tuple[str, ...]
    how: str
    idle_share: float = 1.0

    @property
    def residual_share(self) -> float:
        """The residual as a share of what was measured."""
        return self.residual_bytes / self.measured_bytes

    def allocated_bytes(self, report: MemoryReport) -> float:
        """Another estimate's peak with the offset that was found; never below 0."""
        return max(0.0, report.peak_bytes + self.offset_bytes)

    def reserved_bytes(self, report: MemoryReport) -> float:
        """What the caching allocator would hold for another estimate."""
        idle = self.idle_share * report.cached_bytes
        return self.allocated_bytes(report) * (1 + self.fragmentation) + idle

    def device_bytes(self, report: MemoryReport) -> float:
        """What nvidia-smi would show for another estimate."""
        return self.reserved_bytes(report) + self.outside_bytes

    def verdict(self, report: MemoryReport) -> str:
        """fits, tight, uncertain or does not fit with the re-fitted reserve.

        The band keeps the model's width above the expected figure; below it no fragmentation.
        """
        allocated = self.allocated_bytes(report)
        reserved = allocated * (1 + self.fragmentation)
        device = reserved + self.outside_bytes
        figures = DeviceBytes(
            reserved=reserved,
            device=device,
            low=allocated + self.outside_bytes,
            high=device + allocated * (FRAGMENTATION_HIGH - FRAGMENTATION),
        )
        model = report.scenario.model
        complete = not leaves_something_out(report.scenario)
        return verdict(figures, report.usable_bytes, model.known, complete)


def calibrate(
    scenario: Scenario, measured: float | Snapshot | str | Path, meter: str = "reserved"
) -> Calibration:
    """Re-fit the reserve to one measured peak of this scenario's worst rank.

    One number cannot tell tensors that the model misses from fragmentation, so it goes where its
    meter points: an allocated peak to an offset of tensors, a reserved or device peak to
    fragmentation (70.1 GB reserved for 43.9 allocated has been seen: TensorAuto/OpenTau#273) as
    long as it is not below the estimated tensors, else to a negative offset. A snapshot with
    history holds both peaks, so both are fitted.

    Args:
        scenario: what was run.
        measured: peak bytes, or a CUDA memory snapshot: read already, or its path.
        meter: allocated, reserved, or device (also called nvidia-smi); not used with a snapshot.

    Raises:
        ScenarioError: not a number of bytes above 0, an unknown meter, or an unreadable snapshot.

    >>> scenario = Scenario.from_dict({"model": {"parameters": 7e9}})
    >>> found = calibrate(scenario, estimate(scenario).reserved_bytes + 2**30)
    >>> round(found.residual_bytes / 2**30, 3)
    1.0
    """
    if isinstance(measured, (str, Path)):
        measured = read_snapshot(measured)
    if isinstance(measured, Snapshot):
        return _from_snapshot(scenario, measured)
    meter = meter_named(meter)
    size = measured_bytes(measured, "measured")
    report = estimate(scenario)
    least = report.phases[PHASES[0]]["parameters"]
    if size < least:
        raise ScenarioError(
            "measured", size, f"at least the {format_gib(least)} of parameters on a GPU", "in bytes"
        )
    estimated = estimated_by(report, meter)
    outside = report.device_bytes - report.reserved_bytes
    held = size - (outside if meter == "device" else 0.0)
    offset, fragmentation, idle, how = _fit(report, held, meter)
    residual = size - estimated
    return Calibration(
        scenario, meter, size, estimated, residual, offset, fragmentation, outside,
        _may_be(scenario, meter, residual), how, idle,
    )  # fmt: skip


def meter_named(meter: object) -> str:
    """The meter's key.

    Raises:
        ScenarioError: none of the meters.
    """
    key = "device" if isinstance(meter, str) and meter == "nvidia-smi" else meter
    if not isinstance(key, str) or key not in METERS:
        raise unknown_key("meter", meter, METERS)
    return key


def measured_bytes(value: object, field: str) -> float:
    """A measured size in bytes.

    Raises:
        ScenarioError: not a number above 0, or so small or large that it cannot be bytes.
    """
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not 2**20 <= value <= MOST_BYTES:  # type: ignore[operator]
        raise ScenarioError(
            field, value, "a number of bytes from 1 MiB to 2e12", "36.2 GiB is 36.2 * 2**30"
        )
    return float(value)  # type: ignore[arg-type]


def estimated_by(report: MemoryReport, meter: str) -> float:
    """The estimate's peak as a meter would show it."""
    return {
        "allocated": report.peak_bytes,
        "reserved": report.reserved_bytes,
        "device": report.device_bytes,
    }[meter]


def _fit(report: MemoryReport, held: float, meter: str) -> tuple[float, float, float, str]:
    """(offset of tensors, fragmentation, share of idle blocks, what was done) for one number."""
    allocated, idle = report.peak_bytes, report.cached_bytes
    if meter == "allocated":
        how = "The difference is tensors that the model misses or counts too many; the reserve "
        how += "keeps its stated fragmentation."
        return held - allocated, FRAGMENTATION, 1.0, how
    if held >= allocated + idle:
        share = (held - idle) / allocated - 1
        how = f"Fragmentation is {share:.1%} of the estimated tensors, instead of the stated "
        how += f"{FRAGMENTATION:.0%}; the model's own peak is taken as it is."
        return 0.0, share, 1.0, how
    if held >= allocated:
        share = (held - allocated) / idle
        how = f"No fragmentation is left, and {share:.0%} of the idle blocks that were expected."
        return 0.0, 0.0, share, how
    how = "Less was held than the model counts in tensors, so the peak is lowered and no "
    how += "fragmentation is left."
    return held - allocated, 0.0, 0.0, how


def _from_snapshot(scenario: Scenario, snapshot: Snapshot) -> Calibration:
    report = estimate(scenario)
    reserved = float(snapshot.peak_reserved_bytes or snapshot.reserved_bytes)
    if snapshot.peak_allocated_bytes is None:
        found = calibrate(scenario, reserved, "reserved")
        how = "No history in the snapshot: what it held at the end is taken for the reserved peak. "
        return replace(found, how=how + found.how)
    allocated = measured_bytes(snapshot.peak_allocated_bytes, "snapshot")
    residual = allocated - report.peak_bytes
    share = max(0.0, reserved / allocated - 1)
    how = (
        f"From {snapshot.events:,} recorded events: {format_gib(allocated)} allocated at most and "
    )
    how += f"{format_gib(reserved)} reserved, so fragmentation is {share:.1%}."
    return Calibration(
        scenario, "allocated", allocated, report.peak_bytes, residual, residual, share,
        report.device_bytes - report.reserved_bytes,
        _may_be(scenario, "allocated", residual), how, 0.0,
    )  # fmt: skip


def _may_be(scenario: Scenario, meter: str, residual: float) -> tuple[str, ...]:
    """What may stand behind a residual, likeliest first; nothing for none."""
    if residual == 0:
        return ()
    lines = []
    if meter != "allocated":
        lines.append(
            f"Fragmentation: lengths that vary, no expandable segments ({EXPANDABLE_SEGMENTS})."
            if residual > 0
            else f"Less fragmentation than the stated {FRAGMENTATION:.0%}."
        )
    if meter == "device":
        context, groups = format_gib(CONTEXT_BYTES), format_gib(COMMUNICATOR_BYTES)
        lines.append(
            f"The CUDA context and NCCL, stated as {context} and {groups}: more process groups "
            "and more kernels take more; other processes on the card count too."
        )
    if residual < 0:
        lines.append("A peak that was not reached yet: read it after the second optimizer step.")
        lines.append("Shorter sequences or smaller batches than the scenario's.")
        return tuple(lines)
    return (*lines, *not_modelled_in(scenario))
