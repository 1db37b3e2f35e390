"""How evenly routed tokens meet expert-parallel ranks: what it changes, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwise.core.decision import decide
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate, sweep
from shardwise.core.memory.activations import block_saved
from shardwise.core.memory.kernel import kernel_of, tokens_of
from shardwise.core.memory.sensitivity import sensitivity
from shardwise.core.permalink import from_query, to_query
from shardwise.core.routing import expert_load, most_imbalance, routing_matters
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib

CODES = ("transformers", "torchtitan", "megatron", "compiled")


def mixture(expert_parallel: int = 8, engine: str = "fsdp2", **training: Any) -> Scenario:
    """Qwen3-30B-A3B (128 experts, 8 a token) on 16 GPUs."""
    return Scenario.from_dict(
        {
            "model": "qwen3-30b-a3b",
            "cluster": {"nodes": 2},
            "training": training,
            "layout": {"engine": engine, "expert_parallel": expert_parallel},
        }
    )


def operators(scenario: Scenario) -> dict[str, float]:
    """What the first block saves."""
    shape = scenario.model.block_groups[0][0]
    return dict(block_saved(shape, tokens_of(scenario, shape), kernel_of(scenario)).operators)


@pytest.mark.parametrize("code", CODES)
def test_only_what_the_all_to_all_brings_grows(code: str) -> None:
    """Inputs and widths of the experts are those of the fullest rank; all else stays."""
    even = operators(mixture(model_code=code))
    skewed = operators(mixture(model_code=code, expert_imbalance=1.5))
    grown = {name for name in even if skewed[name] > even[name]}
    assert grown - {"router"} == {"expert inputs", "experts"}
    if code != "torchtitan":  # there each local expert's group is lengthened to a multiple of 8
        assert skewed["experts"] == pytest.approx(1.5 * even["experts"], rel=1e-12)
        assert skewed["expert inputs"] == pytest.approx(1.5 * even["expert inputs"], rel=1e-12)


@pytest.mark.parametrize("code", CODES)
def test_without_expert_parallelism_routing_changes_nothing(code: str) -> None:
    """A rank that runs all experts of its own tokens has k rows a token, whatever the router."""
    even, skewed = mixture(1, model_code=code), mixture(1, model_code=code, expert_imbalance=4)
    assert estimate(even).stages == estimate(skewed).stages
    assert not routing_matters(skewed)


def test_a_dense_model_has_no_routing() -> None:
    """An imbalance beside a dense model is no error and changes nothing."""
    dense = Scenario.from_dict({"training": {"expert_imbalance": 3}})
    assert estimate(dense).stages == estimate(Scenario.from_dict({})).stages


@pytest.mark.parametrize(
    ("model", "ranks", "most"),
    [("qwen3-30b-a3b", 8, 8.0), ("qwen3-30b-a3b", 16, 16.0), ("mixtral-8x7b", 8, 4.0)],
)
def test_no_rank_gets_more_than_all_tokens(model: str, ranks: int, most: float) -> None:
    """With one expert a rank, two a token and eight ranks, each token comes once: 4, not 8."""
    given: dict[str, Any] = {
        "model": model, "cluster": {"nodes": 2}, "layout": {"expert_parallel": ranks},
        "training": {"expert_imbalance": most},
    }  # fmt: skip
    scenario = Scenario.from_dict(given)
    assert most_imbalance(scenario.model, scenario.layout) == most
    with pytest.raises(ScenarioError, match=f"from 1 .even. to {most:g} ") as problem:
        Scenario.from_dict({**given, "training": {"expert_imbalance": most + 0.5}})
    assert problem.value.field == "training.expert_imbalance"


@pytest.mark.parametrize("wrong", [0.9, 0, -1, "even", [1], True, float("nan"), 1e9])
def test_what_is_no_imbalance_is_refused(wrong: object) -> None:
    """Below even, or no number: one sentence that names the field."""
    with pytest.raises(ScenarioError) as problem:
        mixture(expert_imbalance=wrong)
    assert problem.value.field == "training.expert_imbalance"


@pytest.mark.parametrize(
    ("training", "ranks", "engine", "load"),
    [
        ({"expert_imbalance": 2.0, "expert_capacity_factor": 1.25}, 8, "megatron", 1.25),
        ({"expert_imbalance": 1.1, "expert_capacity_factor": 1.25}, 8, "megatron", 1.1),
        (
            {"expert_capacity_factor": 1.25, "expert_capacity_padded": True}, 8, "megatron", 1.25,
        ),
        (
            {"expert_capacity_factor": 1.25, "expert_capacity_padded": True}, 1, "megatron", 1.25,
        ),
        ({"expert_capacity_factor": 1.25}, 1, "megatron", 1.0),
        ({"expert_imbalance": 3.0, "expert_capacity_factor": 1.0}, 8, "deepspeed", 1.0),
    ],
)  # fmt: skip
def test_a_capacity_bounds_what_experts_are_given(
    training: dict[str, Any], ranks: int, engine: str, load: float
) -> None:
    """Megatron-LM drops what is over its capacity and may pad up to it; DeepSpeed always pads."""
    scenario = mixture(ranks, engine, **training)
    assert expert_load(scenario.training, scenario.layout) == load


def test_padding_needs_a_capacity() -> None:
    """Without a capacity there is nothing to pad to."""
    with pytest.raises(ScenarioError, match="expert_capacity_factor"):
        mixture(expert_capacity_padded=True)


def test_a_sweep_sees_the_same_skew() -> None:
    """Arrays and single estimates agree at an imbalance."""
    scenario = mixture(expert_imbalance=1.5, model_code="torchtitan")
    found = sweep(scenario, sequence_length=[1024, 4096], micro_batch=[1, 2])
    for at, (length, batch) in enumerate(((1024, 1), (4096, 2))):
        training = replace(scenario.training, sequence_length=length, micro_batch=batch)
        one = estimate(scenario.with_training(training)).peak_bytes
        assert found.peak_bytes[at] == pytest.approx(one, rel=1e-12)


def test_a_link_carries_the_routing() -> None:
    """All three settings come back from a permalink, and defaults are not written."""
    scenario = mixture(
        expert_imbalance=1.5, expert_capacity_factor=2.0, expert_capacity_padded=True
    )
    assert from_query(to_query(scenario)).scenario == scenario
    assert "expert_" not in to_query(mixture()).replace("expert_parallel", "")


def test_the_assumption_says_what_a_skewed_router_needs() -> None:
    """Even routing is stated with the peak that half as many tokens again would add."""
    scenario = mixture()
    skewed = scenario.with_training(replace(scenario.training, expert_imbalance=1.5))
    more = estimate(skewed).peak_bytes - estimate(scenario).peak_bytes
    sentence = next(line for line in estimate(scenario).assumptions if "expert_imbalance" in line)
    assert f"{format_gib(more)} higher" in sentence and more > 0


def test_the_decision_says_what_a_skewed_router_needs() -> None:
    """The notes give the layout's bytes at an even and at a skewed router."""
    note = next(line for line in decide(mixture()).notes if "even share" in line)
    assert "at 1.5 times" in note
    assert not [line for line in decide(mixture(1)).notes if "even share" in line]


def test_balancing_is_a_change_that_frees_memory() -> None:
    """With skewed routing, balancing it is offered; with an even one it is not."""
    keys = {change.key for change in sensitivity(mixture(expert_imbalance=4.0), most=30)}
    assert "balanced-routing" in keys
    assert "balanced-routing" not in {change.key for change in sensitivity(mixture(), most=30)}
