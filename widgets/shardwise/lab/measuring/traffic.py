"""Collectives as they are dispatched, and bytes as the system's TCP counters saw them.

`Collectives` sees every way to a process group: torch.distributed's calls, DDP's buckets (made in
C++), FSDP, DTensor's functional collectives and a pipeline's sends and receives.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwise.core.errors import ScenarioError
from shardwise.lab.measuring.figures import Calls

# Operator -> (the collective's usual name, where the full tensor is: argument number or "result").
_OPERATORS: dict[str, tuple[str, int | str]] = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::broadcast_": ("broadcast", 0),
    "c10d::reduce_": ("reduce", 0),
    "c10d::allgather_": ("all_gather", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::allgather_coalesced_": ("all_gather", 0),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 0),
    "c10d::gather_": ("gather", 1),
    "c10d::scatter_": ("scatter", 0),
    "c10d::reduce_scatter_": ("reduce_scatter", 1),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "c10d::alltoall_": ("all_to_all", 1),
    "c10d::alltoall_base_": ("all_to_all", 1),
    "c10d::send": ("send", 0),
    "c10d::recv_": ("recv", 0),
    "c10d::recv_any_source_": ("recv", 0),
    "c10d::barrier": ("barrier", -1),
    "c10d::monitored_barrier_": ("barrier", -1),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_reduce_": ("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced": ("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced_": ("all_reduce", 0),
    "_c10d_functional::broadcast": ("broadcast", 0),
    "_c10d_functional::broadcast_": ("broadcast", 0),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", "result"),
    "_c10d_functional::all_gather_into_tensor_out": ("all_gather", "result"),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all_gather", "result"),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce_scatter", 0),
    "_c10d_functional::all_to_all_single": ("all_to_all", 0),
    "_dtensor::shard_dim_alltoall": ("all_to_all", 0),
}


class Collectives(TorchDispatchMode):
    """Counts collectives while it is open: `.calls` maps a name to `Calls(calls, bytes)`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Calls] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; note it when it is a collective."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor turns itself into collectives on plain tensors
        result = func(*args, **(kwargs or {}))
        found = _OPERATORS.get(func._schema.name) if hasattr(func, "_schema") else None
        if found is not None:
            name, place = found
            value = result if place == "result" else () if place == -1 else args[place]
            before = self.calls.get(name, Calls())
            self.calls[name] = Calls(before.calls + 1, before.bytes + _size(value))
        return result


def _size(value: Any) -> int:
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Wire:
    """Bytes this process's TCP connections sent and received while it was open (gloo, Linux).

    The system counts them (TCP_INFO: tcpi_bytes_sent less tcpi_bytes_retrans, and
    tcpi_bytes_received; include/uapi/linux/tcp.h), so gloo's own headers are included.
    """

    def __init__(self) -> None:
        if not Path("/proc/self/fd").exists():
            raise ScenarioError("wire", os.name, "Linux", "count payloads with Collectives instead")
        self.sent_bytes = self.received_bytes = 0

    def __enter__(self) -> Wire:
        """Read the counters."""
        self._before = _connections()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Read them again; connections opened in between count from zero."""
        for key, (sent, received) in _connections().items():
            sent_before, received_before = self._before.get(key, (0, 0))
            self.sent_bytes += sent - sent_before
            self.received_bytes += received - received_before


_RECEIVED_AT, _SENT_AT, _AGAIN_AT = 128, 200, 208  # offsets in struct tcp_info, u64 each


def _connections() -> dict[int, tuple[int, int]]:
    """(bytes sent, bytes received) of every TCP socket of this process, by inode."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib would open more of them
        with suppress(OSError):
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            received, sent, again = (
                struct.unpack_from("=Q", info, at)[0] for at in (_RECEIVED_AT, _SENT_AT, _AGAIN_AT)
            )
            found[status.st_ino] = (sent - again, received)
    return found
