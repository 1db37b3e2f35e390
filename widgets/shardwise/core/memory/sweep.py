"""One scenario at many sizes: the same figures on NumPy arrays, more than a million a second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from shardwise.core.arrays import first_highest, most
from shardwise.core.errors import ScenarioError
from shardwise.core.memory.completeness import leaves_something_out
from shardwise.core.memory.open_step import open_step
from shardwise.core.memory.phases import step_phases
from shardwise.core.memory.pools import stranded_bytes
from shardwise.core.memory.report import PHASES
from shardwise.core.memory.reserve import device_bytes, verdict, with_cached
from shardwise.core.scenario import Scenario, the_scenario

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike

    Array = numpy.ndarray[Any, numpy.dtype[numpy.float64]]

CHUNK = 8192
"""Points worked on at once: a few dozen arrays of them stay in a core's cache."""
_MOST = {"sequence_length": 10**8, "micro_batch": 10**6, "global_batch": 10**9}


@dataclass(frozen=True, repr=False)
class Sweep:
    """Estimates at many sizes, in bytes; every array has the shape of the sizes broadcast.

    `peak_bytes` and `steady_bytes` are allocated on the fullest rank, as in `MemoryReport`;
    `phases` the largest total of any stage by phase; `device_bytes` what nvidia-smi shows,
    `low_bytes` and `high_bytes` as there; `fits` is True where even the high figure is usable.
    """

    scenario: Scenario
    sequence_length: Array
    micro_batch: Array
    peak_bytes: Array
    steady_bytes: Array
    phases: Mapping[str, Array]
    reserved_bytes: Array
    device_bytes: Array
    low_bytes: Array
    high_bytes: Array

    def __repr__(self) -> str:
        """How many sizes, and how many of them fit."""
        return f"Sweep({self.peak_bytes.size:,} sizes, {int(self.fits.sum()):,} fit)"

    @property
    def usable_bytes(self) -> int:
        """What one card has for training."""
        return self.scenario.cluster.gpu.usable_bytes

    @property
    def fits(self) -> Array:
        """Where the whole band is below what the card has."""
        return cast("Array", self.high_bytes <= self.usable_bytes)

    def verdicts(self) -> list[str]:
        """The words of `MemoryReport.verdict`, in the order of the flattened arrays."""
        groups, known = self.scenario.layout.process_groups, self.scenario.model.known
        complete = not leaves_something_out(self.scenario)
        return [
            verdict(device_bytes(peak, groups), self.usable_bytes, known, complete)
            for peak in self.peak_bytes.ravel().tolist()
        ]


def sweep(
    scenario: Scenario,
    *,
    sequence_length: ArrayLike | None = None,
    micro_batch: ArrayLike | None = None,
    global_batch: ArrayLike | None = None,
) -> Sweep:
    """The estimate at many sizes at once.

    The layout and all kinds stay those of the scenario; what is left out keeps its value. Arrays
    are broadcast against each other. Each element equals `estimate` of the scenario with these
    numbers to 1 part in 10^12.

    Args:
        scenario: model, cluster, precision, layout.
        sequence_length: tokens a sample.
        micro_batch: samples a rank and forward pass.
        global_batch: samples an optimizer step over all ranks.

    Raises:
        ScenarioError: a size that is not a whole number from 1 on, that context parallelism does
            not divide, or a global batch with fewer micro-batches than pipeline stages.

    >>> found = sweep(Scenario.from_dict({}), micro_batch=[1, 2, 4])
    >>> [round(size / 2**30, 1) for size in found.peak_bytes.tolist()]
    [46.0, 76.5, 137.5]
    """
    import numpy

    training = the_scenario(scenario).training
    given = {
        "sequence_length": sequence_length,
        "micro_batch": micro_batch,
        "global_batch": global_batch,
    }
    sizes: dict[str, Array] = {
        key: numpy.asarray(_checked(value, key), dtype=numpy.float64)
        for key, value in given.items()
        if value is not None
    }
    for key in ("sequence_length", "micro_batch"):
        sizes.setdefault(key, numpy.asarray(float(getattr(training, key))))
    if "global_batch" not in sizes and training.global_batch is not None:
        sizes["global_batch"] = numpy.asarray(float(training.global_batch))
    try:
        together = numpy.broadcast_arrays(*sizes.values())
    except ValueError:
        shapes = {key: value.shape for key, value in sizes.items()}
        raise ScenarioError("sizes", shapes, "arrays that broadcast against each other") from None
    shaped: dict[str, Array] = dict(zip(sizes, together, strict=True))
    shape = shaped["micro_batch"].shape
    flat: dict[str, Array] = {key: value.ravel() for key, value in shaped.items()}
    _check(scenario, flat)
    rows = {name: numpy.empty(flat["micro_batch"].size) for name in ("peak", "idle", *PHASES)}
    for points in _alike(scenario, flat):
        for name, value in _totals(scenario, {k: v[points] for k, v in flat.items()}).items():
            rows[name][points] = value
    rows = {name: row.reshape(shape) for name, row in rows.items()}
    needed = device_bytes(cast(float, rows["peak"]), scenario.layout.process_groups)
    usable = scenario.cluster.gpu.usable_bytes
    figures = with_cached(needed, cast(float, rows["idle"]), usable)
    reserved, device, low, high = (
        cast("Array", value)
        for value in (figures.reserved, figures.device, figures.low, figures.high)
    )
    return Sweep(
        scenario=scenario,
        sequence_length=shaped["sequence_length"],
        micro_batch=shaped["micro_batch"],
        peak_bytes=rows["peak"],
        steady_bytes=rows[PHASES[0]],
        phases={phase: rows[phase] for phase in PHASES},
        reserved_bytes=reserved,
        device_bytes=device,
        low_bytes=low,
        high_bytes=high,
    )


def _totals(scenario: Scenario, sizes: Mapping[str, Array]) -> dict[str, Any]:
    """Bytes by phase, peak and idle blocks of the fullest stage, by the scalar estimate's code."""
    numbers: dict[str, Any] = dict(sizes)
    at_once = replace(scenario, training=replace(scenario.training, **numbers))
    rows: dict[str, Any] = {}
    stages: list[tuple[Any, Any]] = []
    step = open_step(at_once)
    for stage, (_, phases) in zip(step.stages, step_phases(at_once, step), strict=True):
        moments = [
            (sum(parts.values()), stranded_bytes(at_once, stage.frame, phases, phase))
            for phase, parts in phases.items()
        ]
        stages.append(first_highest(moments))
        for phase, (total, _) in zip(phases, moments, strict=True):
            rows[phase] = most(rows[phase], total) if phase in rows else total
    peak, idle = first_highest(stages)
    return rows | {"peak": peak, "idle": idle}


def _alike(scenario: Scenario, sizes: Mapping[str, Array]) -> Iterator[Any]:
    """Indices of points for which the code takes the same branches, a chunk at a time.

    Branches depend on whether a sliding window is shorter than the sequence (`has_mask`), and on
    whether gradients are accumulated.
    """
    import numpy

    kind = numpy.searchsorted(scenario.model.windows, sizes["sequence_length"], side="right")
    if "global_batch" in sizes:
        per_step = sizes["micro_batch"] * scenario.data_parallel
        kind = 2 * kind + (sizes["global_batch"] > per_step)
    for value in numpy.unique(kind):
        points = numpy.flatnonzero(kind == value)
        for start in range(0, points.size, CHUNK):
            yield points[start : start + CHUNK]


def _checked(value: ArrayLike, key: str) -> ArrayLike:
    import numpy

    allowed = f"whole numbers from 1 to {_MOST[key]:,}"
    try:
        given = numpy.asarray(value)
    except ValueError:  # a ragged list
        raise ScenarioError(f"training.{key}", value, allowed) from None
    if given.dtype.kind not in "iuf" or given.size == 0:
        raise ScenarioError(f"training.{key}", value, allowed)
    wrong = ~((given >= 1) & (given <= _MOST[key]) & (given == numpy.floor(given)))
    if wrong.any():
        raise ScenarioError(f"training.{key}", given[wrong].ravel()[0].item(), allowed)
    return given


def _check(scenario: Scenario, sizes: Mapping[str, Array]) -> None:
    """The rules of `Scenario` that depend on sizes, by the first point that breaks one."""
    layout = scenario.layout
    wrong = sizes["sequence_length"] % layout.context_parallel != 0
    if "global_batch" in sizes and layout.pipeline_parallel > 1:
        per_step = sizes["micro_batch"] * scenario.data_parallel
        count = -(-sizes["global_batch"] // per_step)
        wrong = wrong | (count < layout.pipeline_parallel)
        if layout.schedule == "interleaved":
            wrong = wrong | (count % layout.pipeline_parallel != 0)
    if wrong.any():
        at = int(wrong.argmax())
        numbers: dict[str, Any] = {key: int(value[at]) for key, value in sizes.items()}
        scenario.with_training(replace(scenario.training, **numbers))  # raises, with its sentence
