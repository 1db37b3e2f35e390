"""One strategy tried on a scenario: its smallest degree, its batch and checkpointing, its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.core import advice
from shardwise.core.errors import ScenarioError
from shardwise.core.layout import Layout
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.reserve import device_bytes
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import (
    STRATEGIES,
    layout_for,
    lighter_ends,
    split_degrees,
    tensor_degrees,
)
from shardwise.core.training import Training


@dataclass(frozen=True)
class Attempt:
    """One strategy tried: the scenario laid out so, what it needs, whether it fits and why."""

    strategy: str
    scenario: Scenario
    needed_bytes: float
    available_bytes: float
    fits: bool
    adjustments: tuple[str, ...]
    why: str


def attempt_of(scenario: Scenario, strategy: str) -> Attempt | None:
    """The strategy at its smallest degree that fits, or the one that comes nearest."""
    if strategy == "3d":
        return None  # the pipeline attempt has tried tensor parallelism along
    nearest: MemoryReport | None = None
    degrees = tuple(_degrees(scenario, strategy))
    possible = tuple(degree for degree in degrees if not _hopeless(scenario, *degree))
    for tensor, pipeline in possible or degrees[-1:]:
        found, reports = _tried(scenario, layout_for(scenario, strategy, tensor, pipeline))
        if found is None and _ends_decide(reports):
            layers = lighter_ends(scenario.model.layers, pipeline)
            split = layout_for(scenario, strategy, tensor, pipeline, layers)
            found, others = _tried(scenario, split)
            reports += others
        if found is not None:
            return judged(scenario, strategy, found)
        for report in reports:
            if nearest is None or report.needed_bytes < nearest.needed_bytes:
                nearest = report
    return None if nearest is None else judged(scenario, strategy, nearest)


def _hopeless(scenario: Scenario, tensor: int, pipeline: int) -> bool:
    """Whether a mean stage's gathered weights and whole gradients alone are more than the card has.

    FSDP2 keeps both through a pipeline's step (`whole_bytes`), the weights in a byte or more.
    """
    if pipeline == 1 or not scenario.training.trainable.everything:
        return False
    elements = scenario.model.parameters / (tensor * pipeline)
    each = 1 + scenario.training.precision.reduce_bytes
    return elements * each > scenario.cluster.gpu.usable_bytes


def _tried(scenario: Scenario, layout: Layout) -> tuple[MemoryReport | None, list[MemoryReport]]:
    """The first training set-up that fits the layout, and the reports of those that do not."""
    variants = tuple(_variants(scenario.training))
    reports: list[MemoryReport] = []
    for training in variants:
        try:
            report = estimate(scenario.with_layout(layout, training))
        except ScenarioError:
            continue
        if fits(report) and not advice.refusal(report):
            return report, reports
        reports.append(report)
        if training != scenario.training:
            continue
        # Judged by the leanest: full checkpointing also frees autocast's 16-bit copies, and a large
        # micro-batch may be the whole step's, with no gradients of earlier ones to keep.
        lean = [
            estimate(report.scenario.with_training(replace(variants[-1], micro_batch=size)))
            for size in (training.micro_batch, *advice.smaller_batches(training))
        ]
        if not any(map(adjustable, lean)):
            break
        if layout.pipeline_parallel > 1 and not fits(lean[-1]):
            # Stages accumulate gradients at every size: the smallest micro-batch needs least.
            reports.append(lean[-1])
            break
    return None, reports


def _ends_decide(reports: list[MemoryReport]) -> bool:
    """Whether a pipeline is too large where the embedding or the head is, and nowhere else.

    Taking a layer from an end helps only where every stage between has room.
    """
    if not reports or len(reports[-1].stages) < 3:
        return False
    report = reports[-1]
    groups, usable = report.scenario.layout.process_groups, report.usable_bytes
    return not fits(report) and all(
        device_bytes(stage.peak_bytes, groups).high <= usable for stage in report.stages[1:-1]
    )


def judged(scenario: Scenario, strategy: str, report: MemoryReport) -> Attempt:
    """The verdict on one layout of a strategy, with its reason."""
    adjustments = advice.adjustments(scenario.training, report.scenario)
    refusal = advice.refusal(report) if fits(report) else ""
    why = refusal or advice.why(report, STRATEGIES[strategy].name, adjustments)
    return Attempt(
        strategy,
        report.scenario,
        report.needed_bytes,
        report.usable_bytes,
        fits(report) and not refusal,
        adjustments,
        why,
    )


def _degrees(scenario: Scenario, strategy: str) -> Iterator[tuple[int, int]]:
    if strategy in ("tensor", "tensor-offload"):
        yield from ((degree, 1) for degree in tensor_degrees(scenario))
    elif strategy in ("pipeline", "pipeline-offload"):
        yield from split_degrees(scenario)
    elif strategy == "ddp" or scenario.cluster.world_size > 1 or strategy == "offload":
        yield 1, 1


def _variants(training: Training) -> Iterator[Training]:
    """The training set-up as given, then with smaller activations, simplest change first."""
    smaller = advice.smaller_batches(training)
    for micro_batch in (training.micro_batch, *smaller):
        yield replace(training, micro_batch=micro_batch)
    if training.activation_checkpointing != "full":
        full = replace(training, activation_checkpointing="full", checkpoint_every=0)
        for micro_batch in (training.micro_batch, *smaller):
            yield replace(full, micro_batch=micro_batch)


def fits(report: MemoryReport) -> bool:
    """Whether the upper end of the band is within what the card gives."""
    return report.needed_high_bytes <= report.usable_bytes


def adjustable(report: MemoryReport) -> bool:
    """Whether smaller activations could make room at all: everything else fits by itself."""
    without = max(
        sum(parts.values()) - parts["activations"] - parts["logits and loss"]
        for stage in report.stages
        for parts in stage.phases.values()
    )
    return device_bytes(without, report.scenario.layout.process_groups).high <= report.usable_bytes
