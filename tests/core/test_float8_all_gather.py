"""fp8 all-gathers: what FSDP2 then gathers, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwise.core.decision import decide
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.memory.frame import frame_of
from shardwise.core.permalink import from_query, to_query
from shardwise.core.scenario import Scenario


def scenario(fp8: bool = True, model: str = "llama-3-8b", **layout: Any) -> Scenario:
    """FSDP2 over eight H100."""
    given = {"float8_all_gather": fp8, **layout}
    training = {"precision": "fsdp-mixed", "model_code": "compiled"}
    return Scenario.from_dict({"model": model, "training": training, "layout": given})


def test_a_blocks_linear_layers_are_gathered_in_one_byte() -> None:
    """Llama-3-8B: 218,103,808 weights of a block's products in 1 byte, its two norms in 2."""
    plain, fp8 = (frame_of(scenario(on), 0).whole_units for on in (False, True))
    products, norms = 218_103_808, 2 * 4096
    assert plain[1] == 2 * (products + norms)
    assert fp8[1] == products + 2 * norms
    assert plain[0] == fp8[0]  # embedding, final norm and head are no Float8Linear


def test_grouped_experts_and_routers_stay_in_16_bits() -> None:
    """torchtitan converts `nn.Linear` alone: a mixture's blocks shrink by attention's weights."""
    plain, fp8 = (frame_of(scenario(on, "mixtral-8x7b"), 0).whole_units for on in (False, True))
    assert plain[1] - fp8[1] == 2 * 4096**2 + 2 * 4096 * 1024


def test_only_gathered_layers_change() -> None:
    """States, gradients, activations and reductions are those without it."""
    with_it, without = estimate(scenario(True)), estimate(scenario(False))
    for phase in with_it.worst.phases:
        for part, size in with_it.worst.phases[phase].items():
            other = without.worst.phases[phase][part]
            assert size < other if part == "gathered layers" and other else size == other


@pytest.mark.parametrize("engine", ["ddp", "fsdp1", "deepspeed", "megatron"])
def test_other_engines_refuse_it(engine: str) -> None:
    """torchao's weights are FSDP2 extensions: one sentence names the field."""
    with pytest.raises(ScenarioError, match="fsdp2") as problem:
        scenario(engine=engine)
    assert problem.value.field == "layout.float8_all_gather"


def test_cards_without_fp8_refuse_it() -> None:
    """torchtitan asks for compute capability 8.9."""
    with pytest.raises(ScenarioError, match=r"8\.9"):
        Scenario.from_dict(
            {"cluster": {"gpu": "a100-sxm-80gb"}, "layout": {"float8_all_gather": True}}
        )


def test_a_link_and_a_decision_carry_it() -> None:
    """It comes back from a permalink, and FSDP2's rungs keep it."""
    asked = scenario(model="llama-3-70b")
    assert from_query(to_query(asked)).scenario == asked
    chosen = decide(
        replace(asked, cluster=replace(asked.cluster, nodes=4)).with_layout(
            replace(asked.layout, data_parallel=None, shard=None)
        )
    )
    tried = {a.strategy: a.scenario.layout for q in chosen.questions for a in q.attempts}
    assert tried["zero-3"].float8_all_gather
    assert not tried["ddp"].float8_all_gather


@pytest.mark.parametrize(("nodes", "measured"), [(1, (77.0, 76.8)), (16, (62.0, 61.8))])
def test_published_runs_fell_by_as_much(nodes: int, measured: tuple[float, float]) -> None:
    """torchtitan's tables 1 and 3, compiled without and with Float8: 0.2 GiB, read to 0.1."""
    peaks = []
    for fp8 in (False, True):
        given: dict[str, Any] = {
            "cluster": {"gpu": "h100-nvl-94gb", "gpus_per_node": 8, "nodes": nodes},
            "training": {
                "sequence_length": 8192, "micro_batch": 2, "precision": "fsdp-mixed",
                "optimizer_implementation": "fused", "activation_checkpointing": "per-op",
                "model_code": "compiled",
            },
            "layout": {"float8_all_gather": fp8},
        }  # fmt: skip
        peaks.append(estimate(Scenario.from_dict(given)).peak_bytes / 2**30)
    assert peaks[0] - peaks[1] == pytest.approx(measured[0] - measured[1], abs=0.1)
