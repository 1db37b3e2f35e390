"""The sentences of a decision: why a step fits or not, what the next one would buy and cost."""

from __future__ import annotations

from dataclasses import replace

from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.report import PARTS
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import (
    SPLITS,
    STRATEGIES,
    pipeline_degrees,
    scenario_for,
    split_degrees,
    tensor_degrees,
)
from shardwise.core.training import Training
from shardwise.core.units import format_gib

_NEXT = {
    "ddp": "zero-1",
    "zero-1": "zero-2",
    "zero-2": "zero-3",
    "zero-3": "offload",
    "offload": "tensor",
    "tensor": "pipeline",
}


def smaller_batches(training: Training) -> tuple[int, ...]:
    """Micro-batches below the given one, each half of the last, down to one sample.

    >>> smaller_batches(Training(micro_batch=12))
    (6, 3, 1)
    """
    sizes, size = [], training.micro_batch
    while size > 1:
        size //= 2
        sizes.append(size)
    return tuple(sizes)


def adjustments(given: Training, laid: Scenario) -> tuple[str, ...]:
    """What was changed of the training set-up to make room, in words."""
    training, lines = laid.training, []
    if training.micro_batch != given.micro_batch:
        line = f"micro-batch {given.micro_batch} -> {training.micro_batch}"
        if given.global_batch is not None and laid.micro_batches > 1:
            line += f" ({laid.micro_batches} accumulated: {laid.global_batch} samples a step)"
        lines.append(line)
    if training.activation_checkpointing != given.activation_checkpointing:
        lines.append("full activation checkpointing (about a third more compute)")
    if training.loss != given.loss:
        lines.append("a chunked loss")
    return tuple(lines)


def with_changes(changes: tuple[str, ...]) -> str:
    """ " with this and that", or nothing."""
    return f" with {' and '.join(changes)}" if changes else ""


def refusal(report: MemoryReport) -> str:
    """Why a layout is out of the question whatever the card holds; empty when it isn't.

    With one sample a micro-batch nothing smaller is left to try: `notes` then says what becomes of
    the global batch, since that is no question of memory.
    """
    laid = report.scenario
    wanted, micro_batch = laid.training.global_batch, laid.training.micro_batch
    least = laid.data_parallel * micro_batch
    if wanted is not None and micro_batch > 1 and least > wanted:
        return (
            f"With {laid.data_parallel} replicas and micro-batch {micro_batch} a step takes at "
            f"least {least} samples, more than the global batch of {wanted}."
        )
    host = laid.cluster.host_memory_bytes
    if report.host_bytes_per_node > host:
        return (
            f"Offload needs {format_gib(report.host_bytes_per_node)} of host memory in each node, "
            f"which has {format_gib(host)}."
        )
    return ""


def why(report: MemoryReport, name: str, changes: tuple[str, ...]) -> str:
    """One sentence: what is needed, what is there, and which part is the largest."""
    part = max(report.parts, key=lambda key: report.parts[key])
    layout = report.scenario.layout
    degrees = [
        f"{axis} {degree}"
        for axis, degree in (("TP", layout.tensor_parallel), ("PP", layout.pipeline_parallel))
        if degree > 1
    ]
    label = f"{name[0].upper()}{name[1:]}" + (f" ({', '.join(degrees)})" if degrees else "")
    briefly = tuple(change.partition(" (")[0] for change in changes)
    needs = f"{label}{with_changes(briefly)} needs {format_gib(report.needed_bytes)} a GPU"
    room = f"of the card's {format_gib(report.usable_bytes)}"
    largest = f"mostly {PARTS[part]} ({format_gib(report.parts[part])})"
    if report.needed_high_bytes <= report.usable_bytes:
        spare = report.usable_bytes - report.needed_bytes
        guess = f"; uncertain, as {report.doubt}" if report.verdict == "uncertain" else ""
        return f"{needs} {room}, {largest}; {format_gib(spare)} to spare{guess}."
    if report.needed_bytes <= report.usable_bytes:
        high = format_gib(report.needed_high_bytes)
        return f"{needs} {room}, {largest}, and up to {high} with fragmentation: too tight."
    over = report.needed_bytes - report.usable_bytes
    return f"{needs} {room}, {largest}: {format_gib(over)} too much."


def impossible(scenario: Scenario, strategy: str) -> str:
    """Why a strategy could not even be laid out."""
    cluster, model = scenario.cluster, scenario.model
    if strategy in SPLITS:
        if cluster.world_size == 1:
            return "There is one GPU: a pipeline needs two or more."
        if not pipeline_degrees(scenario):
            return (
                f"No pipeline degree up to the {model.layers} layers divides the "
                f"{cluster.world_size} GPUs."
            )
        return "The global batch is too small for as many micro-batches as stages."
    if cluster.world_size > 1 and scenario.training.trainable.quantized:
        base = scenario.training.trainable.base
        return f"Neither FSDP nor ZeRO-3 can cut an {base} base; NF4 under FSDP2 can be cut."
    return "There is one GPU: sharding over a data-parallel degree of 1 saves nothing."


def headline(chosen: Scenario, strategy: str, exhausted: str, changes: tuple[str, ...]) -> str:
    """The decision in one or two sentences."""
    name, world = STRATEGIES[strategy].name, chosen.cluster.world_size
    layout = chosen.layout
    degrees = [
        f"{label} {degree}"
        for label, degree in (
            ("data parallel", chosen.data_parallel),
            ("tensor parallel", layout.tensor_parallel),
            ("pipeline parallel", layout.pipeline_parallel),
        )
        if degree > 1
    ]
    if layout.layers_per_stage is not None:
        degrees.append(f"{', '.join(map(str, layout.layers_per_stage))} layers a stage")
    fix = f"{name} ({', '.join(degrees)})" if degrees else name
    if exhausted == "activations":
        end = f": {fix} is enough." if world > 1 else "."
        text = f"{with_changes(changes).strip().capitalize()} a replica fits on one GPU{end}"
        return f"What runs out is {_called(exhausted)}. {text}"
    if strategy == "ddp" and world == 1:
        return "It fits on the one GPU. If it is too slow, throughput ran out: more GPUs with DDP."
    if strategy == "ddp":
        slow = "It fits on one GPU. If it is too slow, throughput ran out"
        return f"{slow}: use {fix}{with_changes(changes)} and stop."
    called = _called(exhausted)
    if exhausted == "parameters" and not chosen.training.trainable.everything:
        called = "room for the frozen parameters"
    return f"What runs out is {called}. The simplest fix is {fix}{with_changes(changes)}."


def _called(exhausted: str) -> str:
    return {
        "activations": "room for activations",
        "optimizer state": "room for the optimizer state",
        "parameters": "room for parameters and gradients",
        "single layer": "room for a single layer and its activations",
        "whole model": "room for the whole model",
    }[exhausted]


def next_step(asked: Scenario, chosen: Scenario, strategy: str) -> str:
    """What the next heavier step would buy and cost; why it isn't needed."""
    alone = asked.cluster.world_size == 1 and strategy == "ddp"
    following = "offload" if alone else _NEXT.get(strategy)
    if following is None:
        return "There is no heavier step; a smaller model or more GPUs would be next."
    heavier = _laid(asked, chosen, following)
    name = STRATEGIES[following].name
    if heavier is None:
        return f"Not needed: the next step, {name}, cannot be laid out on this cluster."
    now, then = estimate(chosen).needed_bytes, estimate(heavier).needed_bytes
    change = "free nothing here"
    if then < now:
        change = f"free {format_gib(now - then)} more of what a GPU must have"
    cost = f"{STRATEGIES[following].moves}{bubble(heavier)}"
    before = STRATEGIES[strategy].name
    return f"Not needed: after {before}, {name} would {change}. Its traffic: {cost}."


def _laid(asked: Scenario, chosen: Scenario, strategy: str) -> Scenario | None:
    if strategy == "tensor":
        degrees = tuple((degree, 1) for degree in tensor_degrees(asked))
    elif strategy == "pipeline":
        degrees = tuple(split_degrees(asked))
    else:
        degrees = ((1, 1),)
    if not degrees:
        return None
    with_training = replace(asked, training=chosen.training)
    return scenario_for(with_training, strategy, *degrees[0])


def bubble(laid: Scenario) -> str:
    """The idle share of a pipeline, (p - 1)/(m + p - 1) (Narayanan et al. 2021, section 2.2)."""
    stages, micro_batches = laid.layout.pipeline_parallel, laid.micro_batches
    if stages == 1:
        return ""
    idle = (stages - 1) / (micro_batches + stages - 1)
    return f" of {idle:.0%} with {micro_batches} micro-batches"
