"""What each rank of a stage has of the states, where ranks differ: by rows or by whole tensors."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardwise.core.memory.greedy import dealt_out
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.states import States, ranks_of
from shardwise.core.memory.tensor_classes import TensorClass
from shardwise.core.optimizers import state_bytes
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

PADDED = "parameters and gradients are padded all the same"


@dataclass(frozen=True)
class Share:
    """Shards with the same states: how many, the first and the last of them, what they hold."""

    shards: int
    span: tuple[int, int]
    states: States
    why: str


def shares_of(scenario: Scenario, stage: Stage, fullest: States) -> list[Share]:
    """The distinct shares of one stage; a single one where all ranks are alike."""
    layout = scenario.layout
    if scenario.shard > 1 and stage.tensors:
        if layout.engine == "fsdp2":
            return _by_rows(scenario, stage, fullest)
        if layout.engine == "zero-redundancy" and not any(t.expert for t in stage.tensors):
            return _by_tensors(scenario, stage, fullest)
    return [Share(scenario.shard, (0, scenario.shard - 1), fullest, alike(scenario, stage))]


def rows_of(
    tensor: TensorClass, scenario: Scenario, experts: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """(rows, padded rows) of one tensor on each shard, as FSDP2 chunks dimension 0.

    torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param`: `torch.chunk`, then
    empty chunks; a shard's storage is as long as the first chunk. Experts' tensors are cut by
    expert parallelism first, the ranks of one expert group standing side by side; where their
    number does not divide, the last groups have fewer.
    """
    import numpy

    layout, shard = scenario.layout, scenario.shard
    index = numpy.arange(shard)
    rows, ranks = numpy.full(shard, tensor.shape[0] if tensor.shape else 1), shard
    if tensor.expert and layout.expert_parallel > 1:
        ranks = ranks_of(tensor, shard, layout)
        if experts > tensor.shape[0]:
            group = index % layout.expert_parallel
            rows = numpy.clip(experts - group * tensor.shape[0], 0, tensor.shape[0])
        index = index * ranks // shard
    chunk = -(-rows // ranks)
    return numpy.clip(rows - index * chunk, 0, chunk), chunk


def _by_rows(scenario: Scenario, stage: Stage, fullest: States) -> list[Share]:
    """FSDP2: the last ranks have fewer rows of a tensor, or none."""
    import numpy

    precision, optimizer = scenario.training.precision, scenario.training.optimizer
    experts = max((shape.experts for shape, _ in stage.blocks), default=0)
    elements, padded, state, largest, fewer, none = numpy.zeros((6, scenario.shard))
    for tensor in stage.tensors:
        rows, stored = rows_of(tensor, scenario, experts)
        row = math.prod(tensor.shape[1:])
        elements += tensor.count * row * rows
        padded += tensor.count * row * stored
        largest = numpy.maximum(largest, row * rows)
        fewer += tensor.count * ((rows > 0) & (rows < stored))
        none += tensor.count * (rows == 0)
        for own in numpy.unique(rows):
            shape = (int(own), *tensor.shape[1:])
            size = state_bytes(shape, tensor.part, optimizer, precision.state_bytes) if own else 0.0
            state += numpy.where(rows == own, tensor.count * size, 0.0)
    total = sum(tensor.count for tensor in stage.tensors)
    found = []
    for first, span, count in _alike_columns((padded, elements, state, fewer, none)):
        states = replace(
            fullest,
            parameters=precision.parameter_bytes * float(padded[first]) + fullest.frozen,
            gradients=precision.gradient_bytes * float(padded[first]),
            master_weights=precision.master_bytes * float(elements[first]),
            optimizer_state=float(state[first]),
            sharded_elements=float(elements[first]),
            largest=float(largest[first]),
        )
        why = _rows_said(int(fewer[first]), int(none[first]), total, count == scenario.shard)
        found.append(Share(count, span, states if first else fullest, why))
    return found


def _alike_columns(rows: Iterable[NDArray[Any]]) -> list[tuple[int, tuple[int, int], int]]:
    """(first column, first and last, how many) of each set of equal columns, by the first one."""
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for column, values in enumerate(zip(*(row.tolist() for row in rows), strict=True)):
        groups[values].append(column)
    return [(group[0], (group[0], group[-1]), len(group)) for group in groups.values()]


def _rows_said(fewer: int, none: int, total: int, all_alike: bool) -> str:
    if all_alike:
        return f"the rows of {total:,} tensors, cut evenly"
    if not fewer and not none:
        return f"rows of all {total:,} tensors"
    parts = [f"no rows of {none:,} (too few to go round)"] if none else []
    parts += [f"fewer rows of {fewer:,}"] if fewer else []
    return f"{' and '.join(parts)} of {total:,} tensors; {PADDED}"


def _by_tensors(scenario: Scenario, stage: Stage, fullest: States) -> list[Share]:
    """ZeroRedundancyOptimizer: each rank updates whole tensors."""
    precision = scenario.training.precision
    dealt = dealt_out(
        stage.tensors, scenario.shard, scenario.training.optimizer, precision.state_bytes
    )
    groups: dict[tuple[int, float], list[int]] = defaultdict(list)
    for rank, own in enumerate(dealt):
        groups[own.elements, own.state_bytes].append(rank)
    found = []
    for (elements, state), ranks in groups.items():
        own = dealt[ranks[0]]
        states = replace(
            fullest,
            master_weights=precision.master_bytes * float(elements),
            optimizer_state=state,
            sharded_elements=float(elements),
            largest=float(own.largest),
        )
        few = {dealt[rank].tensors for rank in ranks}
        counted = f"{min(few):,}" if len(few) == 1 else f"{min(few):,} to {max(few):,}"
        noun = "tensor" if few == {1} else "tensors"
        why = f"updates {counted} whole {noun}, the largest of {format_count(own.largest)} weights"
        found.append(
            Share(
                len(ranks),
                (ranks[0], ranks[-1]),
                states,
                why if own.tensors else "updates nothing: there are more ranks than tensors",
            )
        )
    return found


def alike(scenario: Scenario, stage: Stage) -> str:
    """Why the ranks of a stage hold the same bytes."""
    layout, shard = scenario.layout, scenario.shard
    if shard == 1 or layout.engine == "ddp" or not layout.zero_stage:
        return "nothing is sharded: each holds all of it"
    if layout.engine == "fsdp1":
        padding = sum(-unit % shard for unit in (*stage.units, stage.root))
        return f"each unit is one flat parameter cut evenly{_padded(padding)}"
    if layout.engine == "deepspeed" and layout.zero_stage == 3:
        padding = sum(t.count * (-(t.elements // t.count) % shard) for t in stage.tensors)
        return f"each tensor is cut evenly{_padded(padding)}"
    return "flat buffers are cut evenly"


def _padded(elements: int) -> str:
    return f", the last shards padded by {elements:,} weights in all" if elements else ""
