"""The ladder of strategies, lightest first, and the layout that each means for a scenario."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.core.errors import ScenarioError
from shardwise.core.layout import Layout
from shardwise.core.scenario import Scenario
from shardwise.core.scenario_checks import divides_heads


@dataclass(frozen=True)
class Strategy:
    """One rung of the ladder: `moves` is what it costs on the wire."""

    key: str
    name: str
    moves: str


STRATEGIES: Mapping[str, Strategy] = {
    s.key: s
    for s in (
        Strategy(
            "ddp", "DDP",
            "one all-reduce of the gradients a step",
        ),
        Strategy(
            "zero-1", "ZeRO-1",
            "as DDP, since reduce-scatter and all-gather add up to one all-reduce",
        ),
        Strategy(
            "zero-2", "ZeRO-2",
            "as DDP, since reduce-scatter and all-gather add up to one all-reduce",
        ),
        Strategy(
            "zero-3", "ZeRO-3 / FSDP",
            "1.5 times DDP, since parameters are gathered in forward and again in backward",
        ),
        Strategy(
            "offload", "ZeRO-3 + optimizer offload",
            "as ZeRO-3; gradients and weights cross PCIe each step, the CPU runs the optimizer",
        ),
        Strategy(
            "tensor", "tensor parallel + FSDP",
            "all-reduces of activations in every block, so it stays inside a node",
        ),
        Strategy(
            "pipeline", "pipeline parallel",
            "activations between neighboring stages only, and an idle bubble",
        ),
        Strategy(
            "3d", "3D: pipeline x data x tensor",
            "all of the above, each on its own axis",
        ),
        Strategy(
            "tensor-offload", "tensor parallel + FSDP + optimizer offload",
            "as tensor parallelism; gradients and weights cross PCIe each step, the CPU runs the "
            "optimizer",
        ),
        Strategy(
            "pipeline-offload", "pipeline parallel + optimizer offload",
            "as the pipeline; gradients and weights cross PCIe each step, the CPU runs the "
            "optimizer",
        ),
    )
}  # fmt: skip


_CODE: Mapping[tuple[str, int], str] = {
    ("ddp", 0): "torch DistributedDataParallel",
    ("zero-redundancy", 1): "torch ZeroRedundancyOptimizer over DistributedDataParallel",
    ("fsdp1", 2): "torch FullyShardedDataParallel with SHARD_GRAD_OP",
    ("fsdp1", 3): "torch FullyShardedDataParallel",
    ("fsdp2", 2): "torch FSDP2: fully_shard(..., reshard_after_forward=False)",
    ("fsdp2", 3): "torch FSDP2: fully_shard(...)",
    ("megatron", 0): "Megatron-LM",
    ("megatron", 1): "Megatron-LM with the distributed optimizer",
    ("nanotron", 0): "nanotron",
    ("nanotron", 1): "nanotron with zero_stage 1",
}


def code_of(layout: Layout) -> str:
    """What to use for a layout, by the names that its code has.

    >>> code_of(Layout(engine="deepspeed", zero_stage=1))
    'DeepSpeed stage 1'
    """
    code = _CODE.get((layout.engine, layout.zero_stage), f"DeepSpeed stage {layout.zero_stage}")
    if layout.offload_optimizer != "none":
        with_offload = "offload_optimizer" if layout.engine == "deepspeed" else "CPUOffloadPolicy"
        code += f", with {with_offload}"
    if layout.tensor_parallel > 1:
        code += ", over parallelize_module inside a node"
    if layout.pipeline_parallel > 1:
        code += ", in stages of torch.distributed.pipelining"
    return code


SPLITS = ("tensor", "pipeline", "3d", "tensor-offload", "pipeline-offload")
"""The strategies that split the model itself, beside or instead of sharding it."""


def layout_for(
    scenario: Scenario,
    strategy: str,
    tensor: int = 1,
    pipeline: int = 1,
    layers_per_stage: tuple[int, ...] | None = None,
) -> Layout:
    """The layout of one strategy on this scenario's cluster, in its engine's family.

    A scenario whose engine is DeepSpeed climbs DeepSpeed's stages; any other climbs torch's own:
    DDP, ZeroRedundancyOptimizer, FSDP2 without and with resharding. ZeroRedundancyOptimizer keeps
    no master weights, so a precision that has them takes DeepSpeed's stage 1. Pipelines run FSDP2
    without resharding, as torchtitan does (`fsdp_reshard_after_forward = "default"`). Where FSDP2
    would leave whole experts on the fullest ranks, DeepSpeed's flat shards take its place.
    """
    if strategy in SPLITS:
        return Layout(
            engine="fsdp2",
            zero_stage=3 if pipeline == 1 else 2,
            tensor_parallel=tensor,
            sequence_parallel=tensor > 1,
            pipeline_parallel=pipeline,
            layers_per_stage=layers_per_stage,
            offload_optimizer="cpu" if strategy.endswith("offload") else "none",
            float8_all_gather=scenario.layout.float8_all_gather,
        )
    stage = {"ddp": 0, "zero-1": 1, "zero-2": 2, "zero-3": 3, "offload": 3}[strategy]
    offload = "cpu" if strategy == "offload" else "none"
    has_masters = scenario.training.precision.master_bytes > 0
    whole = stage < 3 or not scenario.training.trainable.quantized  # ZeRO-3 cuts no 4-bit base
    flat = (strategy == "zero-1" and has_masters) or (stage >= 2 and experts_stay_whole(scenario))
    if whole and (scenario.layout.engine == "deepspeed" or flat):
        return Layout(
            engine="deepspeed",
            zero_stage=stage,
            offload_optimizer=offload,
            reduce_bucket_elements=scenario.layout.reduce_bucket_elements,
            overlap_comm=scenario.layout.overlap_comm,
        )
    engine = {0: "ddp", 1: "zero-redundancy", 2: "fsdp2", 3: "fsdp2"}[stage]
    view = scenario.layout.gradient_as_bucket_view
    return Layout(
        engine=engine,
        zero_stage=stage,
        offload_optimizer=offload,
        gradient_as_bucket_view=view and engine in ("ddp", "zero-redundancy"),
        float8_all_gather=scenario.layout.float8_all_gather and engine == "fsdp2",
    )


def experts_stay_whole(scenario: Scenario) -> bool:
    """Whether FSDP2 over all GPUs pads the experts' tensors to a whole expert a rank.

    It splits dimension 0, the number of experts in fused tensors, rounded up
    (`torch/distributed/fsdp/_fully_shard/_fsdp_param.py`): past that number more ranks free nothing
    and gather more. 8 experts over 32 ranks: shards of a 1/8, gathered layers four times too large.
    """
    experts = max((shape.experts for shape, _ in scenario.model.block_groups), default=0)
    return 0 < experts < scenario.cluster.world_size


def scenario_for(
    scenario: Scenario, strategy: str, tensor: int = 1, pipeline: int = 1
) -> Scenario | None:
    """The scenario under one strategy; None where it cannot be laid out so."""
    try:
        return scenario.with_layout(layout_for(scenario, strategy, tensor, pipeline))
    except ScenarioError:
        return None


def tensor_degrees(scenario: Scenario) -> tuple[int, ...]:
    """Tensor-parallel degrees that divide a node's GPUs and the model's heads, smallest first."""
    in_node = scenario.cluster.gpus_per_node
    return tuple(
        degree
        for degree in range(2, in_node + 1)
        if in_node % degree == 0 and divides_heads(scenario.model, degree)
    )


def pipeline_degrees(scenario: Scenario) -> tuple[int, ...]:
    """Pipeline degrees that divide the GPUs: those that divide the layers too, then the others."""
    world, layers = scenario.cluster.world_size, scenario.model.layers
    possible = (degree for degree in range(2, min(world, layers) + 1) if world % degree == 0)
    return tuple(sorted(possible, key=lambda degree: (layers % degree > 0, degree)))


def lighter_ends(layers: int, stages: int) -> tuple[int, ...]:
    """Layers a stage where embedding and head count as a layer each, as torchtitan splits models.

    torchtitan/distributed/pipeline_parallel.py, `generate_llm_fqn_per_model_part` with
    `input_weight` and `output_weight` 1; the first stages take the remainder.

    >>> lighter_ends(61, 8)
    (7, 8, 8, 8, 8, 8, 8, 6)
    """
    each, rest = divmod(layers + 2, stages)
    counts = [each + (1 if index < rest else 0) for index in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def context_degrees(scenario: Scenario) -> tuple[int, ...]:
    """Context-parallel degrees that divide the GPUs and the sequence, smallest first."""
    common = math.gcd(scenario.cluster.world_size, scenario.training.sequence_length)
    low = [degree for degree in range(1, math.isqrt(common) + 1) if common % degree == 0]
    return tuple(sorted({*low, *(common // degree for degree in low)} - {1}))


def split_degrees(scenario: Scenario) -> Iterator[tuple[int, int]]:
    """(tensor, pipeline) degrees with a pipeline: pipelines alone first, then with TP, 3D.

    Of both those first whose stages have as many layers each.
    """
    world = scenario.cluster.world_size
    pipelines = pipeline_degrees(scenario)
    yield from ((1, pipeline) for pipeline in pipelines)
    for pipeline in pipelines:
        for tensor in tensor_degrees(scenario):
            if world % (tensor * pipeline) == 0:
                yield tensor, pipeline
