"""Orders of pipeline work played out, and placements counted link by link."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from shardwise.lab.orders import play
from shardwise.lab.placements import crossing_bytes, groups

AXES = ("pipeline", "data", "tensor")


def gpipe(stages: int, micro_batches: int) -> list[list[str]]:
    """All forwards, then all backwards, on every stage."""
    work = [f"{kind}{number}" for kind in "FB" for number in range(micro_batches)]
    return [work] * stages


@given(st.integers(1, 6), st.integers(1, 9))
def test_gpipe_takes_what_the_formula_says(stages, micro_batches):
    """m+p-1 forwards and as many backwards (Huang and others, 2019), with all m alive."""
    played = play(gpipe(stages, micro_batches))
    assert played.units == (micro_batches + stages - 1) * 3
    assert played.live == (micro_batches,) * stages
    assert played.stuck == ()


def test_an_order_that_waits_for_itself_is_named():
    """A backward before its forward never comes, and whoever needs it waits too."""
    played = play([["F0", "B0"], ["B0", "F0"]])
    assert played.stuck == ("stage 0: B0", "stage 1: B0")


def test_two_stages_in_opposite_order_wait_for_each_other():
    """Stage 0 will not send F1 before B0; stage 1 wants F1 first."""
    played = play([["F0", "B0", "F1", "B1"], ["F1", "F0", "B0", "B1"]])
    assert played.stuck == ("stage 0: B0", "stage 1: F1")


@given(st.permutations(AXES), st.tuples(*[st.integers(1, 4)] * 3))
def test_the_groups_of_an_axis_share_out_all_ranks(axes, sizes):
    """Every rank is in just one group of each axis."""
    of_axis = dict(zip(axes, sizes, strict=True))
    for axis in axes:
        found = groups(axes, of_axis, axis)
        assert {len(group) for group in found} == {of_axis[axis]}
        assert sorted(rank for group in found for rank in group) == list(range(math.prod(sizes)))


def test_the_groups_are_torchs():
    """DeviceMesh lays `arange` out in the mesh's shape; so do we."""
    import torch

    sizes = {"pipeline": 2, "data": 3, "tensor": 4}
    ranks = torch.arange(24).view(2, 3, 4)
    for number, axis in enumerate(AXES):
        of_torch = ranks.movedim(number, -1).reshape(-1, sizes[axis]).tolist()
        assert groups(AXES, sizes, axis) == of_torch


@given(st.permutations(AXES))
def test_one_node_for_all_has_nothing_between_nodes(axes):
    """And with one rank a node everything crosses."""
    sizes = dict.fromkeys(AXES, 2)
    sent = {"pipeline": 3, "data": 5, "tensor": 7}
    assert crossing_bytes(axes, sizes, sent, node=8) == 0
    assert crossing_bytes(axes, sizes, sent, node=1) == 8 * (3 + 5 + 7)
