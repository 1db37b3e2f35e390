"""Tensor parallelism with torch's own styles, by the plan that transformers publishes."""

from __future__ import annotations

import re
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from shardwise.core.errors import ScenarioError

_STYLES: dict[str, Any] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
}


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split linear layers by plan, copy every other parameter to all ranks of the axis."""
    _check(model, mesh.size())
    plan = _plan_of(model)
    styles: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        plain = name.replace("._checkpoint_wrapped_module", "")
        style = plan.get(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", plain))
        if style is not None:
            if style not in _STYLES:
                raise ScenarioError("tensor_parallel", style, ", ".join(_STYLES))
            styles[name] = _STYLES[style]()
        elif next(module.parameters(recurse=False), None) is not None:
            styles[name] = _Copied()
    if all(isinstance(style, _Copied) for style in styles.values()):
        raise ScenarioError(
            "tensor_parallel", mesh.size(), "1 for this architecture",
            "transformers has no plan for it",
        )  # fmt: skip
    parallelize_module(model, mesh, styles)


def _check(model: nn.Module, size: int) -> None:
    config = getattr(model, "config", None)
    if getattr(config, "tie_word_embeddings", False):
        raise ScenarioError(
            "tensor_parallel", size, "1 with tied embeddings",
            "torch's styles would give the head and the embedding a tensor each",
        )  # fmt: skip
    for field in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, field, None)
        if heads is not None and heads % size:
            raise ScenarioError("tensor_parallel", size, f"a divisor of {field} = {heads}")


def _plan_of(model: nn.Module) -> dict[str, str]:
    base = getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}
    prefix = getattr(model, "base_model_prefix", "")
    plan = {f"{prefix}.{name}": style for name, style in base.items()}
    return plan | dict(getattr(type(model), "_tp_plan", None) or {})


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
