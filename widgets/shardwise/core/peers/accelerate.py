"""accelerate's `estimate-memory`: accelerate/commands/estimate.py of release 1.15.0."""

from __future__ import annotations

from shardwise.core.peers.row import PeerRow
from shardwise.core.scenario import Scenario

PEER, VERSION = "accelerate estimate-memory", "1.15.0"
_SOURCE = "accelerate/commands/estimate.py: estimate_training_usage"
_LEAVES_OUT = (
    "Activations, logits and the loss are not counted, whatever batch and sequence.",
    "Sharding, offload and every kind of parallelism are unknown to it: one whole replica.",
    "Adam is taken for granted; buckets and the optimizer's temporary are not counted.",
)
_DEFECTS = (
    "It prints the largest of model, gradients, optimizer and step, which are there together.",
    "16-bit training comes out at 8 bytes a parameter, half of what mixed precision keeps.",
)


def training_bytes(model_bytes: int, dtype: str) -> dict[str, int]:
    """`estimate_training_usage`: bytes by part for a model of this size in fp32.

    The command prints the largest of them as "Training using Adam".

    >>> round(max(training_bytes(433_249_280, "float32").values()) / 2**30, 2)
    1.61
    """
    if dtype == "float32":
        return {
            "model": model_bytes,
            "optimizer": 2 * model_bytes,
            "gradients": model_bytes,
            "step": 4 * model_bytes,
        }
    return {
        "model": model_bytes,
        "optimizer": 2 * model_bytes,
        "gradients": model_bytes + model_bytes // 2,
        "step": 2 * model_bytes,
    }


def row(scenario: Scenario) -> PeerRow:
    """What the command prints for this model in the precision's compute type.

    Its model size also counts a model's buffers (position ids and the like: kilobytes).
    """
    precision = scenario.training.precision
    dtype = "float32" if precision.compute_bytes == 4 else "float16"
    parts = training_bytes(4 * scenario.model.parameters, dtype)
    return PeerRow(
        PEER, VERSION, f"--dtypes {dtype}", float(max(parts.values())),
        {name: float(size) for name, size in parts.items()},
        leaves_out=_LEAVES_OUT, defects=_DEFECTS[: 2 if dtype == "float16" else 1], source=_SOURCE,
    )  # fmt: skip
