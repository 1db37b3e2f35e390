"""DeepSpeed on lesson ranks: the library made ready for this rank's device, and what it holds.

DeepSpeed is not a requirement of Shardwise: `pip install deepspeed` brings it.
"""

from __future__ import annotations

import logging
import os
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shardwise.core.errors import ScenarioError

if TYPE_CHECKING:
    import torch

    from shardwise.lab.measuring.figures import Held

HOW_TO_INSTALL = "pip install deepspeed, then restart the notebook"


def installed() -> bool:
    """Whether the library is there; it is not loaded to find out."""
    return find_spec("deepspeed") is not None


def deepspeed_on(device: torch.device) -> Any:
    """The `deepspeed` module, told which device the ranks use and quiet about all but errors.

    On the CPU it stays with gloo: its own shared-memory collectives are compiled at the first
    `initialize` (a minute), and change nothing that a lesson measures.

    Raises:
        ScenarioError: DeepSpeed is not installed here.
    """
    if not installed():
        raise ScenarioError("deepspeed", "not installed", "an installed DeepSpeed", HOW_TO_INSTALL)
    os.environ["DS_ACCELERATOR"] = device.type
    # torch 2.13 renames collectives that DeepSpeed 0.19 still calls by their old names.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed.*")
    import deepspeed

    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def engine_holds(engine: Any, optimizer: torch.optim.Optimizer) -> dict[str, Held]:
    """What this rank holds between steps: parameters, the engine's fp32 copy, optimizer state.

    Under stage 3 a parameter is its share (`ds_tensor`), and whole besides while it is gathered.
    `optimizer` is the one that was handed to `initialize`. Storages that two parts share count in
    the first of them.
    """
    from shardwise.lab.measuring.figures import Held
    from shardwise.lab.measuring.state import held

    own = [part for p in engine.module.parameters() for part in (p, getattr(p, "ds_tensor", p))]
    wrapped = engine.optimizer
    copies = [
        *getattr(wrapped, "single_partition_of_fp32_groups", ()),  # stages 1 and 2
        *getattr(wrapped, "fp32_partitioned_groups_flat", ()),  # stage 3
    ]
    parameters, both = held(own), held([*own, *copies])
    copy = Held(*(b - p for b, p in zip(_fields(both), _fields(parameters), strict=True)))
    state = [t for values in optimizer.state.values() for t in values.values() if hasattr(t, "cpu")]
    return {"parameters": parameters, "fp32 copy": copy, "optimizer state": held(state)}


def _fields(held: Held) -> tuple[int, int, int, int]:
    return held.tensors, held.elements, held.bytes, held.storage_bytes
