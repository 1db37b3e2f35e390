"""Multi-token prediction: layers after the last one that predict tokens further on.

DeepSeek-V3 (arXiv 2412.19437, section 2.2) as Megatron-LM builds it
(megatron/core/transformer/multi_token_prediction.py); transformers' modules have no such layers and
ignore their weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwise.core.model import Model, Module, Tensor


def with_prediction(model: Model, depth: int) -> Model:
    """The model with `depth` such layers, and no others.

    >>> from shardwise.core.catalogue import load_model
    >>> plain = load_model("llama-3-8b")
    >>> one = with_prediction(plain, 1)
    >>> one.parameters - plain.parameters - plain.blocks[-1].parameters
    33566720
    >>> one.layers, with_prediction(one, 0) == plain
    (32, True)
    """
    if len(model.prediction) == depth:
        return model
    return _with_prediction(model, depth)


@lru_cache(maxsize=64)
def _with_prediction(model: Model, depth: int) -> Model:
    own = {id(module) for module in model.prediction}
    modules = tuple(module for module in model.modules if id(module) not in own)
    layers = tuple(_layer(model, index) for index in range(depth))
    return replace(model, modules=modules + layers)


def _layer(model: Model, index: int) -> Module:
    """Norms of the embedding and of the stream, a projection of both, one more block, a norm."""
    last = model.blocks[-1]
    assert last.block is not None
    width = model.hidden
    names = ("weight", "bias") if last.block.norm == "layernorm" else ("weight",)
    norms = tuple(
        Tensor(f"{norm}.{name}", (width,), "norm", "replicated")
        for norm in ("enorm", "hnorm", "final_layernorm")
        for name in names
    )
    joined = Tensor("eh_proj.weight", (width, 2 * width), "other", "column")
    shape = replace(last.block, prediction=True)
    return Module(f"mtp.layers.{index}", "block", (*norms, joined, *last.tensors), shape)
