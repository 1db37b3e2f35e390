"""Pictures beside text: which modules of a model see them, and the model where none do.

Gemma 3 and Llama 4 run a vision tower over every picture of a sample and put its features in the
place of tokens. A step without pictures does not run the tower: its weights are there, but get no
gradients, and torch's optimizers make no state for them (torch/optim/optimizer.py: parameters whose
`grad` is None are skipped; traced).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwise.core.errors import ScenarioError
from shardwise.core.model import Model, Module
from shardwise.core.training import Training


@lru_cache(maxsize=256)
def tower_of(model: Model) -> tuple[Module, ...]:
    """The modules before a decoder that see pictures alone: tower and projection.

    Empty for a model without a decoder beside them (ViT) and for one of text.

    >>> from shardwise.core.catalogue import load_model
    >>> sum(module.block is not None for module in tower_of(load_model("gemma-3-4b")))
    27
    >>> tower_of(load_model("vit-base")), tower_of(load_model("llama-3-8b"))
    ((), ())
    """
    seen = [i for i, m in enumerate(model.modules) if m.block and m.block.tokens == "image"]
    words = (i for i, m in enumerate(model.modules) if seen and i > seen[-1])
    first = next((i for i in words if model.modules[i].kind == "embedding"), 0)
    return model.modules[:first]


def with_pictures(model: Model, count: int) -> Model:
    """The model as it runs with so many pictures a sample: without any its tower is idle.

    >>> from shardwise.core.catalogue import load_model
    >>> whole = load_model("gemma-3-4b")
    >>> text = with_pictures(whole, 0)
    >>> whole.layers - text.layers, whole.parameters - text.parameters
    (27, 0)
    >>> with_pictures(text, 2) == whole
    True
    """
    tower = tower_of(model)
    if not tower or tower[0].idle == (count == 0):
        return model
    return _with_tower(model, count == 0)


@lru_cache(maxsize=64)
def _with_tower(model: Model, idle: bool) -> Model:
    tower = tower_of(model)
    changed = tuple(replace(module, idle=idle) for module in tower)
    return replace(model, modules=changed + model.modules[len(tower) :])


def check_pictures(model: Model, training: Training) -> None:
    """Refuse a number of pictures for a model that takes none beside its text.

    Raises:
        ScenarioError: other than one picture a sample without a vision tower beside a decoder.
    """
    count = training.images_per_sample
    if count != 1 and not tower_of(model):
        raise ScenarioError(
            "training.images_per_sample",
            count,
            "1 for a model without a vision tower beside a decoder",
        )
