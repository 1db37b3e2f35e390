"""How evenly a mixture's tokens meet the expert-parallel ranks: the fullest rank's load.

An all-to-all brings each routed token to the rank of its expert, so what a rank's experts are given
depends on the router. Without expert parallelism every rank runs all of its own tokens' experts,
and the grouped products have k rows a token whatever the router says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardwise.core.errors import ScenarioError
from shardwise.core.layout import Layout
from shardwise.core.model import Model
from shardwise.core.units import format_bound

if TYPE_CHECKING:
    from shardwise.core.scenario import Scenario
    from shardwise.core.training import Training

SKEWED = 1.5
"""How much more than now the fullest rank is said to get where a skewed router is told of."""


def expert_load(training: Training, layout: Layout) -> float:
    """Rows that the fullest rank's experts are given, over k for each token of its own.

    `expert_imbalance` where an all-to-all brings them. With a capacity each rank sends an expert at
    most `expert_capacity_factor` times the even share (megatron/core/transformer/moe/moe_utils.py,
    `get_capacity`; `_capacity` of deepspeed/moe/sharded_moe.py, whose layer always pads), and with
    padding exactly that, on one rank alone too (token_dispatcher.py, `drop_and_pad`).

    >>> from shardwise.core.training import Training
    >>> skewed = Training(expert_imbalance=1.5)
    >>> expert_load(skewed, Layout(expert_parallel=8)), expert_load(skewed, Layout())
    (1.5, 1.0)
    """
    rows = training.expert_imbalance if layout.expert_parallel > 1 else 1.0
    capacity = training.expert_capacity_factor
    if capacity is None:
        return rows
    if training.expert_capacity_padded or layout.engine == "deepspeed":
        return capacity
    return min(rows, capacity)


def most_imbalance(model: Model, layout: Layout) -> float:
    """The imbalance at which one rank gets all that it can; 1 where routing changes nothing.

    All k choices of every token on one of p ranks: p times the even share. A rank with fewer than k
    of the E experts gets each token once an expert: E/k times the even share.
    """
    if layout.expert_parallel == 1:
        return 1.0
    found = (
        min(layout.expert_parallel, shape.experts / max(1, shape.experts_per_token))
        for shape, _ in model.block_groups
        if shape.experts
    )
    return max((1.0, *found))


def routing_matters(scenario: Scenario) -> bool:
    """Whether the estimate depends on `expert_imbalance`."""
    training, layout = scenario.training, scenario.layout
    padded = training.expert_capacity_padded or layout.engine == "deepspeed"
    fixed = training.expert_capacity_factor is not None and padded
    return most_imbalance(scenario.model, layout) > 1 and not fixed


def with_skewed_routing(scenario: Scenario) -> Scenario | None:
    """The scenario with half as many tokens again on the fullest rank; None where none can be."""
    training = scenario.training
    most = most_imbalance(scenario.model, scenario.layout)
    skewed = min(training.expert_imbalance * SKEWED, most)
    if not routing_matters(scenario) or skewed <= training.expert_imbalance:
        return None
    return scenario.with_training(replace(training, expert_imbalance=skewed))


def check_routing(scenario: Scenario) -> None:
    """Refuse an imbalance that no router can make on these ranks, and padding without a capacity.

    Raises:
        ScenarioError: more than all tokens on one rank.
    """
    training, layout = scenario.training, scenario.layout
    if training.expert_capacity_padded and training.expert_capacity_factor is None:
        raise ScenarioError(
            "training.expert_capacity_padded",
            True,
            "False without expert_capacity_factor: it is that capacity that experts are padded to",
        )
    most = most_imbalance(scenario.model, layout)
    if most == 1 or training.expert_imbalance <= most:
        return
    raise ScenarioError(
        "training.expert_imbalance",
        training.expert_imbalance,
        f"a number from 1 (even) to {format_bound(most)} (one of {layout.expert_parallel} "
        "expert-parallel ranks gets every token that it can)",
    )
