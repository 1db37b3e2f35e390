"""How many estimates a second one core makes: `python tests/accuracy/bench_estimates.py`.

Scalar: `estimate` of scenarios that differ in length, micro-batch and layout, none asked twice
(their making is not counted). Arrays: `sweep` over as many lengths and micro-batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from shardwise.core.memory import estimate, sweep
from shardwise.core.scenario import Scenario

CASES: dict[str, dict[str, Any]] = {
    "llama-3-8b, FSDP2": {},
    "llama-3-8b, DDP, torchtitan's code": {
        "layout": {"engine": "ddp"},
        "training": {"model_code": "torchtitan"},
    },
    "gemma-2-2b, FSDP2 (two kinds of blocks)": {"model": "gemma-2-2b"},
    "qwen3-30b-a3b, FSDP2, every 2nd block recomputed": {
        "model": "qwen3-30b-a3b",
        "training": {"activation_checkpointing": {"every": 2}},
    },
    "llama-3-70b, TP 8, 4 pipeline stages": {
        "model": "llama-3-70b",
        "cluster": {"gpus_per_node": 8, "nodes": 8},
        "layout": {"tensor_parallel": 8, "pipeline_parallel": 4},
    },
}
SCALARS, POINTS, ROUNDS = 2_000, 400_000, 3


def best(run: Callable[[], object]) -> float:
    """Seconds of the quickest of a few rounds."""
    taken = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return min(taken)


def scalar_rate(base: Scenario) -> float:
    """Estimates a second, one by one, each of a scenario not seen before."""
    fresh = iter(range(128, 10**6))

    def scenarios() -> list[Scenario]:
        sizes = ((next(fresh), 1 + i % 4) for i in range(SCALARS))
        return [
            base.with_training(replace(base.training, sequence_length=s, micro_batch=m))
            for s, m in sizes
        ]

    batches = [scenarios() for _ in range(ROUNDS)]
    return SCALARS / best(lambda: [estimate(scenario) for scenario in batches.pop()])


def array_rate(base: Scenario) -> float:
    """Estimates a second over arrays of lengths and micro-batches."""
    points = np.arange(POINTS)
    lengths, batches = 128 + points % 16384, 1 + points % 7
    return POINTS / best(lambda: sweep(base, sequence_length=lengths, micro_batch=batches))


def main() -> None:
    """One line a case."""
    for name, given in CASES.items():
        base = Scenario.from_dict(given)
        scalar, array = scalar_rate(base), array_rate(base)
        print(f"{name:50} {scalar:9,.0f} a second one by one  {array:11,.0f} in arrays", flush=True)


if __name__ == "__main__":
    main()
