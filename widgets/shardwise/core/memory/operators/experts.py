"""Mixtures of experts: router, sorting, and the grouped matrix products' rows."""

from __future__ import annotations

from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.structure import BlockShape


def routed_experts(
    shape: BlockShape, tokens: Tokens, kernel: Kernel, outside: int
) -> dict[str, float]:
    """Bytes by operator of one layer's routed experts; every token meets `experts_per_token`.

    Gathered inputs and results k h, and the gate, up, activated gate and product of width m for
    each of the k rows (transformers' grouped products, traced: `data/traces/ACTIVATIONS.md`).
    Router: fp32 softmax over E experts, and in transformers' code indices and weights of 40 bytes
    a chosen expert.
    """
    chosen, rows = shape.experts_per_token, kernel.element_bytes * tokens.count
    widths = 3 if kernel.model_code in ("megatron", "compiled") else 4
    if shape.sinks and kernel.eager_modules:
        widths = 7  # gate and up, both clamped, sigmoid, its product, up + 1 and the result
    router = 4 * tokens.count * shape.experts / outside
    if kernel.eager_modules:
        if shape.router_in_fp32:
            router += 4 * tokens.count * shape.hidden / outside
        router += tokens.count * (40 * chosen + 4) / outside + 4 * shape.experts
    return {
        "router": router,
        "expert inputs": rows * chosen * shape.hidden / outside,
        "experts": rows * chosen * widths * shape.expert_intermediate / kernel.tensor,
        "expert outputs": rows * chosen * shape.hidden / outside,
    }
