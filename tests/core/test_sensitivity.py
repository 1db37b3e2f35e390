"""What to change first: each change is real, its saving is the difference of two estimates."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.core.errors import ScenarioError
from shardwise.core.memory.changes import CHANGES
from shardwise.core.memory.estimate import estimate
from shardwise.core.memory.sensitivity import MOST, Change, sensitivity
from shardwise.core.scenario import Scenario
from shardwise.core.units import GIB

ENGINES = [
    {"engine": "ddp"},
    {"engine": "fsdp2"},
    {"engine": "fsdp2", "zero_stage": 2},
    {"engine": "fsdp1"},
    {"engine": "deepspeed", "zero_stage": 0},
    {"engine": "deepspeed", "zero_stage": 2},
    {"engine": "deepspeed", "zero_stage": 3},
    {"engine": "megatron", "zero_stage": 0},
    {"engine": "megatron", "zero_stage": 1},
]
LAID = st.builds(
    lambda model, engine, tensor, pipeline, gpus, nodes, training: {
        "model": model,
        "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": gpus, "nodes": nodes},
        "training": training,
        "layout": {**engine, "tensor_parallel": tensor, "pipeline_parallel": pipeline},
    },
    model=st.sampled_from(["gpt2", "llama-3-8b", "mixtral-8x7b", "t5-small", "bert-base"]),
    engine=st.sampled_from(ENGINES),
    tensor=st.sampled_from([1, 2]),
    pipeline=st.sampled_from([1, 2]),
    gpus=st.sampled_from([1, 2, 8]),
    nodes=st.sampled_from([1, 2]),
    training=st.fixed_dictionaries(
        {
            "sequence_length": st.sampled_from([512, 4096]),
            "micro_batch": st.integers(1, 5),
            "precision": st.sampled_from(["mixed-16", "fsdp-mixed", "bf16", "mixed-fp32-grads"]),
            "optimizer": st.sampled_from(["adamw", "sgd", "adamw-8bit"]),
            "attention": st.sampled_from(["flash", "eager"]),
            "loss": st.sampled_from(["full", "chunked"]),
            "activation_checkpointing": st.sampled_from(["none", "full"]),
        }
    ),
)


def scenario(**sections: Any) -> Scenario:
    """Llama-3-8B on eight cards unless said otherwise."""
    cluster = {"gpu": "h100-sxm-80gb", "gpus_per_node": 8}
    return Scenario.from_dict({"model": "llama-3-8b", "cluster": cluster, **sections})


def changes_of(laid: Scenario) -> dict[str, Change]:
    """Every change that frees something, by key."""
    return {change.key: change for change in sensitivity(laid, len(CHANGES))}


@settings(deadline=None, max_examples=60)
@given(LAID)
def test_what_a_change_frees_is_the_difference_of_two_estimates(sections: dict[str, Any]) -> None:
    """For any scenario: largest first, above zero, each on a scenario that reads back."""
    try:
        laid = Scenario.from_dict(sections)
    except ScenarioError:
        assume(False)
    now = estimate(laid).peak_bytes
    found = sensitivity(laid, len(CHANGES))
    assert [c.freed_bytes for c in found] == sorted((c.freed_bytes for c in found), reverse=True)
    for change in found:
        report = estimate(change.scenario)
        assert change.freed_bytes == now - report.peak_bytes > 0
        assert change.peak_bytes == report.peak_bytes
        assert change.verdict == report.verdict
        assert change.cost.endswith(".")
        assert change.before != change.after
        assert Scenario.from_dict(change.scenario.to_dict()) == change.scenario
        assert report.host_bytes_per_node <= change.scenario.cluster.host_memory_bytes
    assert sensitivity(laid) == found[:MOST]


@settings(deadline=None, max_examples=30)
@given(LAID)
def test_a_change_touches_what_it_names(sections: dict[str, Any]) -> None:
    """Of the scenario's dict only the named section differs, and the model never does."""
    try:
        laid = Scenario.from_dict(sections)
    except ScenarioError:
        assume(False)
    before = laid.to_dict()
    for change in sensitivity(laid, len(CHANGES)):
        after = change.scenario.to_dict()
        section = change.field.partition(".")[0]
        allowed = {section, "layout"} if section == "cluster" else {section}
        assert {name for name in before if before[name] != after[name]} <= allowed


def test_the_five_that_free_most_on_llama() -> None:
    """FSDP2 on one node with a step bound by its loss: checkpointing first."""
    found = sensitivity(scenario())
    assert len(found) == 5
    assert found[0].label == "full activation checkpointing"
    assert found[0].field == "training.activation_checkpointing"
    assert (found[0].before, found[0].after) == ("none", "full")


def test_ddps_savings_are_the_states_arithmetic() -> None:
    """Bound by the optimizer's step: 2P of buckets and, sharded, 7/8 of the moments and masters.

    Bucket views free the 16-bit gradients' size where the step is well above backward, in which the
    buckets stand anyway. DeepSpeed's stage 1 frees the foreach list too.
    """
    laid = scenario(layout={"engine": "ddp"}, training={"sequence_length": 2048})
    parameters = laid.model.parameters
    found = changes_of(laid)
    assert found["bucket-views"].freed_bytes == 2 * parameters
    assert found["bucket-views"].cheap
    assert found["full-sharding"].label == "FSDP2 with resharding"
    assert found["full-sharding"].verdict == "fits"
    assert found["shard-optimizer"].freed_bytes > 12 * parameters * 7 / 8
    assert "full-checkpointing" not in found  # activations are gone when the optimizer steps


def test_half_the_micro_batch_keeps_the_samples_of_a_step() -> None:
    """Samples a step stay as they are: the other half is accumulated."""
    laid = scenario(training={"micro_batch": 8})
    change = changes_of(laid)["half-micro-batch"]
    assert (change.before, change.after) == ("8", "4")
    assert change.scenario.global_batch == laid.global_batch == 64
    assert change.scenario.micro_batches == 2


def test_what_is_done_already_is_not_proposed() -> None:
    """A scenario that has it all gets none of it again."""
    training = {
        "micro_batch": 1, "optimizer": "adamw-8bit", "loss": "chunked", "attention": "flash",
        "activation_checkpointing": "full", "model_code": "compiled", "precision": "bf16",
    }  # fmt: skip
    layout = {"engine": "fsdp2", "offload": {"optimizer": "cpu"}}
    keys = set(changes_of(scenario(training=training, layout=layout)))
    assert keys <= {"tensor-parallel", "context-parallel", "pipeline-parallel", "twice-the-gpus"}


def test_what_cannot_be_is_left_out() -> None:
    """One GPU cannot be split over, DDP cannot offload, and a small host holds no optimizer."""
    alone = scenario(cluster={"gpu": "h100-sxm-80gb", "gpus_per_node": 1})
    assert not {"tensor-parallel", "full-sharding", "pipeline-parallel"} & set(changes_of(alone))
    assert "optimizer-offload" not in changes_of(scenario(layout={"engine": "ddp"}))
    assert "optimizer-offload" in changes_of(scenario())
    tiny = {"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "host_memory_gib": 16}
    assert "optimizer-offload" not in changes_of(scenario(cluster=tiny))
    dense = changes_of(scenario())
    assert "expert-parallel" not in dense
    routed = changes_of(Scenario.from_dict({"model": "mixtral-8x7b"}))
    assert "expert-parallel" in routed


def test_twice_the_gpus_fills_the_node_first() -> None:
    """One card of eight becomes two of eight; a full node becomes two nodes."""
    alone = changes_of(scenario(cluster={"gpu": "h100-sxm-80gb", "gpus_per_node": 1}))
    assert alone["twice-the-gpus"].field == "cluster.gpus_per_node"
    assert alone["twice-the-gpus"].scenario.cluster.world_size == 2
    full = changes_of(scenario())["twice-the-gpus"]
    assert (full.field, full.before, full.after) == ("cluster.nodes", "1", "2")


@pytest.mark.parametrize(
    ("gpu", "link", "degree", "said"),
    [
        ("h100-sxm-80gb", "nvlink-4", 1, "so NVLink is needed"),
        ("rtx-4090", "pcie-4-host-staged", 1, "no NVLink, only PCIe 4.0"),
        ("a40", "nvlink-bridge-a40", 1, "so NVLink is needed"),
        ("a40", "nvlink-bridge-a40", 2, "NVLink bridges join pairs only"),
    ],
)
def test_tensor_parallelism_says_what_the_node_s_link_lacks(
    gpu: str, link: str, degree: int, said: str
) -> None:
    """PCIe has no NVLink, and a bridge joins two cards, so four would cross PCIe."""
    cluster = {"gpu": gpu, "gpus_per_node": 8, "intra_node": link}
    laid = scenario(cluster=cluster, layout={"tensor_parallel": degree})
    assert said in changes_of(laid)["tensor-parallel"].cost


def test_sixteen_bit_gradients_are_a_named_policy_where_there_is_one() -> None:
    """Megatron's 18 bytes become the ZeRO paper's 16; FSDP's fp32 reduction becomes bf16."""
    layout = {"engine": "megatron", "zero_stage": 0}
    training = {"precision": "mixed-fp32-grads", "global_batch": 64}
    change = changes_of(scenario(training=training, layout=layout))["bf16-gradients"]
    assert (change.before, change.after) == ("mixed-fp32-grads", "mixed-16")
    assert change.scenario.training.precision.key == "mixed-16"
    reduced = changes_of(
        Scenario.from_dict(
            {
                "model": "llama-3-8b",
                "training": {
                    "precision": "fsdp-mixed", "sequence_length": 128, "loss": "chunked",
                    "activation_checkpointing": "full",
                },
                "cluster": {"gpus_per_node": 8, "nodes": 32},
            }
        )
    )  # fmt: skip
    assert reduced["bf16-gradients"].label == "gradients reduced in bf16"


def test_hybrid_shards_can_be_spread_over_all_ranks() -> None:
    """Shards over one node become shards over both."""
    cluster = {"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": 2}
    change = changes_of(scenario(cluster=cluster, layout={"shard": 8}))["full-sharding"]
    assert change.label == "shards over all ranks"
    assert (change.before, change.after) == ("8 ranks", "16 ranks")


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "5", None])
def test_a_bad_number_of_changes_is_refused(most: Any) -> None:
    """One sentence that names the argument."""
    with pytest.raises(ScenarioError, match=r"^most is .*; allowed: a whole number of 1 or more"):
        sensitivity(scenario(), most)


def test_trying_every_change_costs_little_more_than_their_estimates() -> None:
    """New sequence lengths each time, so nothing is cached: within 200 estimates' time."""
    laid = [scenario(training={"sequence_length": 1000 + 8 * i}) for i in range(20)]
    estimate(laid[0])
    sensitivity(laid[0])
    start = time.process_time()
    for one in laid[1:10]:
        estimate(one)
    single = (time.process_time() - start) / 9
    start = time.process_time()
    for one in laid[10:]:
        sensitivity(one)
    assert (time.process_time() - start) / 10 < 200 * single


def test_the_public_name_is_the_function() -> None:
    """`sw.sensitivity` gives the same as the module."""
    assert sw.sensitivity is sensitivity
    assert all(change.freed_bytes > 0.001 * GIB for change in sw.sensitivity(scenario()))
