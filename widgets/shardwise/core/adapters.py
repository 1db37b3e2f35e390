"""A model's tensors parted into trained ones, low-rank adapters among them, and frozen ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from shardwise.core.errors import ScenarioError
from shardwise.core.model import Model
from shardwise.core.structure import Module, Tensor
from shardwise.core.targets import among_linears, check_targets, is_target, reads, swapped
from shardwise.core.trainable import FIELD, Trainable


def check_trainable(model: Model, trainable: Trainable) -> None:
    """Refuse targets that the model does not have, and freezing that leaves nothing to train.

    Raises:
        ScenarioError: names the linear layers that the model has.
    """
    if trainable.everything:
        return
    check_targets(model, trainable.targets)
    if not trained_parameters(model, trainable):
        raise ScenarioError(
            f"{FIELD}.frozen",
            list(trainable.frozen),
            f"a list that leaves a part to train of {', '.join(model.parameters_by_part)}",
        )


@dataclass(frozen=True)
class Split:
    """A module's tensors: with gradients and without."""

    trained: Module
    frozen: Module


def split(module: Module, model: Model, trainable: Trainable) -> Split:
    """A module's trained tensors (its own or its adapters') and its frozen ones.

    What forward never reads has no gradient either, and counts as frozen.

    LoRA (Hu et al. 2021): A is [rank, in] and B [out, rank] for each target (peft's `lora_A`,
    `lora_B`). Under tensor parallelism B of a column-cut layer and A of a row-cut one are cut.
    """
    name, kind, block = module.name, module.kind, module.block
    if trainable.everything:
        if all(tensor.read for tensor in module.tensors):
            return Split(module, Module(name, kind, (), block))
        unread = tuple(t for t in module.tensors if not t.read)
        read = tuple(t for t in module.tensors if t.read)
        return Split(Module(name, kind, read, block), Module(name, kind, unread, block))
    if trainable.rank:
        allowed = among_linears(model)
        chosen = [t for t in module.tensors if t in allowed]
        adapters = [
            pair
            for tensor in chosen
            if is_target(tensor, model, trainable.targets)
            for pair in _pair(tensor, trainable.rank, swapped(model))
        ]
        return Split(Module(name, kind, tuple(adapters), block), module)
    trained = tuple(t for t in module.tensors if t.part not in trainable.frozen)
    frozen = tuple(t for t in module.tensors if t.part in trainable.frozen)
    return Split(Module(name, kind, trained, block), Module(name, kind, frozen, block))


def _pair(tensor: Tensor, rank: int, stored_swapped: bool) -> tuple[Tensor, Tensor]:
    out, inside = tensor.shape[::-1] if stored_swapped else tensor.shape
    row = tensor.tensor_parallel == ("column" if stored_swapped else "row")
    column = tensor.tensor_parallel == ("row" if stored_swapped else "column")
    stem = tensor.name.removesuffix(".weight")
    return (
        Tensor(
            f"{stem}.lora_A.weight", (rank, inside), tensor.part, "row" if row else "replicated"
        ),
        Tensor(
            f"{stem}.lora_B.weight", (out, rank), tensor.part, "column" if column else "replicated"
        ),
    )


@lru_cache(maxsize=256)
def trained_parameters(model: Model, trainable: Trainable) -> int:
    """Parameters with gradients: the whole model's, the adapters', or those of the parts left.

    >>> from shardwise.core.catalogue import load_model
    >>> trained_parameters(load_model("llama-2-7b"), Trainable.from_dict({"lora": {"rank": 8}}))
    4194304
    """
    return sum(split(module, model, trainable).trained.parameters for module in model.modules)


@lru_cache(maxsize=256)
def trained_tensors(model: Model, trainable: Trainable) -> tuple[Tensor, ...]:
    """The tensors with gradients, adapters as peft names them."""
    modules: Iterable[Module] = (split(m, model, trainable).trained for m in model.modules)
    return tuple(tensor for module in modules for tensor in module.tensors)


@lru_cache(maxsize=256)
def targets_by_input(model: Model, trainable: Trainable) -> Mapping[str, int]:
    """How many targets one block has by the activation that they read (see `reads`)."""
    if not trainable.rank:
        return {}
    allowed = among_linears(model)
    most: dict[str, int] = {}
    for module in model.modules:
        counts: dict[str, int] = {}
        for tensor in module.tensors:
            if tensor in allowed and is_target(tensor, model, trainable.targets):
                role = reads(tensor, model)
                counts[role] = counts.get(role, 0) + 1
        for role, count in counts.items():
            most[role] = max(most.get(role, 0), count)
    return most
