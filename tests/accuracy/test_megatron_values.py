"""The values that Megatron-LM's and Megatron-Bridge's own tests expect of their memory estimators.

Megatron-LM: tests of megatron/training/theoretical_memory_usage.py. Megatron-Bridge: tests of its
memory estimator. Both give a pipeline the average of its stages, and Bridge divides norms by the
tensor degree and leaves routers out; a test says so where that matters.
"""

from __future__ import annotations

from typing import Any

import pytest
from published.megatron_case import scenario_of
from published.megatron_model import Sizes, gpt

from shardwise.core.memory.estimate import estimate
from shardwise.core.memory.head import stage_loss
from shardwise.core.memory.kept import stage_activations
from shardwise.core.memory.pipelines import in_flight
from shardwise.core.memory.report import PHASES
from shardwise.core.memory.stages import Stage, stages_of
from shardwise.core.scenario import Scenario

LM: dict[str, Any] = {
    "layers": 2, "hidden": 8, "heads": 2, "kv_heads": 2, "ffn": 16, "vocabulary": 32, "bias": False,
    "norm": "rmsnorm", "experts": 4, "expert_ffn": 16, "shared_ffn": 8, "sparse": (False, True),
}  # fmt: skip
BRIDGE: dict[str, Any] = {
    "layers": 4, "hidden": 16, "heads": 4, "kv_heads": 4, "ffn": 64, "vocabulary": 32,
    "bias": False,
}  # fmt: skip
BATCH = {"sequence_length": 8, "micro_batch": 2}
TENSOR = {"tensor_parallel": 2, "sequence_parallel": True}


def run(
    sizes: dict[str, Any],
    world: int,
    layout: dict[str, Any],
    training: dict[str, Any] | None = None,
) -> Scenario:
    """A toy of Megatron-LM with the distributed optimizer."""
    training = BATCH | (training or {})
    return scenario_of(gpt(Sizes(**sizes), "toy"), "h100-sxm-80gb", world, training, layout)


def state_bytes(scenario: Scenario) -> list[float]:
    """Parameters, gradients, master weights and moments at the optimizer step, by stage."""
    names = ("parameters", "gradients", "master weights", "optimizer state")
    last = PHASES[-1]
    return [sum(stage.phases[last][name] for name in names) for stage in estimate(scenario).stages]


def elements(stage: Stage, *parts: str) -> int:
    """Parameters of some parts that one rank of a stage holds."""
    return sum(tensor.elements for tensor in stage.tensors if tensor.part in parts)


def test_expert_tensor_parallelism_over_two_stages() -> None:
    """Megatron-LM: TP 2, EP 2, ETP 4, PP 2 on 64 GPUs: 352 x 6.75 + 36 x 6.75 + 64 x 9 = 3195."""
    degrees = {"pipeline_parallel": 2, "expert_parallel": 2, "expert_tensor_parallel": 4}
    scenario = run(LM, 64, TENSOR | degrees, {"global_batch": 64})
    stages = stages_of(scenario.model, scenario.layout)
    assert sum(elements(stage, "attention", "mlp", "embedding") for stage in stages) / 2 == 352
    assert sum(elements(stage, "norm", "router") for stage in stages) / 2 == 36
    assert sum(elements(stage, "experts") for stage in stages) / 2 == 64
    assert sum(state_bytes(scenario)) / 2 == 3195


def test_experts_that_work_in_a_latent_width() -> None:
    """Megatron-LM: latent width 4 on 32 GPUs without a pipeline: 712 x 6.75 + 64 x 9 = 5382."""
    degrees = {"expert_parallel": 2, "expert_tensor_parallel": 4}
    scenario = run(LM | {"latent": 4}, 32, TENSOR | degrees)
    (stage,) = stages_of(scenario.model, scenario.layout)
    assert elements(stage, "attention", "mlp", "embedding", "norm", "router") == 576 + 136
    assert elements(stage, "experts") == 64
    assert state_bytes(scenario) == [5382]


def test_tensor_and_pipeline_parallelism() -> None:
    """Bridge's base case: 13,088 parameters, 3400 on a GPU (norms over TP too), 9 bytes each."""
    scenario = run(BRIDGE, 16, TENSOR | {"pipeline_parallel": 2}, {"global_batch": 16})
    assert scenario.model.parameters == 13_088
    stages = stages_of(scenario.model, scenario.layout)
    norms = sum(elements(stage, "norm") for stage in stages) / 2
    assert sum(stage.elements for stage in stages) / 2 - norms / 2 == 3400
    assert sum(state_bytes(scenario)) / 2 - 9 * norms / 2 == 30_600


def test_uneven_stages() -> None:
    """Bridge: 8 layers as 1, 2, 2, 3, untied: the last stage has 9952 parameters, 89,568 bytes."""
    layout = {"pipeline_parallel": 4, "layers_per_stage": [1, 2, 2, 3]}
    sizes = BRIDGE | {"layers": 8, "tied": False}
    scenario = run(sizes, 16, layout, {"global_batch": 32})
    assert stages_of(scenario.model, scenario.layout)[-1].elements == 9952
    assert state_bytes(scenario)[-1] == max(state_bytes(scenario)) == 89_568


def test_uneven_stages_with_experts_in_some_layers() -> None:
    """Bridge: experts in layers 2, 5, 7, 8 of the same: 5856 dense (no routers), 4096 routed."""
    sparse = tuple(bool(each) for each in (0, 1, 0, 0, 1, 0, 1, 1))
    sizes = BRIDGE | {"layers": 8, "tied": False, "experts": 2, "expert_ffn": 32, "sparse": sparse}
    layout = {"pipeline_parallel": 4, "layers_per_stage": [1, 2, 2, 3]}
    scenario = run(sizes, 16, layout, {"global_batch": 32})
    last = stages_of(scenario.model, scenario.layout)[-1]
    assert elements(last, "attention", "mlp", "norm", "head") == 5856
    assert elements(last, "experts") == 4096


def test_experts_are_sharded_over_their_own_data_parallel_group() -> None:
    """Bridge: TP 2, CP 2, EP 4, ETP 1, DP 8: dense 4496 x 6.75, routed 4096 x 7.5 bytes."""
    sizes = BRIDGE | {"experts": 8, "expert_ffn": 32, "sparse": (True, False, True, False)}
    degrees = {"context_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 1}
    scenario = run(sizes, 32, TENSOR | degrees)
    assert scenario.data_parallel == 8
    (stage,) = stages_of(scenario.model, scenario.layout)
    dense = elements(stage, "attention", "mlp", "embedding") + elements(stage, "norm") // 2
    assert dense * 6.75 == 30_348
    assert elements(stage, "experts") == 4096
    ours = state_bytes(scenario)[0]
    more = 6.75 * (elements(stage, "norm") // 2 + elements(stage, "router"))
    assert ours - more == 30_348 + 30_720 == 61_068


def activation_bytes(scenario: Scenario) -> float:
    """Saved for backward on the first stage, with the token ids of its embedding.

    The formula divides the ids by the tensor degree as well.
    """
    layout, training = scenario.layout, scenario.training
    stage = stages_of(scenario.model, layout)[0]
    tokens = training.micro_batch * training.sequence_length
    ids = 8 * tokens / layout.context_parallel / layout.tensor_parallel
    saved = stage_activations(scenario, stage).whole + ids
    return in_flight(scenario, 0) * saved + stage_loss(scenario, stage).saved


SELECTIVE = {"activation_checkpointing": "selective", "attention": "eager"}


def test_activations_without_a_pipeline() -> None:
    """Bridge: TP 2, CP 2, one micro-batch: sbh(18 + 4f/h)L + 8sb + sbh + 4sbh(1 + V/h): 9568."""
    layout = TENSOR | {"context_parallel": 2}
    assert activation_bytes(run(BRIDGE, 16, layout, SELECTIVE)) == 9568


def test_activations_of_the_first_of_interleaved_stages() -> None:
    """Bridge: TP 2, PP 2 with two virtual stages each, four micro-batches: 1.25 times, 22,240."""
    layout = TENSOR | {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "interleaved"}
    scenario = run(BRIDGE, 16, layout, SELECTIVE | {"global_batch": 32})
    assert scenario.micro_batches == 4
    assert activation_bytes(scenario) == 22_240


@pytest.mark.parametrize("world", [8, 16, 64])
def test_the_distributed_optimizer_is_6_and_12_over_d(world: int) -> None:
    """Bytes a parameter without other parallelism: 6 + 12/d."""
    scenario = run(BRIDGE, world, {})
    assert state_bytes(scenario)[0] / scenario.model.parameters == 6 + 12 / world
