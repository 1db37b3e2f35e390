"""Traces a run on fake tensors over a fake process group: no GPU, no memory."""

from __future__ import annotations

import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise.core.errors import ScenarioError
from shardwise.lab.tracing import labels, steps, wrap
from shardwise.lab.tracing.autocast import Autocast
from shardwise.lab.tracing.build import batch_of, from_config
from shardwise.lab.tracing.exchanges import all_to_all_on_gpus
from shardwise.lab.tracing.kernels import Kernels
from shardwise.lab.tracing.ledger import ACTIVATIONS, BUFFERS_AND_INPUTS, TEMPORARIES, Ledger
from shardwise.lab.tracing.live import LiveStorages
from shardwise.lab.tracing.replicate import replicated
from shardwise.lab.tracing.report import TraceReport
from shardwise.lab.tracing.saved import alive_rows
from shardwise.lab.tracing.settings import Settings
from shardwise.lab.tracing.tensor_parallel import tensor_parallel

DEVICE = torch.device("cpu")


@contextmanager
def fake_group(settings: Settings) -> Iterator[None]:
    """A process group of the asked size that answers every collective at once."""
    if dist.is_initialized():
        raise ScenarioError(
            "world", settings.world, "no process group alive", "trace starts its own"
        )
    hook = sys.excepthook  # a process group puts its own in place
    dist.init_process_group(
        "fake", rank=settings.rank, world_size=settings.world, store=FakeStore()
    )
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def _meshes(settings: Settings) -> dict[str, DeviceMesh]:
    # Before the fake mode: a mesh reads its own ranks as real numbers.
    mesh = init_device_mesh(
        DEVICE.type,
        (
            settings.replicate,
            settings.data_parallel // settings.replicate,
            settings.tensor_parallel,
        ),
        mesh_dim_names=("replicate", "shard", "tensor"),
    )
    data = mesh["replicate", "shard"] if settings.replicate > 1 else mesh["shard"]
    return {"data": data, "tensor": mesh["tensor"]}


@contextmanager
def real_meshes() -> Iterator[None]:
    """Meshes that FSDP2 joins from two axes keep real rank numbers."""
    join = DeviceMesh._concatenate

    def joined(meshes: list[DeviceMesh]) -> DeviceMesh:
        with unset_fake_temporarily():
            return join(meshes)

    with mock.patch.object(DeviceMesh, "_concatenate", staticmethod(joined)):
        yield


@contextmanager
def honest_masks() -> Iterator[None]:
    """transformers' masks as outside of tracing.

    It takes fake tensors for a compiler's trace and then builds a packed-sequence mask that a real
    step without packed sequences does not build.
    """
    try:
        from transformers import masking_utils
    except ImportError:
        yield
        return
    with mock.patch.object(masking_utils, "find_packed_sequence_indices", lambda ids: None):
        yield


# As many tokens have to stand for pictures as there are features: fake token ids have no values.
UNCHECKED = {"TRANSFORMERS_DISABLE_TORCH_CHECK": "1"}


class FakeRun:
    """One traced run."""

    def __init__(self, model: Any, settings: Settings, batch: Any) -> None:
        """Prepare; nothing runs yet."""
        self.source = model
        self.settings = settings
        self.batch = batch
        self.ledger = Ledger(settings.block_bytes)
        self.live = LiveStorages(self.ledger)
        self.autocast = Autocast() if settings.precision == "autocast" else None
        self.kernels = Kernels(settings.attention, self.autocast)
        self.step_totals: dict[str, tuple[int, int]] = {}
        self._suffix = ""

    def trace(self) -> TraceReport:
        """Build, wrap, run the steps, report."""
        started = time.perf_counter()
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(fake_group(self.settings))
            self.meshes = _meshes(self.settings)
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            stack.enter_context(self.kernels.installed())
            stack.enter_context(honest_masks())
            stack.enter_context(mock.patch.dict(os.environ, UNCHECKED))
            stack.enter_context(real_meshes())
            stack.enter_context(all_to_all_on_gpus())
            stack.enter_context(self.autocast.recomputing() if self.autocast else nullcontext())
            model = self._build()
            parameters = sum(p.numel() for p in model.parameters())
            self._wrap(model)
            gc.collect()
            with self.live.watching(model), labels.labelling(self.live):
                steady = self._run(model)
            return self._report(steady, parameters, time.perf_counter() - started)

    def _build(self) -> nn.Module:
        if isinstance(self.source, nn.Module):
            raise ScenarioError(
                "model", type(self.source).__name__,
                "a config, or a function that builds the module",
                "a module built outside holds real memory",
            )  # fmt: skip
        if callable(self.source) and not hasattr(self.source, "model_type"):
            return self.source().train()
        return from_config(self.source, self.settings)

    def _wrap(self, model: nn.Module) -> None:
        settings = self.settings
        wrap.checkpoint_layers(model, settings)
        if settings.tensor_parallel > 1:
            tensor_parallel(model, self.meshes["tensor"], settings)
        if settings.engine == "fsdp2":
            wrap.shard(model, settings, self.meshes["data"])
        labels.label_model(self.live, model)
        if settings.engine != "fsdp2":
            labels.watch_gradients(self.live, model.parameters())

    def _run(self, model: nn.Module) -> int:
        settings, live = self.settings, self.live
        if settings.engine == "ddp":
            with live.allocating(labels.COLLECTIVE_BUFFERS):
                model = replicated(model, settings.gradient_as_bucket_view)
        optimizer = steps.optimizer_of(model, settings)
        with live.allocating(BUFFERS_AND_INPUTS):
            inner = getattr(model, "module", model)
            batch = self.batch() if self.batch else batch_of(inner, settings, DEVICE)
        self._begin("init")
        steady = 0
        for step in range(settings.steps):
            self._suffix = "" if step == settings.steps - 1 else f" (step {step + 1})"
            self._step(model, optimizer, batch, last=step == settings.steps - 1)
            steady = self.ledger.total_bytes
        self.ledger.finish()
        return steady

    def _step(self, model: nn.Module, optimizer: Any, batch: Any, last: bool) -> None:
        settings = self.settings
        suffix = self._suffix
        if last:
            self.ledger.watch_highest()
        for micro in range(settings.micro_batches):
            self._suffix = suffix + (f" {micro + 1}" if micro else "")
            self.live.saved.open = last and micro == 0
            sums = steps.synchronizes(model, micro == settings.micro_batches - 1)
            with sums, steps.splitting_logits(settings):
                computing = self.autocast.forward_pass() if self.autocast else nullcontext()
                steps.micro_step(model, batch, settings, computing, self._begin, self._ended)
        self._suffix = suffix
        labels.label_gradients(self.live, model)
        self._begin("gradients")
        if optimizer is not None:
            with labels.optimizer_states(self.live, optimizer):
                self._begin("optimizer")
                optimizer.step()
            labels.label_optimizer(self.live, optimizer)
            optimizer.zero_grad(set_to_none=True)
        else:
            model.zero_grad(set_to_none=True)
        self._begin("steady")

    def _begin(self, phase: str) -> None:
        self.ledger.begin(phase + self._suffix)

    def _ended(self, phase: str) -> None:
        if phase == "forward":
            self.live.saved.open = False
            # What outlives the forward pass is kept for backward (inputs of checkpoints too).
            self.ledger.relabel_all(TEMPORARIES, ACTIVATIONS)

    def _report(self, steady: int, parameters: int, seconds: float) -> TraceReport:
        windows = self.ledger.windows
        last = {name: w for name, w in windows.items() if "(step" not in name}
        running = {name: w for name, w in windows.items() if name != "init"}
        peak_phase = max(running, key=lambda n: (running[n].peak_bytes, n in last))
        return TraceReport(
            settings=self.settings,
            method="fake tensors",
            phases={name: w.peak_parts for name, w in last.items()},
            phase_ends={name: w.end_parts for name, w in last.items()},
            steps={n: (w.peak_bytes, sum(w.end_parts.values())) for n, w in windows.items()},
            peak_bytes=windows[peak_phase].peak_bytes,
            peak_phase=peak_phase,
            steady_bytes=steady,
            saved_by_module=self.live.saved.rows(),
            alive_at_peak=alive_rows(self.ledger.alive),
            attention_ran=dict(self.kernels.ran),
            parameters=parameters,
            seconds=seconds,
        )


def trace_fake(model: Any, settings: Settings, batch: Callable[[], Any] | None) -> TraceReport:
    """Trace on fake tensors."""
    return FakeRun(model, settings, batch).trace()
