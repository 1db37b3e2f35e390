"""The training loop that is traced: micro-batches, backward, optimizer step, phase by phase."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.distributed.tensor.parallel import loss_parallel

from shardwise.core.errors import ScenarioError
from shardwise.lab.tracing.settings import Settings

Begin = Callable[[str], None]


def optimizer_of(model: nn.Module, settings: Settings) -> Any:
    """The real optimizer over all parameters that train."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    kind, how = settings.optimizer, settings.optimizer_implementation
    options: dict[str, Any] = {"foreach": how == "foreach", "fused": how == "fused"}
    if kind == "none":
        return None
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, **options)
    if kind == "adafactor":
        return adafactor(parameters)
    if kind == "muon":
        return MuonAndAdamW(model, options)
    momentum = 0.9 if kind == "sgd-momentum" else 0.0
    return torch.optim.SGD(parameters, lr=1e-4, momentum=momentum, **options)


def adafactor(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """transformers' Adafactor with a given learning rate: factors alone, no first moment."""
    from transformers.optimization import Adafactor

    return Adafactor(parameters, lr=1e-4, scale_parameter=False, relative_step=False)


class MuonAndAdamW:
    """torch.optim.Muon over the matrices inside the blocks, then AdamW over all else."""

    def __init__(self, model: nn.Module, options: dict[str, Any]) -> None:
        """Makes both; embeddings and the output head are AdamW's."""
        inner = getattr(model, "module", model)
        outside = [m for m in inner.modules() if isinstance(m, nn.Embedding)]
        head = getattr(inner, "get_output_embeddings", lambda: None)()
        own = {id(p) for m in (*outside, head) if m is not None for p in m.parameters()}
        trained = [p for p in model.parameters() if p.requires_grad]
        hidden = [p for p in trained if p.dim() == 2 and id(p) not in own]
        rest = [p for p in trained if p.dim() != 2 or id(p) in own]
        self.parts: list[torch.optim.Optimizer] = []
        if hidden:
            self.parts.append(torch.optim.Muon(hidden, lr=1e-4))
        if rest:
            self.parts.append(torch.optim.AdamW(rest, lr=1e-4, **options))

    @property
    def state(self) -> dict[Any, Any]:
        """Both states."""
        return {key: value for part in self.parts for key, value in part.state.items()}

    def step(self) -> None:
        """Both steps."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Both sets of gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)


def loss_phase(model: nn.Module, begin: Begin) -> Any:
    """Make a transformers model announce where its loss begins."""
    inner = getattr(model, "module", model)
    function = getattr(inner, "loss_function", None)
    if function is None:
        return contextlib.nullcontext()

    def announced(*args: Any, **kwargs: Any) -> Any:
        begin("loss")
        return function(*args, **kwargs)

    return mock.patch.object(inner, "_loss_function", announced, create=True)


def loss_of(output: Any) -> torch.Tensor:
    """The loss in a model's output, or the sum of a plain tensor."""
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    if isinstance(output, torch.Tensor):
        return output if output.dim() == 0 else output.sum()
    raise ScenarioError("model", type(output).__name__, "a model that returns a loss or a tensor")


def micro_step(
    model: nn.Module,
    batch: Any,
    settings: Settings,
    computing: Any,
    begin: Begin,
    ended: Callable[[str], None],
) -> None:
    """One micro-batch: forward and loss (inside `computing`), backward."""
    begin("forward")
    with loss_phase(model, begin), computing:
        output = model(**batch) if isinstance(batch, dict) else model(batch)
        loss = loss_of(output)
    if not settings.hold_output:
        del output
    ended("forward")
    begin("backward")
    loss.backward()
    ended("backward")


def synchronizes(model: nn.Module, last: bool) -> Any:
    """DDP reduces gradients in the last micro-batch only; FSDP2 in each (its default)."""
    if isinstance(model, nn.parallel.DistributedDataParallel) and not last:
        return model.no_sync()
    return contextlib.nullcontext()


def splitting_logits(settings: Settings) -> Any:
    """torch's parallel loss where the logits stay split over the vocabulary."""
    return loss_parallel() if settings.vocabulary_parallel else contextlib.nullcontext()
