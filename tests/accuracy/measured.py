"""Runs the same training step with real CPU memory and reads torch's memory profile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore


def model_of(config: dict[str, Any], dtype: torch.dtype) -> torch.nn.Module:
    """The model in real memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    values = dict(config)
    found = AutoConfig.for_model(
        values.pop("model_type"), **values, use_cache=False, attn_implementation="eager"
    )
    return AutoModelForCausalLM.from_config(found, dtype=dtype).train()


def second_step_bytes(
    model: torch.nn.Module, shape: tuple[int, int], how: str, warm: int = 1
) -> int:
    """Highest bytes that the step after `warm` others adds to what lived before it."""
    optimizer = torch.optim.AdamW(
        model.parameters(), foreach=how == "foreach", fused=how == "fused"
    )
    tokens = torch.zeros(shape, dtype=torch.int64)
    labels = torch.zeros_like(tokens)

    def step() -> None:
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(warm):
        step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    live = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def _copy_in(gradients: list[torch.Tensor], buffer: torch.Tensor, world: int) -> None:
    """CUDA's one-kernel `_chunk_cat`; the CPU's first makes padded copies of every gradient."""
    rows = buffer.view(world, -1)
    start = 0
    for gradient in gradients:
        width = -(-gradient.shape[0] // world) * gradient[0].numel()
        for row, chunk in zip(rows, gradient.chunk(world), strict=False):
            row[start : start + chunk.numel()].copy_(chunk.reshape(-1))
        start += width


@contextmanager
def real_ranks(world: int, rank: int) -> Iterator[None]:
    """A process group that answers at once, so that no backend's own copies are measured."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        with mock.patch.object(_fsdp_collectives, "foreach_reduce_scatter_copy_in", _copy_in):
            yield
    finally:
        dist.destroy_process_group()


def sharded_bytes(
    config: dict[str, Any], shape: tuple[int, int], world: int, rank: int, reshard: bool
) -> int:
    """The second step of one rank with FSDP2's mixed precision, in real memory."""
    with real_ranks(world, rank):
        model = model_of(config, torch.float32)
        mesh = init_device_mesh("cpu", (world,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        root = {} if reshard else {"reshard_after_forward": False}
        fully_shard(model, mesh=mesh, mp_policy=policy, **root)
        return second_step_bytes(model, shape, "foreach")


def replicated_bytes(folder: Path, config: dict[str, Any], shape: tuple[int, int]) -> int:
    """A step of real DDP over gloo with one rank, after its buckets were built again."""
    file = f"file://{folder / 'rendezvous'}"
    dist.init_process_group("gloo", init_method=file, rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(model_of(config, torch.float32))
        return second_step_bytes(model, shape, "foreach", warm=2)
    finally:
        dist.destroy_process_group()
