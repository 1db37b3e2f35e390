"""Open sizes: sums of terms are what the same formula gives of numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.core.arrays import everywhere, least, most, rounded_up, there
from shardwise.core.catalogue import model_names
from shardwise.core.errors import ScenarioError
from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.kept import stage_activations
from shardwise.core.memory.open_step import Figures, figures_of, open_step
from shardwise.core.scenario import Scenario
from shardwise.core.terms import Table, not_below_another, size

COUNTS = st.integers(1, 10**6)
BATCH, LENGTH = size("micro_batch"), size("sequence_length")


def formula(batch: float, length: float, width: int) -> float:
    """Every kind of arithmetic that the memory formulas use."""
    cells = batch * length * length / 4
    window = batch * least(length, 4096) + most(2 * width * length, 3 * length * batch)
    return 7 - (cells - width * batch) * 2 + batch * 32 * rounded_up(length / 32) + -window


@given(batch=COUNTS, length=COUNTS, width=st.integers(0, 10**4))
def test_a_formula_on_open_sizes_gives_what_it_gives_of_numbers(
    batch: int, length: int, width: int
) -> None:
    """To 1 part in 10^12 of the largest term: the order of the additions differs."""
    table = Table([formula(BATCH, LENGTH, width), width])
    known = {"micro_batch": float(batch), "sequence_length": float(length)}
    found, constant = table.at(known)
    scale = batch * length * (length + width)
    assert found == pytest.approx(formula(batch, length, width), abs=1e-12 * scale, rel=1e-12)
    assert constant == width


def test_no_branch_is_taken_by_an_open_size() -> None:
    """A truth value or an order would hold for some sizes only."""
    with pytest.raises(TypeError, match="no truth value"):
        bool(LENGTH - 4096)
    for compared in (lambda: LENGTH < 5, lambda: LENGTH > BATCH, lambda: max(LENGTH, BATCH)):
        with pytest.raises(TypeError, match="not supported"):
            compared()
    with pytest.raises(AssertionError, match="by itself"):
        assert 2 * LENGTH >= 3


def test_a_windows_branch_follows_the_size_that_a_step_is_about() -> None:
    """Whether a sequence fills the window is asked of one size among those that do, or do not."""
    assert everywhere(size("sequence_length", 512) >= 512)
    assert not everywhere(size("sequence_length", 511) >= 512)


def test_what_adds_nothing_is_not_there() -> None:
    """As a zero is not."""
    assert there(LENGTH + 0.0)
    assert not there(0 * LENGTH)
    assert not there(LENGTH - LENGTH)


@given(rows=st.lists(st.tuples(*[st.integers(-3, 3)] * 3), min_size=1), batch=COUNTS, length=COUNTS)
def test_a_sum_left_out_is_never_the_highest(
    rows: list[tuple[int, int, int]], batch: int, length: int
) -> None:
    """Whatever the sizes, one of those that are looked at is as high as any."""
    sums = [a + b * BATCH + c * LENGTH * BATCH for a, b, c in rows]
    values = [a + b * batch + c * length * batch for a, b, c in rows]
    assert max(values[row] for row in not_below_another(sums)) == max(values)


@pytest.mark.parametrize("model", sorted(model_names()))
@pytest.mark.parametrize(
    "given",
    [
        {"training": {"sequence_length": 3000, "micro_batch": 3, "attention": "eager"}},
        {
            "training": {"sequence_length": 16384, "activation_checkpointing": {"every": 2}},
            "layout": {"engine": "ddp", "tensor_parallel": 2, "context_parallel": 2},
        },
        {
            "training": {"sequence_length": 512, "micro_batch": 2, "model_code": "megatron"},
            "layout": {"engine": "megatron", "pipeline_parallel": 2},
            "cluster": {"gpu": "a100-sxm-80gb"},
        },
    ],
)
def test_figures_of_an_open_step_are_those_of_its_formulas(
    model: str, given: dict[str, Any]
) -> None:
    """The formulas run on the scenario's own numbers, stage by stage, for every model."""
    try:
        scenario = Scenario.from_dict({"model": model} | given)
    except ScenarioError:
        return  # this model does not divide so
    step, training = open_step(scenario), scenario.training
    known = {
        "micro_batch": float(training.micro_batch),
        "sequence_length": float(training.sequence_length),
    }
    found = step.table.at(known)
    for index, stage in enumerate(step.stages):
        frame = frame_of(scenario, index)
        own = figures_of(scenario, frame, stage_activations(scenario, frame.stage))
        assert stage.rows(found)[: len(Figures._fields)] == pytest.approx(own, rel=1e-12)
