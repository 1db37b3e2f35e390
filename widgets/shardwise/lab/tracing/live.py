"""Watches every storage that fake tensors open, resize and drop, and enters it in a ledger."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwise.lab.tracing.ledger import (
    ACTIVATIONS,
    GATHERED_PARAMETERS,
    GRADIENTS,
    SHARDED_PARAMETERS,
    TEMPORARIES,
    Entry,
    Ledger,
)
from shardwise.lab.tracing.saved import SavedTable

_NEVER_ACTIVATIONS = {SHARDED_PARAMETERS, GATHERED_PARAMETERS, GRADIENTS}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose storage this rank holds: a DTensor's local part, else itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


class LiveStorages(TorchDispatchMode):
    """A dispatch mode that keeps a `Ledger` of the storages behind all dispatched results.

    Only plain tensors count: a DTensor stands aside so that its local operators are seen instead
    (counting the DTensor itself would count optimizer state at its global size).
    """

    def __init__(self, ledger: Ledger) -> None:
        """Watch for this ledger."""
        super().__init__()
        self.ledger = ledger
        self.part = TEMPORARIES
        self.saved = SavedTable()
        self.paused = False
        self._references: dict[int, weakref.ref[Any]] = {}
        self._names: dict[torch.nn.Module, str] = {}
        self._modules: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, then enter the storages of its results."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if not self.paused:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self.see(leaf, self.part, str(func))
        return result

    def see(self, tensor: torch.Tensor, part: str, operator: str = "") -> None:
        """Enter a tensor's storage unless it is known."""
        tensor = local(tensor)
        if tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._references:
            return
        maker = self._modules[-1] if self._modules else ""
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        self.ledger.open(key, Entry(storage.nbytes(), part, maker, operator, shape, dtype))

        def gone(_: Any, key: int = key) -> None:
            self._references.pop(key, None)
            self.ledger.close(key)

        self._references[key] = weakref.ref(storage, gone)

    def label(self, tensor: torch.Tensor, part: str) -> None:
        """Say which part a tensor's storage belongs to."""
        tensor = local(tensor)
        self.see(tensor, part)
        key = tensor.untyped_storage()._cdata
        if key in self.ledger.entries:
            self.ledger.label(key, part)

    @contextmanager
    def allocating(self, part: str) -> Iterator[None]:
        """Storages opened inside belong to `part`."""
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.part = before

    @contextmanager
    def standing_aside(self) -> Iterator[None]:
        """Nothing opened inside is entered (shape propagation at global size, for example)."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    @contextmanager
    def watching(self, model: torch.nn.Module) -> Iterator[None]:
        """Watch storage resizes, the module that runs, and what autograd saves."""
        self._names = {child: name for name, child in model.named_modules()}
        before = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resizing(before)  # type: ignore[method-assign]
        handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            with self, torch.autograd.graph.saved_tensors_hooks(self.pack, _same):
                yield
        finally:
            torch.UntypedStorage.resize_ = before  # type: ignore[method-assign]
            for handle in handles:
                handle.remove()

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """A saved-tensor hook: what autograd keeps for backward is an activation."""
        held = local(tensor)
        if held.device.type == "meta":
            return tensor
        key = held.untyped_storage()._cdata
        entry = self.ledger.entries.get(key)
        if entry is None:
            return tensor
        if entry.part == TEMPORARIES:
            self.ledger.label(key, ACTIVATIONS)
            self.ledger.refresh_peak()
        if entry.part not in _NEVER_ACTIVATIONS:
            self.saved.note(key, entry, held, self._modules[-1] if self._modules else "")
        return tensor

    def _resizing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def resize_(storage: torch.UntypedStorage, number_bytes: int) -> Any:
            result = original(storage, number_bytes)
            if storage._cdata in self.ledger.entries:
                self.ledger.resize(storage._cdata, number_bytes)
            return result

        return resize_

    def _enter(self, module: torch.nn.Module, *_: Any) -> None:
        self._modules.append(f"{self._names.get(module, '')}|{type(module).__name__}")

    def _leave(self, *_: Any) -> None:
        self._modules.pop()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
