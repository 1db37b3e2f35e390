"""Applies activation checkpointing and FSDP2, as their documentation does it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from shardwise.lab.tracing.build import layers_of
from shardwise.lab.tracing.settings import Settings

aten = torch.ops.aten
_KEPT = {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}
_PRODUCTS = {aten.mm.default, aten.addmm.default}  # addmm: a layer with a bias


def checkpoint_layers(model: nn.Module, settings: Settings) -> None:
    """Wrap the layers that recompute: all (`full`, `selective`) or every k-th, from the first."""
    kind = settings.activation_checkpointing
    if kind == "none":
        return
    every = kind[1] if isinstance(kind, tuple) else 1
    wrap = functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    if kind == "selective":
        wrap = functools.partial(wrap, context_fn=_selective_contexts)
    chosen = set(layers_of(model)[::every])
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in chosen:
                setattr(parent, name, wrap(child))


def _selective_contexts() -> Any:
    """Keep attention outputs and every second matrix product, as torchtitan's `selective: op`."""
    seen = {"forward": 0, "recompute": 0}

    def policy(ctx: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if func in _PRODUCTS:
            phase = "recompute" if ctx.is_recompute else "forward"
            seen[phase] += 1
            kept = seen[phase] % 2 == 1
        else:
            kept = func in _KEPT
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def shard(model: nn.Module, settings: Settings, mesh: DeviceMesh) -> None:
    """`fully_shard` each layer, then the root (embedding, head, final norm)."""
    policy = MixedPrecisionPolicy()
    if settings.precision == "fsdp-mixed":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": settings.reshard_after_forward,
        "mp_policy": policy,
    }
    for layer in layers_of(model):
        fully_shard(layer, **options)
    if settings.reshard_after_forward:
        del options["reshard_after_forward"]  # FSDP2's default keeps the root's parameters
    fully_shard(model, **options)
