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
    if kernel.model_code == "megatron":
        return _megatron(shape, tokens, kernel, outside)
    chosen, rows = shape.experts_per_token, kernel.element_bytes * tokens.count
    widths = 3 if kernel.model_code == "compiled" else 4
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


def _megatron(shape: BlockShape, tokens: Tokens, kernel: Kernel, outside: int) -> dict[str, float]:
    """Megatron-LM's all-to-all dispatcher and grouped linear layers.

    Under sequence parallelism the tokens of all ranks that share an expert's matrices are gathered
    first (megatron/core/transformer/moe/token_dispatcher.py, `token_dispatch`). The weights of the
    chosen experts multiply the activation, so that their results need not be kept: saved are the
    first product (gate and up), and the second's input (moe/experts.py, `bias_act_func`); without
    a gate the activation before that multiplication instead of the second half.
    """
    chosen, rows = shape.experts_per_token, kernel.element_bytes * tokens.count
    cut = kernel.expert_tensor or kernel.tensor
    gathered = rows * chosen / outside * (cut if kernel.sequence_parallel else 1)
    return {
        "router": 4 * tokens.count * shape.experts / outside,
        "expert inputs": gathered * shape.hidden,
        "experts": 3 * gathered * shape.expert_intermediate / cut,
    }
