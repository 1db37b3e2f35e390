"""12, 16, 18 or 20 bytes a parameter: each policy's figure, and a run that keeps exactly that."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.core.memory.estimate import estimate
from shardwise.core.policies import Policy, policies
from shardwise.core.scenario import Scenario

BY_KEY = {policy.key: policy for policy in policies()}
STATES = ("parameters", "gradients", "master weights", "optimizer state")


@pytest.mark.parametrize(
    ("key", "alone", "over_eight"),
    [
        ("megatron", 18, 7.5),  # 6 + 12/8: NVIDIA/Megatron-LM#654
        ("maxtext-fp32", 12, 1.5),  # AI-Hypercomputer/maxtext#606
        ("zero-paper", 16, 5.5),  # 4 + 12/8
        ("fp8-lm-baseline", 16, 5.5),  # Azure/MS-AMP#173
        ("mt-nlg", 20, 9.5),  # 8 + 12/8
        ("fsdp", 16, 2),
        ("autocast", 16, 16),
        ("bf16", 8, 8),
    ],
)
def test_each_policys_bytes_a_parameter(key: str, alone: float, over_eight: float) -> None:
    """On one rank and with what it shards over eight."""
    assert BY_KEY[key].bytes_per_parameter() == alone
    assert BY_KEY[key].bytes_per_parameter(8) == over_eight


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("policy", [p for p in policies() if p.dtypes], ids=lambda p: p.key)
def test_a_scenario_with_the_policys_sections_keeps_these_bytes(policy: Policy, ranks: int) -> None:
    """A billion parameters under its precision and engine: the estimate's states at the step."""
    laid = Scenario.from_dict(
        {
            "model": {"parameters": 1e9},
            "cluster": {"gpus_per_node": ranks},
            "training": policy.training(),
            "layout": policy.layout(),
        }
    )
    parts = estimate(laid).phases["optimizer step"]
    expected = 1e9 * policy.bytes_per_parameter(ranks)
    assert sum(parts[name] for name in STATES) == pytest.approx(expected, rel=1e-3)


def test_policies_are_named_with_their_sources() -> None:
    """Unique keys, parts that add up, a source each; the public name is the function."""
    assert sw.policies() == policies()
    assert len(BY_KEY) == len(policies())
    for policy in policies():
        assert policy.source
        assert sum(size for _, size, _ in policy.parts) == policy.bytes_per_parameter(1)
        assert bool(policy.training()) == bool(policy.precision)
