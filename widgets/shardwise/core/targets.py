"""Which linear layers an adapter sits on, by peft's names or by what the layer reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from shardwise.core.errors import unknown_key
from shardwise.core.model import Model
from shardwise.core.structure import Tensor
from shardwise.core.trainable import FIELD

_EVERY = ("default", "all-linear")
_ALIASES = ("q", "k", "v", "o", "gate", "up", "down")
_BY_ARCHITECTURE: Mapping[str, tuple[str, ...]] = {
    "T5": ("q", "v"),
    "GPT2": ("c_attn",),
    "Bloom": ("query_key_value",),
    "GPTNeoX": ("query_key_value",),
    "Falcon": ("query_key_value",),
    "Bert": ("query", "value"),
    "Roberta": ("query", "value"),
    "XLMRoberta": ("query", "value"),
    "PhiFor": ("q_proj", "v_proj", "fc1", "fc2"),
    "Phi3": ("qkv_proj",),
}


def check_targets(model: Model, targets: tuple[str, ...]) -> None:
    """Refuse targets that the model does not have.

    Raises:
        ScenarioError: names the linear layers that the model has.
    """
    for target in targets:
        if not any(is_target(t, model, (target,)) for t in linears(model)):
            leaves = dict.fromkeys(_leaf(tensor) for tensor in linears(model))
            allowed = [*_EVERY, *_ALIASES, *leaves]
            raise unknown_key(f"{FIELD}.lora.targets", target, allowed)


@lru_cache(maxsize=64)
def linears(model: Model) -> tuple[Tensor, ...]:
    """The linear layers' weights that an adapter can sit on: not experts, router, head.

    peft's `all-linear` takes every nn.Linear but the output head. transformers 5 holds routed
    experts and routers as plain parameters, which it does not count; where peft still finds a name
    for them (Mixtral, DeepSeek) name the layers instead of `all-linear`.
    """
    return tuple(
        tensor
        for module in model.modules
        for tensor in module.tensors
        if module.block is not None
        and len(tensor.shape) == 2
        and (tensor.part in ("attention", "mlp") or _leaf(tensor) == "shared_expert_gate")
        and tensor.name.endswith(".weight")
        and not is_table(tensor)
    )


@lru_cache(maxsize=64)
def among_linears(model: Model) -> frozenset[Tensor]:
    """The same weights to look one up: made once, since a split asks for every module."""
    return frozenset(linears(model))


def is_table(tensor: Tensor) -> bool:
    """Whether it is looked up, not multiplied by: T5's relative positions."""
    return "relative_attention_bias" in tensor.name


def _leaf(tensor: Tensor) -> str:
    return tensor.name.removesuffix(".weight").rpartition(".")[2]


def swapped(model: Model) -> bool:
    """Whether linear weights are stored (in, out): GPT-2's Conv1D."""
    return model.architecture.startswith("GPT2")


def reads(tensor: Tensor, model: Model) -> str:
    """Which activation a linear layer reads: attention/MLP input, attention output, MLP product."""
    column = "row" if swapped(model) else "column"
    if tensor.tensor_parallel == column or tensor.tensor_parallel == "replicated":
        return f"{tensor.part} input"
    return f"{tensor.part} result"


def _default(model: Model) -> tuple[str, ...]:
    """peft's default targets (peft/utils/constants.py); `qkv_proj` for Phi-3, which has none."""
    for start, names in _BY_ARCHITECTURE.items():
        if model.architecture.startswith(start):
            return names
    return ("q_proj", "v_proj")


def is_target(tensor: Tensor, model: Model, targets: tuple[str, ...]) -> bool:
    """Whether one of the targets names this linear layer."""
    name, leaf = tensor.name.removesuffix(".weight"), _leaf(tensor)
    for target in targets:
        if target == "all-linear" or leaf == target or name.endswith(f".{target}"):
            return True
        if target == "default" and (leaf in _default(model)):
            return True
        if target in _ALIASES and _is_alias(tensor, model, leaf, target):
            return True
    return False


def _is_alias(tensor: Tensor, model: Model, leaf: str, alias: str) -> bool:
    """q, k, v (or the fused projection that holds them), o, gate, up, down on any architecture."""
    role = reads(tensor, model)
    if alias in ("q", "k", "v"):
        fused = "qkv" in leaf or leaf in ("query_key_value", "c_attn")
        return role == "attention input" and (leaf.startswith(alias) or fused)
    if alias == "o":
        return role == "attention result"
    if alias == "down":
        return role == "mlp result"
    gate = "gate" in leaf
    return role == "mlp input" and (gate if alias == "gate" else not gate or "up" in leaf)
