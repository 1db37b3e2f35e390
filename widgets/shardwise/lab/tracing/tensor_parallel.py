"""Tensor parallelism with torch's own styles, by either of two published plans.

transformers' plan (`base_model_tp_plan`) copies embedding and norms to every rank and gathers the
logits. torchtitan's (`torchtitan/models/llama3/infra/parallelize.py`, `apply_tp`) splits the
vocabulary of embedding and head, leaves the logits split (loss parallel) and, with sequence
parallelism, splits what stands between the split products along the sequence.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from shardwise.core.errors import ScenarioError
from shardwise.lab.tracing.build import layers_of
from shardwise.lab.tracing.settings import Settings

_STYLES: dict[str, Any] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "replicated_with_grad_allreduce": lambda: _Copied(),
}


def tensor_parallel(model: nn.Module, mesh: DeviceMesh, settings: Settings) -> None:
    """Split linear layers by plan, copy every other parameter to all ranks of the axis."""
    tied = bool(getattr(getattr(model, "config", None), "tie_word_embeddings", False))
    _check(model, mesh.size(), tied and not settings.vocabulary_parallel)
    if settings.sequence_parallel:
        _check_window(model, settings.sequence_length)
    styles = _published(model)
    if all(isinstance(style, _Copied) for style in styles.values()):
        raise ScenarioError(
            "tensor_parallel", mesh.size(), "1 for this architecture",
            "transformers has no plan for it",
        )  # fmt: skip
    if settings.vocabulary_parallel:
        styles |= _vocabulary(model, settings.sequence_parallel)
    if settings.sequence_parallel:
        styles |= _sequence(model, styles)
    parallelize_module(model, mesh, styles)
    if tied:  # the styles made a tensor each
        head = model.get_output_embeddings()  # type: ignore[operator]
        head.weight = model.get_input_embeddings().weight  # type: ignore[operator]


def _check(model: nn.Module, size: int, tied: bool) -> None:
    config = getattr(model, "config", None)
    if tied:
        raise ScenarioError(
            "tensor_parallel", size, "1 with tied embeddings, unless the vocabulary is split",
            "torch's styles would give the head and the embedding a tensor each",
        )  # fmt: skip
    for field in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, field, None)
        if heads is not None and heads % size:
            raise ScenarioError("tensor_parallel", size, f"a divisor of {field} = {heads}")


def _check_window(model: nn.Module, length: int) -> None:
    window = getattr(getattr(model, "config", None), "sliding_window", None)
    if window is not None and window <= length:
        raise ScenarioError(
            "sequence_parallel", True, f"False, or a sequence below the window of {window}",
            "transformers would make the mask from a rank's part of the sequence",
        )  # fmt: skip


def _published(model: nn.Module) -> dict[str, ParallelStyle]:
    plan = _plan_of(model)
    styles: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        style = plan.get(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", _plain(name)))
        if style is not None:
            if style not in _STYLES:
                raise ScenarioError("tensor_parallel", style, ", ".join(_STYLES))
            styles[name] = _STYLES[style]()
        elif next(module.parameters(recurse=False), None) is not None:
            styles[name] = _Copied()
    return styles


def _plan_of(model: nn.Module) -> dict[str, str]:
    base = getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}
    prefix = getattr(model, "base_model_prefix", "")
    plan = {f"{prefix}.{name}": style for name, style in base.items()}
    return plan | dict(getattr(type(model), "_tp_plan", None) or {})


def _plain(name: str) -> str:
    return name.replace("._checkpoint_wrapped_module", "")


def _vocabulary(model: nn.Module, by_sequence: bool) -> dict[str, ParallelStyle]:
    """Embedding and head split over the vocabulary; logits stay split for the parallel loss."""
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    head = model.get_output_embeddings()  # type: ignore[operator]
    between = Shard(1) if by_sequence else Replicate()
    styles: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if module is embedding:
            styles[name] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        elif module is head:
            styles[name] = ColwiseParallel(
                input_layouts=between, output_layouts=Shard(-1), use_local_output=False
            )
    return styles


def _sequence(model: nn.Module, styles: dict[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """Norms between the products see a part of the sequence; attention and MLP gather it."""
    layers = set(layers_of(model))
    names = {name: module for name, module in model.named_modules() if module in layers}
    inner = {name: getattr(m, "_checkpoint_wrapped_module", m) for name, m in names.items()}
    own: dict[str, ParallelStyle] = {}
    for name, style in styles.items():
        parent = name.rpartition(".")[0]
        in_layer = any(_plain(parent) == _plain(layer) for layer in names)
        outside = not any(name.startswith(f"{layer}.") for layer in names)
        if isinstance(style, RowwiseParallel) and not outside:
            own[name] = RowwiseParallel(output_layouts=Shard(1))
        elif isinstance(style, _Copied) and (in_layer or outside):
            own[name] = SequenceParallel(use_local_output=True)
    for name, layer in inner.items():
        path = name if layer is names[name] else f"{name}._checkpoint_wrapped_module"
        for child, _ in layer.named_children():
            if child in ("self_attn", "attention"):
                own[f"{path}.{child}"] = PrepareModuleInput(
                    input_kwarg_layouts={"hidden_states": Shard(1)},
                    desired_input_kwarg_layouts={"hidden_states": Replicate()},
                )
            elif child == "mlp":
                own[f"{path}.{child}"] = PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                )
    return own


class _Copied(ParallelStyle):
    """Replicated parameters that compute on plain tensors (torchtitan's `NoParallel`)."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            return tuple(
                DTensor.from_local(each, mesh, [Replicate()], run_check=False) for each in inputs
            )

        def leave(_: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
            return output.to_local()

        return distribute_module(module, device_mesh, None, enter, leave)
