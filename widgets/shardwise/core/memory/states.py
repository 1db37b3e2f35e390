"""Model states: parameters, gradients, master weights and optimizer state, whole and sharded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from shardwise.core.layout import Layout
from shardwise.core.memory.greedy import dealt_out
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.tensor_classes import TensorClass
from shardwise.core.optimizers import state_bytes
from shardwise.core.precision import Precision


@dataclass(frozen=True)
class States:
    """Bytes of model states on the fullest rank of one stage; `frozen` of `parameters` only.

    `sharded_elements` are one rank's share of the trained weights, `largest` that of the largest
    tensor among them.
    """

    parameters: float
    gradients: float
    master_weights: float
    optimizer_state: float
    sharded_elements: float
    frozen: float = 0.0
    largest: float = 0.0


@lru_cache(maxsize=4096)
def stage_states(
    stage: Stage, layout: Layout, precision: Precision, optimizer: str, shard: int
) -> States:
    """Model states of one stage, before any offload.

    ZeRO stage 1 shards master weights and optimizer state, stage 2 gradients too, stage 3
    parameters too. FSDP2 shards every tensor on dimension 0, rounded up (a tensor of 8 rows over
    64 ranks leaves whole rows on 8 of them: `torch/distributed/fsdp/_fully_shard/_fsdp_param.py`);
    DeepSpeed's stage 3 pads every tensor to a multiple of the ranks (deepspeed/runtime/zero/
    partition_parameters.py, `_partition_param`); FSDP1, Megatron-LM and stages 1 and 2 cut flat
    buffers evenly; ZeroRedundancyOptimizer deals out whole tensors (`greedy.py`).
    """
    by_rows = layout.engine == "fsdp2"
    padded = layout.engine == "deepspeed" and layout.zero_stage == 3
    whole = sharded = state_whole = state_sharded = largest = 0.0
    for tensor in stage.tensors:
        ranks = ranks_of(tensor, shard, layout)
        whole += tensor.elements
        shape = sharded_shape(tensor.shape, ranks) if by_rows else tensor.shape
        share = 1 if by_rows else ranks
        own = math.prod(shape) / share
        rounded = 1.0
        if padded:
            own, even = -(-math.prod(shape) // share), own
            rounded = own / even
        sharded += tensor.count * own
        largest = max(largest, own)
        kept = precision.state_bytes
        state_whole += tensor.count * state_bytes(tensor.shape, tensor.part, optimizer, kept)
        state = state_bytes(shape, tensor.part, optimizer, kept) / share
        state_sharded += tensor.count * state * rounded
    if layout.engine == "zero-redundancy" and not any(tensor.expert for tensor in stage.tensors):
        shares = dealt_out(stage.tensors, shard, optimizer, precision.state_bytes)
        master = precision.master_bytes
        fullest = max(shares, key=lambda own: master * own.elements + own.state_bytes)
        sharded, state_sharded, largest, _ = fullest
    zero = layout.zero_stage
    frozen = frozen_bytes(stage, layout, precision, shard) if stage.frozen else 0.0
    shared = sum(flattened_together(stage, layout)) / shard
    trained = precision.parameter_bytes * (sharded if _keeps_shards(layout) else whole)
    return States(
        parameters=trained + frozen,
        gradients=precision.gradient_bytes * (sharded + shared if zero >= 2 else whole),
        master_weights=precision.master_bytes * (sharded if zero >= 1 else whole),
        optimizer_state=state_sharded if zero >= 1 else state_whole,
        sharded_elements=sharded,
        frozen=frozen,
        largest=largest,
    )


def flattened_together(stage: Stage, layout: Layout) -> tuple[int, ...]:
    """Frozen elements of each block that FSDP1 gives a gradient all the same.

    It flattens a block into one parameter, which requires a gradient if any tensor in it does
    (torch/distributed/fsdp/fully_sharded_data_parallel.py, `use_orig_params`: "higher gradient
    memory usage than expected").
    """
    if layout.engine != "fsdp1" or not stage.frozen:
        return ()
    return tuple(
        sum(tensor.elements for tensor in frozen) if trained else 0
        for trained, frozen in zip(stage.unit_tensors, stage.frozen_units, strict=False)
    )


def frozen_bytes(stage: Stage, layout: Layout, precision: Precision, shard: int) -> float:
    """Bytes of weights without gradients on a rank: ZeRO-3 and FSDP shard them, others do not.

    ZeRO-1 and 2 part what the optimizer updates (deepspeed/runtime/zero/stage_1_and_2.py,
    `is_optimized_parameter`); a quantized tensor's statistics hang on the module and stay whole
    (bitsandbytes.nn.Params4bit, `quant_state`).
    """
    size = 0.0
    for tensor in stage.frozen:
        element = tensor.stored or precision.parameter_bytes
        ranks = ranks_of(tensor, shard, layout) if _keeps_shards(layout) else 1
        elements = float(tensor.elements)
        if layout.engine == "fsdp2" and element >= 1:
            elements = tensor.count * math.prod(sharded_shape(tensor.shape, ranks))
        elif ranks > 1:
            elements /= ranks
        size += element * elements + tensor.statistics * tensor.elements
    return size


@dataclass(frozen=True)
class Units:
    """A stage's FSDP units: trained elements with their padding, and one rank's share.

    `feed_forward` are the elements of each block's MLP, experts and router, unpadded. `gathered`
    and `gathered_root` are bytes of whole units, frozen weights included.
    """

    blocks: tuple[int, ...]
    shares: tuple[float, ...]
    feed_forward: tuple[int, ...]
    root: int
    root_share: float
    gathered: tuple[float, ...]
    gathered_root: float


@lru_cache(maxsize=1024)
def stage_units(stage: Stage, layout: Layout, shard: int, element: float) -> Units:
    """The units of a stage under FSDP, gathered in `element` bytes a weight.

    FSDP2 splits dimension 0 into ceil(rows / N) rows a rank; the last ranks' chunks are padded, so
    that gathered layers and reduce-scatter buffers take N times that
    (`torch/distributed/fsdp/_fully_shard/_fsdp_param.py`, `_init_sharded_param`).
    """
    known: dict[int, tuple[int, float, int]] = {}  # equal blocks share one tuple of tensors
    spared: dict[int, float] = {}
    rows = []
    for tensors in stage.unit_tensors:
        if id(tensors) not in known:
            known[id(tensors)] = _unit(tensors, layout, shard)
            spared[id(tensors)] = float8_spares(tensors, layout, shard, element)
        rows.append(known[id(tensors)])
    root, root_share, _ = _unit(stage.root_tensors, layout, shard)
    blocks, shares, feed_forward = zip(*rows, strict=True) if rows else ((), (), ())
    together = flattened_together(stage, layout)
    gathered = tuple(
        element * unit - spared[id(tensors)]
        for unit, tensors in zip(blocks, stage.unit_tensors, strict=True)
    )
    gathered_root = element * root
    if stage.frozen:
        also = [
            _frozen_gathered(tensors, layout, shard, element)
            for tensors in (*stage.frozen_units, stage.frozen_root)
        ]
        gathered = tuple(own + more for own, more in zip(gathered, also, strict=False))
        gathered_root += also[-1]
    if together:
        blocks = tuple(map(sum, zip(blocks, together, strict=True)))
        shares = tuple(own + more / shard for own, more in zip(shares, together, strict=True))
        feed_forward = tuple(map(sum, zip(feed_forward, together, strict=True)))
    return Units(blocks, shares, feed_forward, root, root_share, gathered, gathered_root)


def float8_spares(
    tensors: tuple[TensorClass, ...], layout: Layout, shard: int, element: float
) -> float:
    """Bytes of a gathered block that fp8 spares: its linear layers have 1 byte an element.

    torchao casts each shard before the all-gather and hands the gathered bytes on as the weight
    (torchao/float8/fsdp_utils.py, `fsdp_pre_all_gather` and `fsdp_post_all_gather` of
    `WeightWithDynamicFloat8CastTensor`); torchtitan swaps the blocks' `nn.Linear` layers, not
    embedding, norms, head, routers and grouped experts (components/quantization/float8.py).
    Gradients stay in the compute type.

    >>> projection = TensorClass((4096, 4096), "attention", False, 1)
    >>> float8_spares((projection,), Layout(float8_all_gather=True), 8, 2) / 4096**2
    1.0
    """
    if not layout.float8_all_gather:
        return 0.0
    linear = tuple(t for t in tensors if len(t.shape) > 1 and t.part in ("attention", "mlp"))
    return (element - 1) * _unit(linear, layout, shard)[0]


def _frozen_gathered(
    tensors: tuple[TensorClass, ...], layout: Layout, shard: int, element: float
) -> float:
    """Bytes of a unit's frozen weights once gathered: never in more than they are stored in."""
    size = 0.0
    for tensor in tensors:
        stored = min(element, tensor.stored or element)
        ranks = ranks_of(tensor, shard, layout)
        padded = layout.engine == "fsdp2" and stored >= 1
        rows = math.prod(sharded_shape(tensor.shape, ranks)) * ranks if padded else tensor.elements
        size += stored * rows
    return size


def _unit(tensors: tuple[TensorClass, ...], layout: Layout, shard: int) -> tuple[int, float, int]:
    gathered, share, feed_forward = 0, 0.0, 0
    for tensor in tensors:
        ranks = ranks_of(tensor, shard, layout)
        if tensor.part in ("mlp", "experts", "router"):
            feed_forward += tensor.elements
        if layout.engine == "fsdp2":
            own = math.prod(sharded_shape(tensor.shape, ranks))
            gathered += own * ranks
            share += own
        else:
            gathered += tensor.elements
            share += tensor.elements / ranks
    return gathered, share, feed_forward


def _keeps_shards(layout: Layout) -> bool:
    """FSDP keeps its own weights sharded between steps whether or not it reshards in between."""
    return layout.zero_stage == 3 or layout.engine in ("fsdp1", "fsdp2")


def ranks_of(tensor: TensorClass, shard: int, layout: Layout) -> int:
    """Ranks that hold different parts of it: experts have a smaller data-parallel group.

    Megatron-LM's expert data parallelism: data x context x tensor / (expert x expert tensor)
    (megatron/core/parallel_state.py).
    """
    if not tensor.expert:
        return shard
    return max(1, shard * layout.tensor_parallel // (layout.expert_parallel * layout.expert_tensor))


def sharded_shape(shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """The largest shard of a tensor split on dimension 0, as FSDP2 pads and splits it.

    >>> sharded_shape((8, 14336, 4096), 64)
    (1, 14336, 4096)
    """
    return (-(-shape[0] // ranks), *shape[1:]) if shape else shape
