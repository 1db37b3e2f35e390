"""Bytes that autograd keeps for backward: the saved activations, seen by saved-tensor hooks."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any

import torch

from shardwise.lab.measuring.state import local


class _Kept:
    """What autograd holds in place of a saved tensor; it goes when autograd lets go."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class SavedActivations:
    """Counts saved storages while it is open, each once; parameters and buffers do not count.

    `bytes` is what is kept now, `peak_bytes` the most so far. Forward under it reads a step's
    activations; with backward inside too, recomputation under checkpointing shows in the peak.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._holders: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self.bytes = 0
        self.peak_bytes = 0
        self.tensors: list[tuple[tuple[int, ...], str, int]] = []

    def __enter__(self) -> SavedActivations:
        """Start to watch."""
        self._hooks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching new tensors; those kept are still followed until autograd drops them."""
        self._hooks.__exit__(kind, problem, trace)

    def _pack(self, tensor: torch.Tensor) -> _Kept:
        kept = _Kept(tensor)
        storage = local(tensor).untyped_storage()
        key = storage._cdata
        if not self._is_state(key):
            weakref.finalize(kept, self._drop, key)
            if key not in self._holders:
                size = storage.nbytes()
                self._sizes[key] = size
                self.bytes += size
                self.peak_bytes = max(self.peak_bytes, self.bytes)
                dtype = str(tensor.dtype).removeprefix("torch.")
                self.tensors.append((tuple(tensor.shape), dtype, size))
            self._holders[key] = self._holders.get(key, 0) + 1
        return kept

    def _is_state(self, key: int) -> bool:
        """Asked anew each time: FSDP swaps other parameters in during forward."""
        return any(
            local(tensor).untyped_storage()._cdata == key
            for module in self._model.modules()
            for group in (module._parameters, module._buffers)
            for tensor in group.values()
            if tensor is not None
        )

    def _drop(self, key: int) -> None:
        self._holders[key] -= 1
        if self._holders[key] == 0:
            del self._holders[key]
            self.bytes -= self._sizes.pop(key)

    @staticmethod
    def _unpack(kept: Any) -> torch.Tensor:
        return kept.tensor
