"""Scenarios of Megatron-LM runs, from what its arguments say."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from shardwise.core.cluster import Cluster
from shardwise.core.layout import Layout
from shardwise.core.model import Model
from shardwise.core.scenario import Scenario
from shardwise.core.training import Training


def padded(vocabulary: int, tensor: int, divisor: int = 128) -> int:
    """The vocabulary as Megatron-LM pads it: `--make-vocab-size-divisible-by`, times TP."""
    return ceil(vocabulary / (divisor * tensor)) * divisor * tensor


def scenario_of(
    model: Model,
    gpu: str,
    world: int,
    training: dict[str, Any],
    layout: dict[str, Any],
    precision: str = "mixed-fp32-grads",
) -> Scenario:
    """A run of Megatron-LM's own engine and modules; bf16 gradients accumulate in fp32."""
    per_node = min(8, world)
    cluster = {"gpu": gpu, "gpus_per_node": per_node, "nodes": -(-world // per_node)}
    given = {"precision": precision, "model_code": "megatron", **training}
    laid = {"engine": "megatron", **layout}
    if laid.get("sequence_parallel") and laid.get("tensor_parallel", 1) == 1:
        laid = {**laid, "sequence_parallel": False}  # nothing to split over
    return Scenario.of(
        model,
        Cluster.from_dict(cluster),
        Training.from_dict(given),
        Layout.from_dict(laid),
        model.name,
    )


def with_layers(model: Model, layers: int) -> Model:
    """The same model cut to its first blocks."""
    kept = {id(block) for block in model.blocks[:layers]}
    modules = tuple(m for m in model.modules if m.block is None or id(m) in kept)
    return replace(model, modules=modules)
