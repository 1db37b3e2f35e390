"""The cases of lesson 14, against what is known of them from their threads."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.lab.lesson_cases import CASES


def decided(name: str) -> sw.Decision:
    """Shardwise's decision of a case."""
    return sw.decide(sw.Scenario.from_dict(CASES[name].scenario))


def test_there_are_ten_and_they_need_different_strategies():
    """Somebody who always gives one answer cannot pass."""
    strategies = [decided(name).strategy for name in CASES]
    assert len(CASES) == 10
    assert max(strategies.count(strategy) for strategy in strategies) < 8
    assert len(set(strategies)) >= 5


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("one billion", {"ddp"}),  # measured 4.6 times as fast as FSDP
        ("batch of one", {"offload"}),  # ZeRO-3 ran out of memory, with offload it ran
        ("dies in AdamW", {"offload", "tensor", "pipeline", "3d", "none"}),  # FSDP ran out
        ("forty billion", {"none"}),  # 8 cards hold 8 to 10 billion
        ("forty on more", {"zero-1", "zero-2", "zero-3"}),  # about 48 cards are needed
        ("long context", {"tensor", "3d"}),  # tensor parallel 8 in the thread
    ],
)
def test_the_decision_is_what_the_thread_found(name, accepted):
    """Where a thread says what worked and what did not, the decision agrees."""
    assert decided(name).strategy in accepted


def test_active_parameters_are_not_what_is_held():
    """Qwen3 30B-A3B holds 30,532,122,624 parameters, whatever is active."""
    scenario = sw.Scenario.from_dict(CASES["three active"].scenario)
    assert scenario.model.parameters == 30_532_122_624
