"""Ways to load a model before the first step, and what each takes on a GPU and in a node's RAM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.host import host_bytes_at_load
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.states import stage_units
from shardwise.core.memory.timeline import loaded
from shardwise.core.scenario import Scenario

STRAIGHT = "whole, straight to each GPU"
THROUGH_RAM = "whole in each rank's RAM first"
OWN_PART = "each rank its own part"


@dataclass(frozen=True)
class Loading:
    """One way to load: the most that a GPU holds on the way and the RAM of a node, in bytes."""

    way: str
    gpu_bytes: float
    host_bytes_per_node: float
    why: str


def ways_to_load(scenario: Scenario, index: int) -> tuple[Loading, ...]:
    """The ways that the layout's engine offers, the one that takes most of a GPU first.

    >>> given = {"model": {"parameters": 7e9}, "training": {"precision": "fsdp-mixed"}}
    >>> [round(way.gpu_bytes / 1e9, 1) for way in ways_to_load(Scenario.from_dict(given), 0)]
    [28.1, 4.6, 4.0]
    """
    engine = scenario.layout.engine
    after = sum(loaded(scenario, index).values())
    if engine in ("fsdp1", "fsdp2"):
        return _before_sharding(scenario, index, after)
    if engine == "deepspeed":
        return _by_deepspeed(scenario, index, after)
    if engine in ("megatron", "nanotron"):
        return (_own_part(scenario, _with_flat_copy(scenario, index, after), _MEGATRON),)
    whole = host_bytes_at_load(scenario, sharded=False)
    said = "each rank holds all of it for good, and DDP's buckets beside it"
    return (
        Loading(STRAIGHT, after, 0.0, f"safetensors are read tensor by tensor; {said}"),
        Loading(THROUGH_RAM, after, whole, f"from_pretrained, then .to(device); {said}"),
    )


_MEGATRON = (
    "built on the GPU; with the distributed optimizer weights are copied into one flat buffer "
    "(megatron/core/distributed/param_and_grad_buffer.py)"
)


def _own_part(scenario: Scenario, gpu_bytes: float, why: str) -> Loading:
    return Loading(OWN_PART, gpu_bytes, host_bytes_at_load(scenario), why)


def _before_sharding(scenario: Scenario, index: int, after: float) -> tuple[Loading, ...]:
    """FSDP: units are sharded one after the other, blocks first, the root last.

    torch/distributed/fsdp/_fully_shard: `fully_shard` moves a unit to the GPU
    (`_move_states_to_device`) and makes its shards beside it (`_init_sharded_param`); what was
    there whole is freed as it returns.
    """
    stage = frame_of(scenario, index).stage
    whole, shards = _units_bytes(scenario, stage)
    made = list(accumulate(shards))  # this unit's shards and those of all before it
    to_come = list(accumulate(reversed(whole)))[::-1]  # this unit and all after it
    one_by_one = max(sum(pair) for pair in zip(made, whole, strict=True))
    at_once = max(sum(pair) for pair in zip(made, to_come, strict=True))
    largest = max((t.elements // t.count for t in (*stage.tensors, *stage.frozen)), default=0)
    element = scenario.training.precision.parameter_bytes
    return (
        Loading(
            STRAIGHT,
            max(at_once, after),
            0.0,
            "all of it is there until the first unit is sharded",
        ),
        Loading(
            THROUGH_RAM,
            max(one_by_one, after),
            host_bytes_at_load(scenario, sharded=False),
            "fully_shard takes one unit at a time to the GPU; the root comes last, over all shards",
        ),
        _own_part(
            scenario,
            after + element * float(largest),
            "from the meta device: shards, and one whole tensor while rank 0 broadcasts it",
        ),
    )


def _units_bytes(scenario: Scenario, stage: Stage) -> tuple[Sequence[float], Sequence[float]]:
    """Bytes of each unit as stored, whole and one rank's shard; the root's last."""
    layout, precision = scenario.layout, scenario.training.precision
    element = float(precision.parameter_bytes)
    units = stage_units(stage, layout, scenario.shard, element)
    shares = (*units.shares, units.root_share)
    own = stage.frozen_units or ((),) * len(stage.units)
    frozen = [
        sum((t.stored or element) * t.elements for t in unit)
        for unit in (stage.idle, *own, stage.frozen_root)
    ]
    trained, shares = (0, *stage.units, stage.root), (0.0, *shares)
    whole = [element * unit + more for unit, more in zip(trained, frozen, strict=True)]
    shards = [
        element * share + more / scenario.shard for share, more in zip(shares, frozen, strict=True)
    ]
    return whole, shards


def _by_deepspeed(scenario: Scenario, index: int, after: float) -> tuple[Loading, ...]:
    """DeepSpeed: stage 3 partitions tensor by tensor, the others hold the model whole.

    deepspeed/runtime/zero/partition_parameters.py, `Init`; stages 1 and 2 flatten the weights
    beside them, on the GPU where there is room and else in RAM (stage_1_and_2.py, 0.19).
    """
    stage = frame_of(scenario, index).stage
    whole_ram = host_bytes_at_load(scenario, sharded=False)
    element = scenario.training.precision.parameter_bytes
    if scenario.layout.zero_stage == 3:
        largest = max((t.elements // t.count for t in (*stage.tensors, *stage.frozen)), default=0)
        peak = after + element * float(largest)
        said = "a tensor is whole on the GPU while it is partitioned"
        return (
            Loading(THROUGH_RAM, peak, whole_ram, f"without zero.Init; {said}"),
            _own_part(scenario, peak, f"inside zero.Init; {said}"),
        )
    flat = max(after, 2.0 * loaded(scenario, index)["parameters"])
    why = "weights are flattened beside themselves, in RAM where the card has no room for that"
    return (Loading(THROUGH_RAM, flat, whole_ram, why),)


def _with_flat_copy(scenario: Scenario, index: int, after: float) -> float:
    """Megatron-LM's weights and their flat copy, with the gradient buffer, before masters."""
    parts = loaded(scenario, index)
    if scenario.layout.engine != "megatron" or not scenario.layout.zero_stage:
        return after
    return max(after, 2 * parts["parameters"] + parts["gradients"])
