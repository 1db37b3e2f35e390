"""The most bytes alive at once during a step: the CUDA allocator's count, or ours on the CPU.

The CPU has no allocator that keeps a peak, so a dispatch mode follows every storage from the
operator that made it to its end. What C++ allocates without a dispatched operator (scratch space
inside a matrix product, gloo's buffers) is not seen; the figure is of tensors.
"""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwise.lab.measuring.state import local, tensors_in


class Peak:
    """Measures from entry to exit; hand it what is alive already: model, optimizer, batch.

    `start_bytes`, `peak_bytes`, `end_bytes`; `above_start_bytes` is what the step added at its
    highest. `found_bytes` of them were made in C++ (DDP's buckets, FSDP's buffers), so their birth
    was not seen. `source` says who counted.
    """

    def __init__(self, *holding: Any) -> None:
        tensors = [local(tensor) for item in holding for tensor in tensors_in(item)]
        self._tensors = tensors
        devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
        self._cuda = next(iter(devices), None)
        self.source = "CUDA allocator" if self._cuda is not None else "counted tensor storages"
        self.start_bytes = self.peak_bytes = self.end_bytes = self.found_bytes = 0

    @property
    def above_start_bytes(self) -> int:
        """What the step added to what was alive before it, at its highest."""
        return self.peak_bytes - self.start_bytes

    def __enter__(self) -> Peak:
        """Note what is alive and start to follow."""
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)
            torch.cuda.reset_peak_memory_stats(self._cuda)
            self.start_bytes = torch.cuda.memory_allocated(self._cuda)
            return self
        self._live = _LiveStorages(self._tensors)
        self._tensors = []  # or they could not be freed while we count
        self.start_bytes = self._live.bytes
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop and read."""
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)
            self.peak_bytes = torch.cuda.max_memory_allocated(self._cuda)
            self.end_bytes = torch.cuda.memory_allocated(self._cuda)
            return
        self._live.__exit__(kind, problem, trace)
        self.peak_bytes, self.end_bytes = self._live.peak_bytes, self._live.bytes
        self.found_bytes = self._live.found_bytes


class _LiveStorages(TorchDispatchMode):
    """Bytes of all CPU storages seen and not yet gone.

    A storage first met as an operator's argument was made in C++, before (DDP's buckets) or just
    now (FSDP's buffers from the process group): it counts from there, and in `found_bytes`.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.bytes = self.peak_bytes = self.found_bytes = 0
        self._sizes: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        for tensor in tensors:
            self._see(tensor)

    def __enter__(self) -> _LiveStorages:
        """Follow operators, and storages that are resized in place (FSDP frees that way)."""
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resizing()  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Give torch its method back."""
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, then count the storages it made."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        made_before = func is not torch.ops.aten.lift_fresh.default  # torch.tensor() ends with it
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and self._see(leaf) and made_before:
                self.found_bytes += leaf.untyped_storage().nbytes()
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return result

    def _see(self, tensor: torch.Tensor) -> bool:
        """Follow a tensor's storage; whether it was new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if storage.device.type != "cpu":  # DTensor works shapes out on fake tensors: meta storages
            return False
        if key in self._references:
            return False

        def gone(_: Any, key: int = key) -> None:
            self._references.pop(key, None)
            self._resized(key, 0)

        self._references[key] = weakref.ref(storage, gone)
        self._resized(key, storage.nbytes())
        return True

    def _resized(self, key: int, size: int) -> None:
        self.bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _resizing(self) -> Any:
        original = self._resize

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            if storage._cdata in self._references:
                self._resized(storage._cdata, storage.nbytes())
            return result

        return resize_
