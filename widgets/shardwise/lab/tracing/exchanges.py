"""Exchanges between ranks as they run on GPUs, where a CPU's process group would do otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import _collective_utils, placement_types


@contextmanager
def all_to_all_on_gpus() -> Iterator[None]:
    """DTensors move from one split dimension to another by all-to-all, not by gathering all.

    `shard_dim_alltoall` of torch/distributed/tensor/_collective_utils.py gathers the whole tensor
    where the mesh is a CPU's, since Gloo has no all-to-all.
    """
    with ExitStack() as stack:
        for module in (_collective_utils, placement_types):
            if hasattr(module, "shard_dim_alltoall"):
                stack.enter_context(mock.patch.object(module, "shard_dim_alltoall", _exchanged))
        yield


def _exchanged(
    input: torch.Tensor, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int
) -> torch.Tensor:
    """What torch/csrc/distributed/c10d/Functional.cpp allocates: parts, received parts, result."""
    ranks, sizes = mesh.size(mesh_dim), list(input.shape)
    sizes[shard_dim : shard_dim + 1] = [ranks, sizes[shard_dim] // ranks]
    parts = input.view(sizes).movedim(shard_dim, 0).contiguous()
    received = torch.empty_like(parts)
    del parts
    joined = received.movedim(0, gather_dim).contiguous()
    final = list(input.shape)
    final[shard_dim] //= ranks
    final[gather_dim] *= ranks
    return joined.view(final)
