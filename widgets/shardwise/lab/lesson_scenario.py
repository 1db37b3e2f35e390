"""The lessons' model as Shardwise sees it: a config.json, its text, and estimates of both."""

from __future__ import annotations

from typing import Any

from shardwise.core.catalogue import data_root
from shardwise.core.memory.estimate import estimate
from shardwise.core.memory.report import MemoryReport
from shardwise.core.scenario import Scenario

CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": 256,
    # Not GPT-2's defaults: no dropout, and one operator for the GELU.
    "activation_function": "gelu_pytorch_tanh",
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def corpus() -> bytes:
    """The text that the lessons train on."""
    return (data_root() / "lessons" / "corpus.txt").read_bytes()


def scenario_of(
    world: int = 1, *, model: object = None, training: dict[str, Any] | None = None, **layout: Any
) -> Scenario:
    """A model (the lessons' own by default) and its training on `world` GPUs of one node.

    >>> scenario_of(2, engine="ddp").model.parameters
    220544
    """
    told = {"precision": "fp32", "optimizer": "adamw", "optimizer_implementation": "for-loop"}
    small = {"sequence_length": 32, "micro_batch": 8, "global_batch": 8 * world}
    return Scenario.from_dict(
        {
            "model": CONFIG if model is None else model,
            "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": world, "nodes": 1},
            "training": told | small | (training or {}),
            "layout": layout,
        }
    )


def estimate_of(
    world: int = 1, *, model: object = None, training: dict[str, Any] | None = None, **layout: Any
) -> MemoryReport:
    """Shardwise's memory report for what `scenario_of` makes of the same words.

    >>> report = estimate_of(engine="ddp")
    >>> report.phases["between steps"]["parameters"] / 4
    220544.0
    """
    return estimate(scenario_of(world, model=model, training=training, **layout))
