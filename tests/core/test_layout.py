"""Layouts: degrees that multiply to the world, engines and their stages, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.core.engines import ENGINES, SCHEDULES
from shardwise.core.errors import ScenarioError
from shardwise.core.layout import Layout


def test_the_default_is_fully_sharded_fsdp2() -> None:
    """With nothing said: FSDP2, stage 3, everything data-parallel."""
    layout = Layout.from_dict({}).resolved(16)
    assert (layout.engine, layout.zero_stage, layout.reshard_after_forward) == ("fsdp2", 3, True)
    assert (layout.data_parallel, layout.shard, layout.model_parallel) == (16, 16, 1)


@pytest.mark.parametrize(
    ("given", "stage"),
    [
        ({"engine": "ddp"}, 0),
        ({"engine": "zero-redundancy"}, 1),
        ({"engine": "fsdp1"}, 3),
        ({"engine": "fsdp2", "reshard_after_forward": True}, 3),
        ({"engine": "fsdp2", "reshard_after_forward": False}, 2),
        ({"engine": "fsdp2", "zero_stage": 2}, 2),
        ({"engine": "deepspeed", "zero_stage": 1}, 1),
        ({"engine": "deepspeed"}, 3),
        ({"engine": "megatron"}, 1),
        ({"engine": "megatron", "zero_stage": 0}, 0),
    ],
)
def test_an_engine_has_its_stages(given: dict[str, Any], stage: int) -> None:
    """FSDP's resharding says the stage; others take their highest unless told."""
    assert Layout.from_dict(given).zero_stage == stage


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"engine": "ddp", "zero_stage": 1}, "layout.zero_stage"),
        ({"engine": "fsdp2", "zero_stage": 1}, "layout.zero_stage"),
        ({"engine": "megatron", "zero_stage": 3}, "layout.zero_stage"),
        ({"zero_stage": 2, "reshard_after_forward": True}, "layout.reshard_after_forward"),
        ({"engine": "ddp", "reshard_after_forward": True}, "layout.reshard_after_forward"),
        ({"sequence_parallel": True}, "layout.sequence_parallel"),
        ({"schedule": "interleaved", "pipeline_parallel": 2}, "layout.virtual_stages"),
        ({"virtual_stages": 2, "pipeline_parallel": 2}, "layout.schedule"),
        ({"virtual_stages": 2, "schedule": "interleaved"}, "layout.virtual_stages"),
        ({"engine": "ddp", "offload": {"optimizer": "cpu"}}, "layout.offload.optimizer"),
        (
            {"engine": "deepspeed", "zero_stage": 2, "offload": {"parameters": "cpu"}},
            "layout.offload.parameters",
        ),
        ({"layers_per_stage": [1, 2], "pipeline_parallel": 3}, "layout.layers_per_stage"),
        ({"layers_per_stage": "3,3"}, "layout.layers_per_stage"),
        (
            {
                "layers_per_stage": [1, 2, 1],
                "pipeline_parallel": 2,
                "virtual_stages": 2,
                "schedule": "interleaved",
            },
            "layout.layers_per_stage",
        ),
        ({"layers_per_stage": [-1, 3], "pipeline_parallel": 2}, "layout.layers_per_stage[0]"),
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, Any], field: str) -> None:
    """The error names the field that cannot be with the others."""
    with pytest.raises(ScenarioError) as caught:
        Layout.from_dict(given)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given", "world", "field"),
    [
        ({"tensor_parallel": 3}, 8, "layout"),
        ({"tensor_parallel": 2, "pipeline_parallel": 3}, 8, "layout"),
        ({"tensor_parallel": 16}, 8, "layout"),
        ({"data_parallel": 8, "context_parallel": 8}, 8, "layout.data_parallel"),
        ({"data_parallel": 4}, 8, "layout.data_parallel"),
        ({"shard": 3}, 8, "layout.shard"),
        ({"shard": 16}, 8, "layout.shard"),
        ({"expert_parallel": 8}, 4, "layout.expert_parallel"),
        ({"expert_parallel": 8, "tensor_parallel": 2}, 8, "layout.expert_parallel"),
    ],
)
def test_degrees_that_do_not_multiply_are_refused(
    given: dict[str, Any], world: int, field: str
) -> None:
    """world = pipeline x context x tensor x data; experts are folded into data x context."""
    with pytest.raises(ScenarioError) as caught:
        Layout.from_dict(given).resolved(world)
    assert caught.value.field == field
    assert str(world) in str(caught.value) or "divisor" in str(caught.value)


def test_context_parallel_ranks_share_the_shards() -> None:
    """States are sharded over data x context (torchtitan's dp_shard x cp)."""
    layout = Layout.from_dict({"context_parallel": 4}).resolved(8)
    assert (layout.data_parallel, layout.shard) == (2, 8)


def test_hybrid_sharding_keeps_its_own_degree() -> None:
    """HSDP: sharded over the eight cards of a node, replicated over four nodes."""
    layout = Layout.from_dict({"shard": 8}).resolved(32)
    assert (layout.data_parallel, layout.shard) == (32, 8)


DEGREE = st.sampled_from([1, 2, 3, 4, 8])
PLAIN = st.fixed_dictionaries(
    {},
    optional={
        "engine": st.sampled_from(ENGINES),
        "zero_stage": st.integers(0, 3),
        "tensor_parallel": DEGREE,
        "context_parallel": DEGREE,
        "pipeline_parallel": DEGREE,
        "expert_parallel": DEGREE,
        "virtual_stages": DEGREE,
        "shard": DEGREE,
        "data_parallel": DEGREE,
        "schedule": st.sampled_from(SCHEDULES),
        "sequence_parallel": st.booleans(),
        "reshard_after_forward": st.booleans(),
        "gradient_as_bucket_view": st.booleans(),
        "offload": st.fixed_dictionaries(
            {},
            optional={
                "optimizer": st.sampled_from(["none", "cpu", "nvme"]),
                "parameters": st.sampled_from(["none", "cpu"]),
            },
        ),
    },
)


@given(PLAIN, st.integers(1, 64))
def test_a_layout_resolves_to_the_world_or_is_refused(given: dict[str, Any], world: int) -> None:
    """What resolves multiplies to the world, shards evenly and survives a round trip."""
    try:
        layout = Layout.from_dict(given).resolved(world)
    except ScenarioError as error:
        assert error.field.startswith("layout")
        return
    assert layout.data_parallel is not None
    assert layout.shard is not None
    assert layout.data_parallel * layout.model_parallel == world
    group = layout.data_parallel * layout.context_parallel
    assert group % layout.shard == 0
    assert group % layout.expert_parallel == 0
    assert Layout.from_dict(layout.to_dict()) == layout
    assert layout.resolved(world) == layout
