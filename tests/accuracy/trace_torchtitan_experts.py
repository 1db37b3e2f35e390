"""Counts what torchtitan's own `MoE` saves on every expert-parallel rank, at a stated imbalance.

    pip install --no-deps torchtitan==0.2.2
    python tests/accuracy/trace_torchtitan_experts.py

Writes data/traces/torchtitan_experts.json. Real tensors on the CPU, one process a rank, gloo's
all-to-all, torchtitan's `ExpertParallel`. Only the router's choice is set (torchtitan's own hook
for that, `_debug_force_load_balance`): the first rank's experts are sent `imbalance` times the even
share. Triton's kernel of indices is replaced by torchtitan's own reference for CPUs.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # before Triton's stand-in: it looks for the real one
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.profiler import ProfilerActivity, profile, record_function
from trace_torchtitan import lay_out

TARGET = Path(__file__).parents[2] / "data" / "traces" / "torchtitan_experts.json"
PACKAGES = ("", ".models", ".models.moe", ".distributed")
STUBS = (
    "triton", "triton.language", "torchtitan.models.utils", "torchtitan.tools",
    "torchtitan.tools.logging", "torchtitan.tools.utils",
)  # fmt: skip

# hidden, width of an expert, experts, experts a token, tokens
SMALL = (256, 128, 8, 2, 1024)
FINE = (128, 96, 16, 4, 512)
CASES: list[tuple[tuple[int, ...], int, float, bool]] = [
    (SMALL, 1, 1.0, True),
    (SMALL, 4, 1.0, True),
    (SMALL, 4, 1.5, True),
    (SMALL, 4, 4.0, True),
    (SMALL, 2, 1.5, False),
    (FINE, 2, 1.5, True),
    (FINE, 4, 2.5, False),
]


def torchtitan_experts() -> tuple[Any, Any]:
    """torchtitan's modules `models.moe.moe` and `distributed.expert_parallel`."""
    lay_out(PACKAGES)
    stubs = {name: mock.MagicMock() for name in STUBS}
    sys.modules.update(stubs)
    stubs["torchtitan.tools.utils"]._round_up = lambda x, y: (x + y - 1) // y * y
    stubs["torchtitan.models.utils"].trunc_normal_ = lambda t, **_: nn.init.normal_(t, 0, 0.02)
    kernels = importlib.import_module("torchtitan.models.moe.kernels")
    steps = importlib.import_module("torchtitan.models.moe.utils")
    on_gpu = kernels.generate_permute_indices
    steps.generate_permute_indices = lambda *given: on_gpu(*given, use_cpu=True)
    modules = (
        importlib.import_module("torchtitan.models.moe.moe"),
        importlib.import_module("torchtitan.distributed.expert_parallel"),
    )
    for name in ("triton", "triton.language"):
        del sys.modules[name]
    return modules


def chosen_experts(tokens: int, chosen: int, experts: int, ranks: int, imbalance: float) -> Any:
    """Experts of each token: the first rank's get `imbalance` times the even share."""
    local = experts // ranks
    first = round(tokens * imbalance / ranks)
    own = torch.arange(first * chosen) % local
    others = torch.arange((tokens - first) * chosen) % max(1, experts - local)
    return torch.cat([own, others + (local if ranks > 1 else 0)]).reshape(tokens, chosen)


def layer(shape: tuple[int, ...], ranks: int, imbalance: float, before: bool) -> nn.Module:
    """torchtitan's MoE in bf16 on this rank, its routing set."""
    hidden, width, experts, chosen, tokens = shape
    moe, parallel = torchtitan_experts()
    torch.histc = lambda t, bins, min, max: torch.bincount(t, minlength=bins)  # none on CPUs
    torch.set_default_dtype(torch.bfloat16)
    found: nn.Module = moe.MoE(
        moe.MoEArgs(
            num_experts=experts, top_k=chosen, num_shared_experts=0, score_before_experts=before,
            load_balance_coeff=None, _debug_force_load_balance=True,
        ),
        hidden,
        width,
    )  # fmt: skip
    torch.set_default_dtype(torch.float32)
    found.init_weights(0.02, "cpu")
    if ranks > 1:
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",))
        parallelize_module(found.experts, mesh, parallel.ExpertParallel())
    indices = chosen_experts(tokens, chosen, experts, ranks, imbalance)
    found.router._debug_force_load_balance_routing = lambda scores: (
        indices.clone(), scores.gather(1, indices)
    )  # fmt: skip
    return found


def saved_by(module: nn.Module, inputs: torch.Tensor) -> list[tuple[int, str, str]]:
    """(bytes, shape, dtype) of each storage that autograd saves, the module's own left out."""
    own = {
        (t.to_local() if hasattr(t, "to_local") else t).untyped_storage()._cdata
        for t in (*module.parameters(), *module.buffers())
    }
    seen: dict[int, tuple[int, str, str, Any]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            row = storage.nbytes(), str(tuple(tensor.shape)), str(tensor.dtype)
            seen[storage._cdata] = (*row, storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = module(inputs)
    result.sum().backward()
    return sorted(((size, shape, dtype) for size, shape, dtype, _ in seen.values()), reverse=True)


def backward_peak(module: nn.Module, inputs: torch.Tensor) -> int:
    """Highest bytes in backward over what lived before forward, by torch's memory profile."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = module(inputs)
        with record_function("backward begins"):
            result.backward(torch.ones_like(result))
    events = seen.profiler.kineto_results.events()
    begins = min(event.start_ns() for event in events if event.name() == "backward begins")
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live) if event.start_ns() > begins else peak
    return peak


def run(rank: int, port: int, case: int, results: Any) -> None:
    """One rank of one case."""
    shape, ranks, imbalance, before = CASES[case]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    module = layer(shape, ranks, imbalance, before)
    inputs = torch.randn(1, shape[4], shape[0], dtype=torch.bfloat16, requires_grad=True)
    peak = backward_peak(module, inputs)
    saved = saved_by(module, inputs)
    results.put((rank, saved, peak))
    dist.barrier()
    dist.destroy_process_group()


def record(case: int) -> dict[str, Any]:
    """One case: bytes saved by rank, the first rank's tensors, its peak in backward."""
    shape, ranks, imbalance, before = CASES[case]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    given = [(rank, port, case, results) for rank in range(ranks)]
    workers = [context.Process(target=run, args=args) for args in given]
    for worker in workers:
        worker.start()
    rows = sorted(results.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join(60)
    return {
        "shape": shape, "expert_parallel": ranks, "imbalance": imbalance, "score_before": before,
        "saved_bytes": [sum(size for size, _, _ in saved) for _, saved, _ in rows],
        "saved": rows[0][1], "backward_peak_bytes": rows[0][2],
    }  # fmt: skip


def main() -> None:
    """Count all and write."""
    records = []
    for case in range(len(CASES)):
        records.append(record(case))
        print(CASES[case], records[-1]["saved_bytes"], flush=True)
    TARGET.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
