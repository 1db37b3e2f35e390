"""The same steps on a real GPU, measured with CUDA's caching allocator.

Totals only: the allocator knows no parts. Under torchrun every rank calls `trace` and gets its own
figures; without it, one rank with a world of 1.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

from shardwise.core.errors import ScenarioError
from shardwise.lab.tracing import steps, wrap
from shardwise.lab.tracing.build import batch_of, from_config
from shardwise.lab.tracing.report import TraceReport
from shardwise.lab.tracing.settings import Settings
from shardwise.lab.tracing.tensor_parallel import tensor_parallel

ALLOCATED = "allocated"
_KERNELS = {
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "math": [SDPBackend.MATH],
    "eager": [SDPBackend.MATH],
}


@contextlib.contextmanager
def _group(settings: Settings, device: torch.device) -> Iterator[None]:
    if settings.engine == "none" and settings.world == 1:
        yield
        return
    started = not dist.is_initialized()
    if started:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0" if settings.world == 1 else "29500")
        dist.init_process_group(
            "nccl",
            rank=int(os.environ.get("RANK", 0)),
            world_size=int(os.environ.get("WORLD_SIZE", 1)),
            device_id=device,
        )
    try:
        if dist.get_world_size() != settings.world:
            raise ScenarioError("world", settings.world, f"{dist.get_world_size()}, as launched")
        yield
    finally:
        if started:
            dist.destroy_process_group()


class GpuRun:
    """One measured run."""

    def __init__(self, model: Any, settings: Settings, batch: Any) -> None:
        """Prepare; nothing runs yet."""
        if not torch.cuda.is_available():
            raise ScenarioError("device", "cuda", "fake on this machine", "torch sees no GPU")
        self.source, self.settings, self.batch = model, settings, batch
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        self.totals: dict[str, tuple[int, int]] = {}
        self._phase = ""
        self._suffix = ""

    def trace(self) -> TraceReport:
        """Build, wrap, run the steps, report."""
        started = time.perf_counter()
        torch.cuda.set_device(self.device)
        with _group(self.settings, self.device), sdpa_kernel(_KERNELS[self.settings.attention]):
            # Bytes that lived before (other models in the process) are no part of the trace.
            self.before = torch.cuda.memory_allocated(self.device)
            with self.device:
                model = self._build()
            parameters = sum(p.numel() for p in model.parameters())
            steady = self._run(self._wrap(model))
        return self._report(steady, parameters, time.perf_counter() - started)

    def _build(self) -> nn.Module:
        if callable(self.source) and not hasattr(self.source, "model_type"):
            return self.source().train()
        return from_config(self.source, self.settings)

    def _wrap(self, model: nn.Module) -> nn.Module:
        settings = self.settings
        wrap.checkpoint_layers(model, settings)
        if settings.engine == "none" and settings.tensor_parallel == 1:
            return model
        mesh = init_device_mesh(
            "cuda",
            (
                settings.replicate,
                settings.data_parallel // settings.replicate,
                settings.tensor_parallel,
            ),
            mesh_dim_names=("replicate", "shard", "tensor"),
        )
        if settings.tensor_parallel > 1:
            tensor_parallel(model, mesh["tensor"], settings)
        if settings.engine == "fsdp2":
            data = mesh["replicate", "shard"] if settings.replicate > 1 else mesh["shard"]
            wrap.shard(model, settings, data)
        if settings.engine == "ddp":
            return nn.parallel.DistributedDataParallel(model, device_ids=[self.device.index])
        return model

    def _run(self, model: nn.Module) -> int:
        settings = self.settings
        optimizer = steps.optimizer_of(model, settings)
        with self.device:
            inner = getattr(model, "module", model)
            batch = self.batch() if self.batch else batch_of(inner, settings, self.device)
        self._begin("init")
        steady = 0
        for step in range(settings.steps):
            self._suffix = "" if step == settings.steps - 1 else f" (step {step + 1})"
            self._step(model, optimizer, batch)
            steady = self._allocated()
        self._end()
        return steady

    def _step(self, model: nn.Module, optimizer: Any, batch: Any) -> None:
        suffix = self._suffix
        for micro in range(self.settings.micro_batches):
            self._suffix = suffix + (f" {micro + 1}" if micro else "")
            cast = self.settings.precision == "autocast"
            computing = torch.autocast("cuda", torch.bfloat16, enabled=cast)
            sums = steps.synchronizes(model, micro == self.settings.micro_batches - 1)
            with sums, steps.splitting_logits(self.settings):
                steps.micro_step(
                    model, batch, self.settings, computing, self._begin, lambda phase: None
                )
        self._suffix = suffix
        self._begin("gradients")
        if optimizer is not None:
            self._begin("optimizer")
            optimizer.step()
        model.zero_grad(set_to_none=True)
        self._begin("steady")

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) - self.before

    def _begin(self, phase: str) -> None:
        self._end()
        self._phase = phase + self._suffix
        torch.cuda.reset_peak_memory_stats(self.device)

    def _end(self) -> None:
        if self._phase:
            torch.cuda.synchronize(self.device)
            peak = torch.cuda.memory_stats(self.device)["allocated_bytes.all.peak"] - self.before
            self.totals[self._phase] = (peak, self._allocated())

    def _report(self, steady: int, parameters: int, seconds: float) -> TraceReport:
        last = {name: both for name, both in self.totals.items() if "(step" not in name}
        running = {name: peak for name, (peak, _) in self.totals.items() if name != "init"}
        peak_phase = max(running, key=lambda name: (running[name], name in last))
        return TraceReport(
            settings=self.settings,
            method="CUDA allocator",
            phases={name: {ALLOCATED: peak} for name, (peak, _) in last.items()},
            phase_ends={name: {ALLOCATED: end} for name, (_, end) in last.items()},
            steps=self.totals,
            peak_bytes=running[peak_phase],
            peak_phase=peak_phase,
            steady_bytes=steady,
            saved_by_module=(),
            alive_at_peak=(),
            attention_ran={},
            parameters=parameters,
            seconds=seconds,
        )


def trace_gpu(model: Any, settings: Settings, batch: Callable[[], Any] | None) -> TraceReport:
    """Measure on this process's GPU."""
    return GpuRun(model, settings, batch).trace()
