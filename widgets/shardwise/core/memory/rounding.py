"""What CUDA's allocator adds to many small tensors: each takes whole blocks of 512 bytes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from shardwise.core.layout import Layout
from shardwise.core.memory.allocator import ROUNDING
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.states import ranks_of, sharded_shape
from shardwise.core.memory.tensor_classes import TensorClass
from shardwise.core.optimizers import state_bytes
from shardwise.core.precision import Precision

_MOMENTS = ("adamw", "sgd-momentum", "lion", "muon")
_BY_TENSOR = ("ddp", "zero-redundancy", "fsdp2", "megatron")


class Rounding(NamedTuple):
    """Bytes over what tensors ask for, by when they are there: always, from the first step, in it.

    `parameters` and master weights; `state` of the optimizer, its step counters on the GPU
    included; `step`: the list that a `foreach` optimizer makes.
    """

    parameters: float = 0.0
    state: float = 0.0
    step: float = 0.0


def over(size: float) -> float:
    """Bytes that the allocator adds to one tensor.

    >>> over(1.0), over(512), over(513)
    (511.0, 0, 511)
    """
    return -size % ROUNDING


@lru_cache(maxsize=4096)
def stage_rounding(
    stage: Stage, layout: Layout, precision: Precision, optimizer: tuple[str, str], shard: int
) -> Rounding:
    """The rounding of one stage's states on its fullest rank; gradients' is left out.

    It matters where shards are tiny: GPT-2 over 1024 ranks has 148 tensors of a few hundred
    bytes a rank. Flat buffers (FSDP1, DeepSpeed, Megatron-LM's distributed optimizer) are few
    tensors. FSDP2 gives each parameter's shard a storage of its own (`_init_sharded_param`), while
    sharded gradients are views into their unit's reduce-scatter output. `fused` keeps each
    tensor's step counter on the GPU, others on the CPU (torch/optim/adam.py, `_init_group`).
    """
    by_tensor = layout.engine in _BY_TENSOR
    if not by_tensor or (layout.engine == "megatron" and layout.zero_stage):
        return Rounding()
    parameters = state = step = 0.0
    for tensor in stage.tensors:
        own = shard_elements(tensor, layout, shard)
        parameters += tensor.count * over(precision.parameter_bytes * own)
        if layout.zero_stage != 1:  # there the states of most tensors are on other ranks
            parameters += tensor.count * over(precision.master_bytes * own)
            moment = tensor.count * over(precision.state_bytes * own)
            state += moment * _moments(tensor, optimizer[0])
            step += moment
    if optimizer == ("adamw", "fused") and layout.engine in ("ddp", "fsdp2"):
        state += ROUNDING * sum(tensor.count for tensor in stage.tensors)
    for tensor in stage.frozen:
        element = tensor.stored or precision.parameter_bytes
        parameters += tensor.count * over(element * shard_elements(tensor, layout, shard))
    return Rounding(parameters, state, step if optimizer == ("adamw", "foreach") else 0.0)


def rounding_on_gpu(
    stage: Stage, layout: Layout, precision: Precision, optimizer: tuple[str, str], shard: int
) -> Rounding:
    """The rounding of those states that offload leaves on the GPU."""
    whole = stage_rounding(stage, layout, precision, optimizer, shard)
    if layout.offload_optimizer == "none" and layout.offload_parameters == "none":
        return whole
    kept = layout.offload_parameters == "none" and layout.engine != "fsdp2"
    return Rounding(parameters=whole.parameters if kept else 0.0)


def _moments(tensor: TensorClass, optimizer: str) -> float:
    """Tensors of state as large as this one, for the optimizers that keep such."""
    if optimizer not in _MOMENTS:
        return 0.0
    shape = tensor.shape
    return state_bytes(shape, tensor.part, optimizer, 1.0) / math.prod(shape)


def shard_elements(tensor: TensorClass, layout: Layout, shard: int) -> int:
    """Elements of one tensor of a class on the fullest rank."""
    if layout.engine != "fsdp2":
        return math.prod(tensor.shape)
    return math.prod(sharded_shape(tensor.shape, ranks_of(tensor, shard, layout)))
