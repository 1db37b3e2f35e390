"""The lessons' model as Shardwise sees it: a config.json, its text, and estimates of both."""

from __future__ import annotations

from typing import Any

from shardwise.core.catalogue import data_root

CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": 256,
}


def corpus() -> bytes:
    """The text that the lessons train on."""
    return (data_root() / "lessons" / "corpus.txt").read_bytes()


def estimate_of(
    world: int = 1, *, model: object = None, training: dict[str, Any] | None = None, **layout: Any
) -> Any:
    """Shardwise's memory report for a model (the lessons' own by default) on `world` GPUs.

    >>> report = estimate_of(engine="ddp")
    >>> report.phases["between steps"]["parameters"] / 4
    220544.0
    """
    from shardwise.core.memory.estimate import estimate
    from shardwise.core.scenario import Scenario

    told = {"precision": "fp32", "optimizer": "adamw", "optimizer_implementation": "for-loop"}
    small = {"sequence_length": 32, "micro_batch": 8, "global_batch": 8 * world}
    return estimate(
        Scenario.from_dict(
            {
                "model": CONFIG if model is None else model,
                "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": world, "nodes": 1},
                "training": told | small | (training or {}),
                "layout": layout,
            }
        )
    )
