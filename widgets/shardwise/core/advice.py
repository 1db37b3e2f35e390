"""The sentences of a decision: why a step fits or not, what the next one would buy and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwise.core.errors import ScenarioError
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.report import PARTS
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import (
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
_MOST_NODES = 4096


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


def batch_line(training: Training, micro_batch: int) -> str:
    """The adjustment that a smaller micro-batch is, in words."""
    kept = "; accumulate to keep the global batch" if training.global_batch else ""
    return f"micro-batch {training.micro_batch} -> {micro_batch}{kept}"


def refusal(laid: Scenario, report: MemoryReport) -> str:
    """Why a layout is out of the question whatever the card holds; empty when it isn't."""
    wanted, replicas = laid.training.global_batch, laid.data_parallel
    if wanted is not None and replicas * laid.training.micro_batch > wanted:
        return (
            f"{replicas} replicas x micro-batch {laid.training.micro_batch} need a global batch of "
            f"{replicas * laid.training.micro_batch} samples; it is {wanted}."
        )
    host = laid.cluster.host_memory_bytes
    if report.host_bytes_per_node > host:
        return (
            f"A node's host memory of {format_gib(host)} cannot hold the offloaded "
            f"{format_gib(report.host_bytes_per_node)}."
        )
    return ""


def why(laid: Scenario, report: MemoryReport, name: str, adjustments: tuple[str, ...]) -> str:
    """One sentence: what is needed, what is there, and which part is the largest."""
    part = max(report.parts, key=lambda key: report.parts[key])
    with_changes = f" with {' and '.join(adjustments)}" if adjustments else ""
    needs = f"{name}{with_changes} needs {format_gib(report.device_bytes)} a GPU"
    largest = f"mostly {PARTS[part]} ({format_gib(report.parts[part])})"
    room = f"of the card's {format_gib(report.usable_bytes)}"
    if report.verdict in ("fits", "uncertain") and report.high_bytes <= report.usable_bytes:
        spare = report.usable_bytes - report.device_bytes
        return f"{needs} {room}, {largest}; {format_gib(spare)} to spare."
    if report.device_bytes <= report.usable_bytes:
        return (
            f"{needs} {room}, up to {format_gib(report.high_bytes)} with fragmentation: too tight."
        )
    over = report.device_bytes - report.usable_bytes
    return f"{needs} {room}, {largest}: {format_gib(over)} too much."


def impossible(scenario: Scenario, strategy: str) -> str:
    """Why a strategy could not even be laid out."""
    cluster, model = scenario.cluster, scenario.model
    if cluster.world_size == 1:
        return "There is one GPU: sharding over a data-parallel degree of 1 saves nothing."
    if strategy == "tensor" and not tensor_degrees(scenario):
        return (
            f"No tensor-parallel degree divides both the {cluster.gpus_per_node} GPUs of a node "
            f"and the {model.heads} heads."
        )
    if strategy in ("pipeline", "3d") and not pipeline_degrees(scenario):
        return (
            f"No pipeline degree divides both the {model.layers} layers and the "
            f"{cluster.world_size} GPUs."
        )
    return "The global batch is too small for as many micro-batches as stages."


def headline(chosen: Scenario, strategy: str, exhausted: str, adjustments: tuple[str, ...]) -> str:
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
    axes = f" ({', '.join(degrees)})" if degrees else ""
    if strategy == "ddp" and world == 1:
        text = "It fits on the one GPU. If it is too slow, throughput ran out: more GPUs with DDP."
    elif strategy == "ddp" and exhausted == "throughput":
        text = f"It fits on one GPU. If it is too slow, throughput ran out: use DDP{axes} and stop."
    else:
        text = f"What runs out is {_called(exhausted)}. The simplest fix is {name}{axes}."
    return f"{text} First: {'; '.join(adjustments)}." if adjustments else text


def _called(exhausted: str) -> str:
    return {
        "activations": "room for activations",
        "optimizer state": "room for the optimizer state",
        "parameters": "room for parameters and gradients",
        "single layer": "room for a single layer",
        "whole model": "room for the whole model",
    }[exhausted]


def next_step(asked: Scenario, chosen: Scenario, strategy: str) -> str:
    """What the next heavier step would buy and cost; why it isn't needed."""
    following = _NEXT.get(strategy)
    if following is None:
        return "There is no heavier step; a smaller model or more GPUs would be next."
    heavier = _laid(asked, chosen, following)
    name = STRATEGIES[following].name
    if heavier is None:
        return f"Not needed: the next step, {name}, cannot be laid out on this cluster."
    now, then = estimate(chosen).device_bytes, estimate(heavier).device_bytes
    change = (
        f"free {format_gib(now - then)} a GPU" if then < now else "free nothing in this scenario"
    )
    return f"Not needed: {name} would {change}; it costs {STRATEGIES[following].moves}{bubble(heavier)}."


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


def nothing_fits(scenario: Scenario) -> str:
    """The headline when no strategy fits."""
    cluster = scenario.cluster
    gpus = "the one GPU" if cluster.world_size == 1 else f"these {cluster.world_size} GPUs"
    return f"Nothing fits on {gpus}: the whole model is too large for this cluster."


def more_nodes(scenario: Scenario, fits: Callable[[Scenario], bool]) -> str:
    """How many nodes would do with ZeRO-3, doubling; and what else could help."""
    nodes = scenario.cluster.nodes * 2
    while nodes <= _MOST_NODES:
        larger = replace(scenario.cluster, nodes=nodes)
        try:
            grown = Scenario.of(
                scenario.model,
                larger,
                replace(scenario.training, global_batch=None),
                replace(scenario.layout, data_parallel=None, shard=None),
                scenario.model_source,
            )
        except ScenarioError:
            return "More GPUs alone do not help: the layout cannot be spread over them."
        if fits(grown):
            return f"With {nodes} such nodes ({larger.world_size} GPUs) ZeRO-3 / FSDP would fit."
        nodes *= 2
    return "More such GPUs alone do not help; shorten the sequence or take cards with more memory."


def notes(scenario: Scenario, strategy: str) -> tuple[str, ...]:
    """When more GPUs would not help, and what of the given layout has no effect."""
    lines = []
    layout, cluster = scenario.layout, scenario.cluster
    if layout.zero_stage and scenario.shard == 1 and layout.engine != "ddp":
        lines.append(
            f"In the layout as given, ZeRO stage {layout.zero_stage} has no effect: the "
            "data-parallel degree that it shards over is 1."
        )
    if strategy == "ddp":
        lines.append(
            "More GPUs raise throughput, not room: under DDP each still holds the whole model."
        )
    elif strategy in ("zero-1", "zero-2", "zero-3"):
        lines.append("More GPUs make each shard smaller; activations and logits stay as they are.")
    if strategy == "tensor" and not cluster.gpu.peer_to_peer:
        lines.append(f"{cluster.gpu.name} has no peer-to-peer copies: tensor parallelism is slow.")
    return tuple(lines)
