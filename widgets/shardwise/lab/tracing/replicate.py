"""DistributedDataParallel on fake tensors: torch's own reducer, without what reads real data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def replicated(model: nn.Module, views: bool = False) -> nn.parallel.DistributedDataParallel:
    """DDP with its real reducer and buckets; `views`: gradients are views of the buckets.

    Three things read data that fake tensors don't have and change no peak: the broadcast of
    the first weights, the collective's answer (in place, in the bucket) and the exchange of bucket
    indices when buckets are built again in gradient order (the same bytes; both live for a moment
    before the second forward, where nothing else does, so it is no peak).
    """
    wrapped = nn.parallel.DistributedDataParallel(
        model, init_sync=False, gradient_as_bucket_view=views
    )
    wrapped.register_comm_hook(None, _answered)
    wrapped.reducer = _Reducer(wrapped.reducer)
    return wrapped


def _answered(_, bucket):  # type: ignore[no-untyped-def]
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class _Reducer:
    """torch's reducer that keeps its first buckets."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False
