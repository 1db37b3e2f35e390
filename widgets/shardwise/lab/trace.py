"""Training memory by part and by phase, found by running the real code on fake tensors.

The yardstick for the analytic model: transformers' modules (or any `nn.Module`), torch's own
FSDP2, DDP and tensor parallelism over a process group that only pretends, torch's optimizers, two
steps. Nothing is computed and no memory is taken; what lives is counted storage by storage.

What it cannot see: workspace inside a CUDA kernel (cuBLAS, the scratch of flash attention's
backward), NCCL's own buffers, the CUDA context, and the allocator's fragmentation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.core.errors import ScenarioError
from shardwise.lab.tracing.report import TraceReport
from shardwise.lab.tracing.saved import AliveRow, SavedRow
from shardwise.lab.tracing.settings import Settings, checkpointing

__all__ = ["AliveRow", "SavedRow", "Settings", "TraceReport", "trace"]


def trace(
    model: Any,
    *,
    batch: Callable[[], Any] | None = None,
    device: str = "fake",
    activation_checkpointing: object = "none",
    **settings: Any,
) -> TraceReport:
    """Trace training steps of `model` on one rank and report live bytes by part and phase.

    `model` is a config.json (a path, a dict or a transformers config) or a function without
    arguments that builds an `nn.Module`; `batch` builds the input of such a module (a dict of
    keyword arguments or one tensor). Other settings are the fields of `Settings`; checkpointing is
    `"none"`, `"full"`, `"selective"` or `{"every": k}`. `device="cuda"` runs the same steps on a
    GPU and reads its allocator: totals by phase without parts.

    >>> from torch import nn, zeros
    >>> report = trace(
    ...     lambda: nn.Linear(256, 256, bias=False), batch=lambda: zeros(4, 256),
    ...     engine="none", world=1, precision="fp32",
    ... )
    >>> report.phase_ends["gradients"]["gradients"]
    262144
    """
    checked = Settings(activation_checkpointing=checkpointing(activation_checkpointing), **settings)
    if device == "cuda":
        from shardwise.lab.tracing.gpu import trace_gpu

        return trace_gpu(model, checked, batch)
    if device != "fake":
        raise ScenarioError("device", device, "fake, cuda")
    from shardwise.lab.tracing.fake import trace_fake

    return trace_fake(model, checked, batch)
