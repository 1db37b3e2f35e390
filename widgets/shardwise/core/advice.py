"""The sentences of a decision: why a step fits or not, what the next one would buy and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwise.core.cluster import MAX_NODES
from shardwise.core.layout import Layout
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.report import PARTS
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import (
    STRATEGIES,
    context_degrees,
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
_LOGITS = "logits and loss"


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
            line += f" ({laid.micro_batches} accumulated keep the global batch)"
        lines.append(line)
    if training.activation_checkpointing != given.activation_checkpointing:
        lines.append("full activation checkpointing (about a third more compute)")
    if training.loss != given.loss:
        lines.append("a chunked loss")
    return tuple(lines)


def _with(changes: tuple[str, ...]) -> str:
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
    needs = f"{label}{_with(briefly)} needs {format_gib(report.device_bytes)} a GPU"
    room = f"of the card's {format_gib(report.usable_bytes)}"
    largest = f"mostly {PARTS[part]} ({format_gib(report.parts[part])})"
    if report.high_bytes <= report.usable_bytes:
        spare = report.usable_bytes - report.device_bytes
        return f"{needs} {room}, {largest}; {format_gib(spare)} to spare."
    if report.device_bytes <= report.usable_bytes:
        high = format_gib(report.high_bytes)
        return f"{needs} {room}, {largest}, and up to {high} with fragmentation: too tight."
    over = report.device_bytes - report.usable_bytes
    return f"{needs} {room}, {largest}: {format_gib(over)} too much."


def impossible(scenario: Scenario, strategy: str) -> str:
    """Why a strategy could not even be laid out."""
    cluster, model = scenario.cluster, scenario.model
    if strategy in ("pipeline", "3d"):
        if cluster.world_size == 1:
            return "There is one GPU: a pipeline needs two or more."
        if not pipeline_degrees(scenario):
            return (
                f"No pipeline degree divides both the {model.layers} layers and the "
                f"{cluster.world_size} GPUs."
            )
        return "The global batch is too small for as many micro-batches as stages."
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
    fix = f"{name} ({', '.join(degrees)})" if degrees else name
    if exhausted == "activations":
        end = f": {fix} is enough." if world > 1 else "."
        text = f"{_with(changes).strip().capitalize()} a replica fits on one GPU{end}"
        return f"What runs out is {_called(exhausted)}. {text}"
    if strategy == "ddp" and world == 1:
        return "It fits on the one GPU. If it is too slow, throughput ran out: more GPUs with DDP."
    if strategy == "ddp":
        slow = "It fits on one GPU. If it is too slow, throughput ran out"
        return f"{slow}: use {fix}{_with(changes)} and stop."
    return f"What runs out is {_called(exhausted)}. The simplest fix is {fix}{_with(changes)}."


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
    now, then = estimate(chosen).device_bytes, estimate(heavier).device_bytes
    change = f"free {format_gib(now - then)} a GPU" if then < now else "free nothing here"
    cost = f"{STRATEGIES[following].moves}{bubble(heavier)}"
    return f"Not needed: {name} would {change}. Its traffic: {cost}."


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


def nothing_fits(scenario: Scenario, exhausted: str) -> str:
    """The headline when no strategy fits."""
    cluster, training = scenario.cluster, scenario.training
    gpus = "the one GPU" if cluster.world_size == 1 else f"these {cluster.world_size} GPUs"
    if exhausted == "activations":
        return (
            f"Nothing fits on {gpus}: the activations of one sample of "
            f"{training.sequence_length:,} tokens are too large, even with full checkpointing."
        )
    return f"Nothing fits on {gpus}: the whole model is too large for this cluster."


def context_parallel(scenario: Scenario, fits: Callable[[Scenario], bool]) -> str:
    """The smallest context-parallel degree that would fit with FSDP2 over it; empty if none does.

    Context parallelism splits each sample's tokens, and states are sharded over data x context
    (torchtitan's `context_parallel_degree`).
    """
    leanest = replace(
        scenario.training, micro_batch=1, activation_checkpointing="full", checkpoint_every=0
    )
    for degree in context_degrees(scenario):
        for training in (scenario.training, leanest, replace(leanest, loss="chunked")):
            laid = scenario.with_layout(Layout(context_parallel=degree), training)
            if fits(laid):
                changes = _with(adjustments(scenario.training, laid))
                return (
                    f"Context parallelism would fit: layout.context_parallel {degree} splits a "
                    f"sample's tokens over {degree} GPUs, FSDP2 shards over all{changes}."
                )
    return ""


def more_nodes(scenario: Scenario, fitting: Callable[[Scenario], str]) -> str:
    """How many nodes would do, in doublings, and with which strategy; or what else could help."""
    least, most = 1, 1
    while scenario.cluster.nodes * 2 ** (most + 1) <= max(_MOST_NODES, 8 * scenario.cluster.nodes):
        most += 1
    if not fitting(_on_more_nodes(scenario, most)):
        return (
            "More such GPUs alone do not help; shorten the sequence or take cards with more memory."
        )
    while least < most:  # what fits on some nodes fits on more: bisect
        middle = (least + most) // 2
        least, most = (
            (least, middle) if fitting(_on_more_nodes(scenario, middle)) else (middle + 1, most)
        )
    grown = _on_more_nodes(scenario, least)
    name, cluster = STRATEGIES[fitting(grown)].name, grown.cluster
    return f"With {cluster.nodes} such nodes ({cluster.world_size} GPUs) {name} would fit."


def _on_more_nodes(scenario: Scenario, doublings: int) -> Scenario:
    """The question on twice, four times ... the nodes, without a fixed global batch."""
    engine = "deepspeed" if scenario.layout.engine == "deepspeed" else "fsdp2"
    nodes = min(scenario.cluster.nodes * 2**doublings, MAX_NODES)
    return Scenario.of(
        scenario.model,
        replace(scenario.cluster, nodes=nodes),
        replace(scenario.training, global_batch=None),
        Layout(engine=engine),
        scenario.model_source,
    )


def notes(asked: Scenario, chosen: Scenario, strategy: str) -> tuple[str, ...]:
    """When more GPUs would not help, and what of the given set-up has no effect."""
    lines = []
    layout, cluster = asked.layout, asked.cluster
    if layout.zero_stage and asked.shard == 1:
        lines.append(
            f"In the layout as given, ZeRO stage {layout.zero_stage} has no effect: the "
            "data-parallel degree that it shards over is 1."
        )
    wanted, replicas = asked.training.global_batch, chosen.data_parallel
    if strategy != "none" and wanted is not None and replicas > wanted:
        lines.append(
            f"With {replicas} replicas a step takes at least {replicas} samples, more than the "
            f"global batch of {wanted}: raise it, or use fewer replicas."
        )
    if strategy == "ddp":
        lines.append(
            "More GPUs raise throughput, not room: under DDP each still holds the whole model."
        )
    elif strategy in ("zero-1", "zero-2", "zero-3"):
        lines.append("More GPUs make each shard smaller; activations and logits stay as they are.")
    parts = estimate(chosen).parts
    if chosen.training.loss == "full" and max(parts, key=lambda part: parts[part]) == _LOGITS:
        lines.append(
            f"Logits and loss are the largest part ({format_gib(parts[_LOGITS])}): a chunked or "
            "fused loss (training.loss) shrinks it."
        )
    if strategy == "tensor" and not cluster.gpu.peer_to_peer:
        lines.append(f"{cluster.gpu.name} has no peer-to-peer copies: tensor parallelism is slow.")
    return tuple(lines)
