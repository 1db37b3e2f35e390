"""What else would help: more nodes, context parallelism, more sharding instead of recomputation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwise.core.adapters_outlook import frozen_base, with_adapters
from shardwise.core.advice import adjustments, with_changes
from shardwise.core.cluster import MAX_NODES
from shardwise.core.errors import ScenarioError
from shardwise.core.layout import Layout
from shardwise.core.memory import estimate
from shardwise.core.routing import with_skewed_routing
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import (
    STRATEGIES,
    context_degrees,
    experts_stay_whole,
    scenario_for,
)
from shardwise.core.units import format_gib

_MOST_NODES = 4096
_LOGITS = "logits and loss"
_SHARDING = ("zero-1", "zero-2", "zero-3")


def nothing_fits(scenario: Scenario, exhausted: str, host_bytes: float) -> str:
    """The headline when no strategy fits; `host_bytes` a node would make offloading fit (or 0)."""
    cluster, training = scenario.cluster, scenario.training
    gpus = "the one GPU" if cluster.world_size == 1 else f"these {cluster.world_size} GPUs"
    if host_bytes > cluster.host_memory_bytes:
        return (
            f"Nothing fits on {gpus}, but with {format_gib(host_bytes)} of host memory a node "
            f"instead of {format_gib(cluster.host_memory_bytes)} offloading the optimizer would."
        )
    if exhausted == "activations":
        return (
            f"Nothing fits on {gpus}: the activations of one sample of "
            f"{training.sequence_length:,} tokens are too large, even with full checkpointing."
        )
    return f"Nothing fits on {gpus}: none of the strategies makes the whole model fit."


def context_parallel(scenario: Scenario, fits: Callable[[Scenario], bool]) -> str:
    """The smallest context-parallel degree that would fit with FSDP2 over it; empty if none does.

    Context parallelism splits each sample's tokens, and states are sharded over data x context
    (torchtitan's `context_parallel_degree`).
    """
    shapes = [shape for shape, _ in scenario.model.block_groups]
    if not all(shape.attention and shape.causal for shape in shapes):
        return ""  # ring attention is for decoders' self-attention
    leanest = replace(
        scenario.training, micro_batch=1, activation_checkpointing="full", checkpoint_every=0
    )
    for degree in context_degrees(scenario):
        for training in (scenario.training, leanest, replace(leanest, loss="chunked")):
            try:
                laid = scenario.with_layout(Layout(context_parallel=degree), training)
            except ScenarioError:
                continue  # a quantized base that FSDP2 cannot cut
            if fits(laid):
                changes = with_changes(adjustments(scenario.training, laid))
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
    try:
        helps = fitting(_on_more_nodes(scenario, most))
    except ScenarioError:  # a quantized base that no engine cuts
        helps = ""
    if not helps:
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
    layout, cluster = asked.layout, asked.cluster
    lines = [with_adapters(asked)] if strategy == "none" else []
    lines += [_flat_shards(asked, chosen)]
    if layout.zero_stage and asked.shard == 1:
        lines.append(
            f"In the layout as given, ZeRO stage {layout.zero_stage} has no effect: the "
            "data-parallel degree that it shards over is 1."
        )
    positions, length = asked.model.max_positions, asked.training.sequence_length
    if 0 < positions < length:
        lines.append(f"The config allows {positions:,} positions, fewer than {length:,} tokens.")
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
    report = estimate(chosen)
    if report.host_bytes_per_node:
        lines.append(
            f"The host holds {format_gib(report.host_bytes_per_node)} a node, of "
            f"{format_gib(cluster.host_memory_bytes)} that each is taken to have."
        )
    parts = report.parts
    if chosen.training.loss == "full" and max(parts, key=lambda part: parts[part]) == _LOGITS:
        lines.append(
            f"Logits and loss are the largest part ({format_gib(parts[_LOGITS])}): a chunked or "
            "fused loss (training.loss) shrinks it."
        )
    if alternative := without_recomputing(asked, chosen, strategy):
        lines.append(alternative)
    lines += frozen_base(asked, chosen, strategy)
    lines += routing(asked)
    if strategy == "tensor" and not cluster.gpu.peer_to_peer:
        lines.append(f"{cluster.gpu.name} has no peer-to-peer copies: tensor parallelism is slow.")
    return tuple(line for line in lines if line)


def routing(asked: Scenario) -> tuple[str, ...]:
    """What a skewed router would do to the layout as given."""
    skewed = with_skewed_routing(asked)
    if skewed is None:
        return ()
    now, then = estimate(asked), estimate(skewed)
    before, after = asked.training.expert_imbalance, skewed.training.expert_imbalance
    return (
        f"In the layout as given, expert parallel {asked.layout.expert_parallel} with its fullest "
        f"rank at {before:g} times the even share of routed tokens needs "
        f"{format_gib(now.needed_bytes)} a GPU ({now.verdict}); at {after:g} times, "
        f"{format_gib(then.needed_bytes)} ({then.verdict}).",
    )


def _flat_shards(asked: Scenario, chosen: Scenario) -> str:
    """Why DeepSpeed shards what nobody asked it to."""
    taken = chosen.layout.engine == "deepspeed" and chosen.layout.zero_stage >= 2
    if not taken or asked.layout.engine == "deepspeed" or not experts_stay_whole(chosen):
        return ""
    return (
        "DeepSpeed cuts flat buffers; FSDP2 would split the experts' tensors on dimension 0, the "
        f"number of experts, and pad each shard on {chosen.cluster.world_size} GPUs to whole ones."
    )


def without_recomputing(asked: Scenario, chosen: Scenario, strategy: str) -> str:
    """The lightest sharding that fits as the training is given, where the chosen one recomputes.

    Checkpointing is one line but costs compute at every step; more sharding costs traffic.
    """
    recomputes = chosen.training.activation_checkpointing == "full"
    if not recomputes or asked.training.activation_checkpointing == "full":
        return ""
    start = _SHARDING.index(strategy) + 1 if strategy in _SHARDING else 0
    for heavier in _SHARDING[start:] if strategy in ("ddp", *_SHARDING) else ():
        laid = scenario_for(asked, heavier)
        if laid is not None and estimate(laid).verdict == "fits" and asked.cluster.world_size > 1:
            name, moves = STRATEGIES[heavier].name, STRATEGIES[heavier].moves
            return f"{name} fits without recomputing anything, if traffic is cheaper: {moves}."
    return ""
