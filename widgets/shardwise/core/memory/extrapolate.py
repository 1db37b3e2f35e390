"""Measured peaks at a few micro-batches, carried on to the largest that a card holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.core.errors import ScenarioError
from shardwise.core.fields import whole
from shardwise.core.memory.calibrate import estimated_by, measured_bytes, meter_named
from shardwise.core.memory.estimate import estimate
from shardwise.core.memory.reserve import FRAGMENTATION
from shardwise.core.scenario import Scenario

AGREES_WITHIN = 0.05
"""The model's slope is used when it is this close to the measured one, as a share of the latter."""

MOST_BATCH = 1_000_000


@dataclass(frozen=True)
class Extrapolation:
    """Peaks by micro-batch, through measured points.

    `method` says which line: `model` (the estimate's own slope, shifted by the least-squares
    offset of the points) or `line` (a straight line of least squares through the points).
    `slope_bytes` are bytes a sample of the line that is used, `model_slope_bytes` the estimate's,
    both over the points. What the card must hold besides: `fragmentation` as a share and
    `outside_bytes`, 0 where the meter shows it; `residuals` are (micro-batch, measured less fitted
    bytes).
    """

    scenario: Scenario
    meter: str
    points: tuple[tuple[int, float], ...]
    method: str
    slope_bytes: float
    intercept_bytes: float
    model_slope_bytes: float
    offset_bytes: float
    fragmentation: float
    outside_bytes: float
    residuals: tuple[tuple[int, float], ...]
    why: str

    def bytes_at(self, micro_batch: int) -> float:
        """The peak at another micro-batch by the same meter, in bytes.

        Raises:
            ScenarioError: not a whole number from 1 to 1e6.
        """
        batch = whole(micro_batch, "micro_batch", 1, MOST_BATCH)
        if self.method == "line":
            return self.intercept_bytes + self.slope_bytes * batch
        return _estimated(self.scenario, batch, self.meter) + self.offset_bytes

    def device_bytes_at(self, micro_batch: int) -> float:
        """What nvidia-smi would show at another micro-batch, in bytes."""
        return self.bytes_at(micro_batch) * (1 + self.fragmentation) + self.outside_bytes

    def fits(self, micro_batch: int, usable_bytes: float | None = None) -> bool:
        """Whether what the card must then hold fits on it.

        `usable_bytes` is the scenario's card's unless given.
        """
        room = self.scenario.cluster.gpu.usable_bytes if usable_bytes is None else usable_bytes
        return self.device_bytes_at(micro_batch) <= room

    def largest_micro_batch(self, usable_bytes: float | None = None) -> int:
        """The largest micro-batch that fits; 0 when not even one sample does.

        One that the scenario cannot run (fewer micro-batches than stages) does not fit either.
        """
        low, high = 0, 1
        while high <= MOST_BATCH and self._runs(high, usable_bytes):
            low, high = high, 2 * high
        high = min(high, MOST_BATCH + 1)
        while high - low > 1:
            middle = (low + high) // 2
            if self._runs(middle, usable_bytes):
                low = middle
            else:
                high = middle
        return low

    def _runs(self, micro_batch: int, usable_bytes: float | None) -> bool:
        try:
            return self.fits(micro_batch, usable_bytes)
        except ScenarioError:
            return False


def extrapolate(
    scenario: Scenario, points: Mapping[int, float], meter: str = "reserved"
) -> Extrapolation:
    """Carry measured peaks on to other micro-batches of the same run.

    Which line: the model's own slope where it is within 5 % of the measured one or where there is
    one point only, since it knows what does not grow with the batch; else the straight line, since
    the run is then not what the scenario says. `method` and `why` tell.

    Args:
        scenario: what was run; its micro-batch does not matter.
        points: measured peak bytes by micro-batch.
        meter: allocated, reserved, or device (nvidia-smi). Measure reserved or device bytes: those
            decide whether a run dies, and they can exceed allocated ones by 60 %.

    Raises:
        ScenarioError: no point, a micro-batch or size that cannot be, or peaks that do not grow
            with the micro-batch.

    >>> scenario = Scenario.from_dict({"model": "llama-3-8b"})
    >>> found = extrapolate(scenario, {8: 36.2 * 2**30, 16: 46.3 * 2**30})
    >>> found.method, round(found.bytes_at(40) / 2**30, 1)
    ('line', 76.6)
    """
    meter = meter_named(meter)
    read = _points(points)
    estimates = [_estimated(scenario, batch, meter) for batch, _ in read]
    offset = sum(size - own for (_, size), own in zip(read, estimates, strict=True)) / len(read)
    slope, intercept = _line(read)
    model_slope = _model_slope(scenario, read, estimates, meter)
    agrees = len(read) == 1 or abs(model_slope / slope - 1) <= AGREES_WITHIN
    used = (model_slope, estimates[0] + offset - model_slope * read[0][0])
    if not agrees:
        used = slope, intercept
    found = Extrapolation(
        scenario, meter, read, "model" if agrees else "line", *used, model_slope, offset,
        FRAGMENTATION if meter == "allocated" else 0.0, _outside(scenario, meter), (),
        _why(agrees, len(read), slope, model_slope),
    )  # fmt: skip
    residuals = tuple((batch, size - found.bytes_at(batch)) for batch, size in read)
    return replace(found, residuals=residuals)


def _points(points: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    if not isinstance(points, Mapping) or not points:
        raise ScenarioError("points", points, "a dict of measured peak bytes by micro-batch")
    read = {}
    for batch, size in points.items():
        key = whole(batch, "points", 1, MOST_BATCH)
        read[key] = measured_bytes(size, f"points[{key}]")
    ordered = tuple(sorted(read.items()))
    if len(ordered) > 1 and _line(ordered)[0] <= 0:
        raise ScenarioError(
            "points", points, "peaks that grow with the micro-batch",
            "measure each in a fresh process, after two optimizer steps",
        )  # fmt: skip
    return ordered


def _line(points: tuple[tuple[int, float], ...]) -> tuple[float, float]:
    """(slope, intercept) of least squares; a flat line through one point."""
    count = len(points)
    batch = sum(b for b, _ in points) / count
    size = sum(s for _, s in points) / count
    spread = sum((b - batch) ** 2 for b, _ in points)
    if not spread:
        return 0.0, size
    slope = sum((b - batch) * (s - size) for b, s in points) / spread
    return slope, size - slope * batch


def _estimated(scenario: Scenario, batch: int, meter: str) -> float:
    training = replace(scenario.training, micro_batch=batch)
    return estimated_by(estimate(scenario.with_training(training)), meter)


def _model_slope(
    scenario: Scenario, points: tuple[tuple[int, float], ...], estimates: list[float], meter: str
) -> float:
    """The estimate's bytes a sample over the same micro-batches; to twice as many from one."""
    if len(points) > 1:
        pairs = tuple((batch, own) for (batch, _), own in zip(points, estimates, strict=True))
        return _line(pairs)[0]
    batch = points[0][0]
    return (_estimated(scenario, 2 * batch, meter) - estimates[0]) / batch


def _outside(scenario: Scenario, meter: str) -> float:
    """CUDA context and communicators, as the estimate states them."""
    report = estimate(scenario)
    return 0.0 if meter == "device" else report.device_bytes - report.reserved_bytes


def _why(agrees: bool, count: int, slope: float, model_slope: float) -> str:
    own = f"{model_slope / 2**30:.2f} GiB a sample"
    if count == 1:
        return f"One point gives an offset only: the slope is the model's, {own}."
    seen = f"{slope / 2**30:.2f} GiB a sample were measured, the model says {own}"
    if agrees:
        return f"{seen}: its own slope is used, shifted to the points."
    return f"{seen}: they differ by more than 5 %, so a straight line through the points is used."
