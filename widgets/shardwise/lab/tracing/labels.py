"""Names the storages that FSDP2, DDP, checkpointing and optimizers open, where they open them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint

from shardwise.lab.tracing.ledger import (
    ACTIVATIONS,
    BUFFERS_AND_INPUTS,
    COLLECTIVE_BUFFERS,
    GATHERED_PARAMETERS,
    GRADIENTS,
    OPTIMIZER_STATE,
    SHARDED_PARAMETERS,
    TEMPORARIES,
)
from shardwise.lab.tracing.live import LiveStorages, local


def label_model(live: LiveStorages, model: nn.Module) -> None:
    """Parameters and buffers of a model that stands."""
    for parameter in model.parameters():
        live.label(parameter, SHARDED_PARAMETERS)
    for buffer in model.buffers():
        live.label(buffer, BUFFERS_AND_INPUTS)


def label_gradients(live: LiveStorages, model: nn.Module) -> None:
    """Gradients of a model after backward."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            live.label(parameter.grad, GRADIENTS)


def label_optimizer(live: LiveStorages, optimizer: torch.optim.Optimizer) -> None:
    """Every tensor of an optimizer's state."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                live.label(value, OPTIMIZER_STATE)


def watch_gradients(live: LiveStorages, parameters: Any) -> None:
    """Label each gradient when autograd has accumulated it."""
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda p: live.label(p.grad, GRADIENTS) if p.grad is not None else None
            )


@contextmanager
def labelling(live: LiveStorages) -> Iterator[None]:
    """Label storages inside FSDP2, DDP, DTensor, checkpointing, by wrapping their functions."""
    with ExitStack() as stack:
        for owner, name, make in (
            (_fsdp_param_group, "foreach_all_gather", _buffers),
            (_fsdp_param_group, "foreach_all_gather_copy_out", _buffers),
            (_fsdp_param_group, "foreach_reduce", _reduction),
            (_fsdp_param.FSDPParam, "init_all_gather_outputs", _gathered),
            (_fsdp_param.FSDPParam, "init_unsharded_param", _unsharded),
            (_fsdp_param.FSDPParam, "reset_sharded_param", _resharded),
            (DistributedDataParallel, "_pre_forward", _buffers),
            (ShardingPropagator, "_propagate_tensor_meta_non_cached", _aside),
            (checkpoint._recomputation_hook, "__init__", _recomputed),
        ):
            original = getattr(owner, name)
            stack.enter_context(mock.patch.object(owner, name, make(live, original)))
        yield


def _buffers(live: LiveStorages, original: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with live.allocating(COLLECTIVE_BUFFERS):
            return original(*args, **kwargs)

    return run


def _reduction(live: LiveStorages, original: Any) -> Any:
    def run(fsdp_params: Any, unsharded_grads: Any, *args: Any, **kwargs: Any) -> Any:
        for gradient in unsharded_grads:
            live.label(gradient, GRADIENTS)
        # Kept references would outlive the list that FSDP2 clears to free the gradients.
        gradient = None
        with live.allocating(COLLECTIVE_BUFFERS):
            result = original(fsdp_params, unsharded_grads, *args, **kwargs)
        for parameter in fsdp_params:
            if parameter.sharded_param.grad is not None:
                live.label(parameter.sharded_param.grad, GRADIENTS)
        return result

    return run


def _gathered(live: LiveStorages, original: Any) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with live.allocating(GATHERED_PARAMETERS):
            return original(self, *args, **kwargs)

    return run


def _resharded(live: LiveStorages, original: Any) -> Any:
    def run(self: Any) -> None:
        with live.allocating(SHARDED_PARAMETERS):
            original(self)

    return run


def _unsharded(live: LiveStorages, original: Any) -> Any:
    def run(self: Any) -> Any:
        fresh = not hasattr(self, "_unsharded_param")
        result = original(self)
        if fresh:
            watch_gradients(live, [self._unsharded_param])
        return result

    return run


def _aside(live: LiveStorages, original: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with live.standing_aside():
            return original(*args, **kwargs)

    return run


def _recomputed(live: LiveStorages, original: Any) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        pack = self.pack_hook

        def packing(tensor: torch.Tensor) -> Any:
            key = local(tensor).untyped_storage()._cdata
            entry = live.ledger.entries.get(key)
            if entry is not None and entry.part == TEMPORARIES:
                live.ledger.label(key, ACTIVATIONS)
            return pack(tensor)

        self.pack_hook = packing

    return run


@contextmanager
def optimizer_states(live: LiveStorages, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Label what an optimizer opens in `_init_group` (where torch's optimizers make states)."""
    with ExitStack() as stack:
        for part in getattr(optimizer, "parts", (optimizer,)):
            original = getattr(part, "_init_group", None)
            if original is not None:
                run = partial(_labeled, live, original)
                stack.enter_context(mock.patch.object(part, "_init_group", run))
        yield


def _labeled(live: LiveStorages, original: Any, *args: Any, **kwargs: Any) -> Any:
    with live.allocating(OPTIMIZER_STATE):
        return original(*args, **kwargs)
