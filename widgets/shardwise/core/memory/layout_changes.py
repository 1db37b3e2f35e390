"""Changes of the layout and the cluster: sharding, offload, one more axis, more GPUs.

Each gives the changed scenario, or None where there is nothing to change.
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.core.cluster import Cluster
from shardwise.core.layout import Layout
from shardwise.core.memory.proposal import Changed
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import layout_for


def _lay(scenario: Scenario, before: str, after: str, layout: Layout, **said: str) -> Changed:
    checked = Layout.from_dict(layout.to_dict())  # an engine may not know what was changed
    return Changed(scenario.with_layout(checked), before, after, **said)


def _degrees(layout: Layout, **degrees: int) -> Layout:
    """A layout with other degrees; what follows from the world is filled in anew."""
    return replace(layout, data_parallel=None, shard=None, **degrees)  # type: ignore[arg-type]


def bucket_views(scenario: Scenario) -> Changed | None:
    """Gradients that live in DDP's buckets."""
    layout = scenario.layout
    if layout.engine not in ("ddp", "zero-redundancy") or layout.gradient_as_bucket_view:
        return None
    return _lay(scenario, "False", "True", replace(layout, gradient_as_bucket_view=True))


def _named(layout: Layout) -> str:
    return f"{layout.engine}, stage {layout.zero_stage}"


def shard_optimizer(scenario: Scenario) -> Changed | None:
    """ZeRO-1 in the engine's own family; pipelines and Megatron-LM keep their degrees."""
    layout = scenario.layout
    if layout.zero_stage or scenario.data_parallel == 1:
        return None
    if layout.engine in ("deepspeed", "megatron", "nanotron"):
        sharded = replace(layout, zero_stage=1, shard=None)
    else:
        family = layout_for(scenario, "zero-1")
        sharded = replace(layout, engine=family.engine, zero_stage=1, shard=None)
        if family.engine == "deepspeed":
            sharded = replace(sharded, gradient_as_bucket_view=False)
    return _lay(scenario, _named(layout), _named(sharded), sharded)


def full_sharding(scenario: Scenario) -> Changed | None:
    """ZeRO-3 in DeepSpeed, FSDP2 with resharding elsewhere; also full instead of hybrid shards."""
    layout = scenario.layout
    group = scenario.data_parallel * layout.context_parallel
    if group == 1 or (layout.zero_stage == 3 and scenario.shard == group):
        return None
    engine = "deepspeed" if layout.engine == "deepspeed" else "fsdp2"
    sharded = replace(
        layout, engine=engine, zero_stage=3, shard=None, gradient_as_bucket_view=False
    )
    if layout.zero_stage == 3:
        sharded = replace(layout, shard=None)
        before, after = f"{scenario.shard} ranks", f"{group} ranks"
        return _lay(scenario, before, after, sharded, label="shards over all ranks")
    label = "DeepSpeed stage 3" if engine == "deepspeed" else ""
    return _lay(scenario, _named(layout), _named(sharded), sharded, label=label)


def optimizer_offload(scenario: Scenario) -> Changed | None:
    """Optimizer state in host memory."""
    layout = scenario.layout
    if layout.offload_optimizer != "none":
        return None
    return _lay(scenario, "none", "cpu", replace(layout, offload_optimizer="cpu"))


def twice_tensor(scenario: Scenario) -> Changed | None:
    """Twice the tensor axis, sequence parallel with it, inside a node; its cost by the link."""
    degree = 2 * scenario.layout.tensor_parallel
    if scenario.cluster.gpus_per_node % degree:
        return None
    layout = _degrees(scenario.layout, tensor_parallel=degree)
    return _lay(
        scenario, str(degree // 2), str(degree), replace(layout, sequence_parallel=True),
        label=f"tensor parallel {degree}", cost=_tensor_cost(scenario.cluster, degree),
    )  # fmt: skip


def _tensor_cost(cluster: Cluster, degree: int) -> str:
    """What the exchange in every block means on the node's link; empty where all have NVLink."""
    link = cluster.intra_node
    slow = "Activations are exchanged twice a block in forward and in backward, and"
    if link.name.startswith("PCIe"):
        return f"{slow} this node has no NVLink, only {link.name}: slow. Half as many replicas."
    if link.key.startswith("nvlink-bridge") and degree > 2:
        return f"{slow} NVLink bridges join pairs only, the rest is PCIe: slow. Fewer replicas."
    return ""


def sequence_parallel(scenario: Scenario) -> Changed | None:
    """Norms and dropout split over the tensor axis."""
    layout = scenario.layout
    if layout.tensor_parallel == 1 or layout.sequence_parallel:
        return None
    return _lay(scenario, "False", "True", replace(layout, sequence_parallel=True))


def twice_context(scenario: Scenario) -> Changed | None:
    """Twice the context axis."""
    degree = 2 * scenario.layout.context_parallel
    if scenario.layout.engine in ("ddp", "zero-redundancy") or not scenario.model.heads:
        return None
    layout = _degrees(scenario.layout, context_parallel=degree)
    return _lay(scenario, str(degree // 2), str(degree), layout, label=f"context parallel {degree}")


def twice_expert(scenario: Scenario) -> Changed | None:
    """Twice the expert axis."""
    degree = 2 * scenario.layout.expert_parallel
    layout = _degrees(scenario.layout, expert_parallel=degree)
    return _lay(scenario, str(degree // 2), str(degree), layout, label=f"expert parallel {degree}")


def twice_pipeline(scenario: Scenario) -> Changed | None:
    """Twice the stages."""
    layout = scenario.layout
    stages = 2 * layout.pipeline_parallel
    if layout.engine in ("ddp", "zero-redundancy") or layout.virtual_stages > 1:
        return None
    longer = replace(_degrees(layout, pipeline_parallel=stages), layers_per_stage=None)
    changed = scenario.with_layout(longer)
    idle = (stages - 1) / (changed.micro_batches + stages - 1)
    cost = f"A bubble: {idle:.0%} of each step idle with {changed.micro_batches} micro-batches "
    cost += "(Narayanan et al. 2021, section 2.2)."
    label = f"pipeline parallel {stages}"
    return Changed(changed, str(stages // 2), str(stages), label, cost)


def twice_nodes(scenario: Scenario) -> Changed | None:
    """Twice the GPUs: more nodes, or a fuller node where one GPU of it was used."""
    if not scenario.layout.zero_stage:
        return None
    cluster, group = scenario.cluster, scenario.data_parallel * scenario.layout.context_parallel
    fills = cluster.nodes == 1 and 2 * cluster.gpus_per_node <= cluster.gpu.gpus_per_node
    name = "gpus_per_node" if fills else "nodes"
    now: int = getattr(cluster, name)
    bigger: Cluster = replace(cluster, **{name: 2 * now})  # type: ignore[arg-type]
    shard = None if group == scenario.shard else scenario.shard
    layout = replace(scenario.layout, data_parallel=None, shard=shard)
    changed = Scenario.of(scenario.model, bigger, scenario.training, layout, scenario.model_source)
    cost = "Twice the GPUs to pay for, in the same node." if fills else ""
    return Changed(changed, str(now), str(2 * now), cost=cost, field=f"cluster.{name}")
