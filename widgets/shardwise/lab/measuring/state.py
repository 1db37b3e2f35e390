"""Bytes of parameters, gradients, buffers and optimizer state that this rank really holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from shardwise.lab.measuring.figures import Held, State


def state(model: torch.nn.Module, optimizer: Any = None) -> State:
    """Count the tensors of a model and its optimizer on this rank, each storage once.

    Of a DTensor the local shard counts. Tied weights and optimizers that wrap another
    (ZeroRedundancyOptimizer) are counted once. Optimizer state includes scalars such as `step`.
    """
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    return State(
        parameters=held(parameters),
        gradients=held(gradients),
        optimizer=held(_optimizer_tensors(optimizer)),
        buffers=held(model.buffers()),
    )


def held(tensors: Iterable[torch.Tensor]) -> Held:
    """Sum tensors up, leaving out those that share their elements with one already counted."""
    seen: set[tuple[int, int, int]] = set()
    storages: dict[int, int] = {}
    elements = size = 0
    for tensor in map(local, tensors):
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.storage_offset(), tensor.numel())
        if key in seen or tensor.numel() == 0:
            continue
        seen.add(key)
        storages[storage._cdata] = storage.nbytes()
        elements += tensor.numel()
        size += tensor.numel() * tensor.element_size()
    return Held(len(seen), elements, size, sum(storages.values()))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a DTensor that lies on this rank; any other tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a model, an optimizer, a tensor or nested containers of them."""
    if isinstance(value, torch.Tensor):
        yield value
        if value.is_leaf and value.grad is not None:
            yield value.grad
    elif isinstance(value, torch.nn.Module):
        for tensor in (*value.parameters(), *value.buffers()):
            yield from tensors_in(tensor)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _optimizer_tensors(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def _optimizer_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """State of the optimizer and of the one it wraps, if any."""
    while optimizer is not None:
        for of_parameter in dict(optimizer.state).values():
            yield from tensors_in(of_parameter)
        optimizer = getattr(optimizer, "optim", None)
