"""Tensors of a stage that get no gradients: frozen ones as stored, and those of idle modules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwise.core.memory.tensor_classes import Degrees, TensorClass, local_shape
from shardwise.core.model import Model, Module
from shardwise.core.quantization import stored_bytes
from shardwise.core.trainable import Trainable

if TYPE_CHECKING:
    from shardwise.core.memory.stages import Stage

FLAT_STATES = ("deepspeed", "megatron", "nanotron")
"""Engines that make flat buffers and states for every weight that requires a gradient."""


def with_idle(
    stage: Stage, model: Model, trainable: Trainable, degrees: Degrees, engine: str
) -> Stage:
    """The stage with the tensors of what does not run.

    FSDP gathers those that are in no block with its root all the same (traced); blocks stay as they
    are.
    """
    if not model.idle:
        return stage
    root: tuple[TensorClass, ...] = ()
    apart: tuple[TensorClass, ...] = ()
    for module in model.idle:
        found = frozen_classes(module, trainable, degrees)
        if module.block is None and engine in ("fsdp1", "fsdp2"):
            root += found
        else:
            apart += found
    idle = counted(apart)
    if engine in FLAT_STATES and trainable.everything:
        return replace(stage, tensors=stage.tensors + idle, idle=idle)
    return replace(
        stage,
        frozen=stage.frozen + idle + counted(root),
        frozen_units=stage.frozen_units or ((),) * len(stage.units),
        frozen_root=stage.frozen_root + root,
        idle=idle,
    )


def counted(tensors: tuple[TensorClass, ...]) -> tuple[TensorClass, ...]:
    """Equal tensors as one with their number.

    >>> one = TensorClass((8, 8), "mlp", False, 1)
    >>> counted((one, one))[0].count
    2
    """
    return tuple(replace(tensor, count=count) for tensor, count in Counter(tensors).items())


def frozen_classes(
    module: Module, trainable: Trainable, degrees: Degrees
) -> tuple[TensorClass, ...]:
    """A module's tensors as frozen ones are stored."""
    found = []
    for tensor in module.tensors:
        stored, statistics = stored_bytes(tensor, trainable, module.block is not None)
        found.append(TensorClass(*local_shape(tensor, *degrees), 1, stored, statistics))
    return tuple(found)
