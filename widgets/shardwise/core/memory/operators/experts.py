"""Mixtures of experts: router, sorting, the all-to-all's and the grouped products' rows."""

from __future__ import annotations

from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.structure import BlockShape

ALIGNMENT = 8
"""Rows by which torchtitan lengthens each local expert's group (models/moe/utils.py, `_permute`:
`TOKEN_GROUP_ALIGN_SIZE_M`)."""


def routed_experts(
    shape: BlockShape, tokens: Tokens, kernel: Kernel, outside: int
) -> dict[str, float]:
    """Bytes by operator of one layer's routed experts; every token meets `experts_per_token`.

    Gathered inputs and results k h, and the gate, up, activated gate and product of width m for
    each of the k rows (transformers' grouped products, traced: `data/traces/ACTIVATIONS.md`). With
    expert parallelism inputs and widths are of the rows that the fullest rank is sent, results of
    those that come back to it. Router: fp32 softmax over E experts, and in transformers' code
    indices and weights of 40 bytes a chosen expert; Mixtral's noise, as large as its input
    (modeling_mixtral.py, `MixtralSparseMoeBlock.forward`).
    """
    if kernel.model_code == "megatron":
        return _megatron(shape, tokens, kernel, outside)
    if kernel.model_code == "torchtitan":
        return _torchtitan(shape, tokens, kernel, outside)
    chosen, rows = shape.experts_per_token, kernel.element_bytes * tokens.count
    widths = 3 if kernel.model_code == "compiled" else 4
    if shape.sinks and kernel.eager_modules:
        widths = 7  # gate and up, both clamped, sigmoid, its product, up + 1 and the result
    router = 4 * tokens.count * shape.experts / outside
    if kernel.eager_modules:
        if shape.router_in_fp32:
            router += 4 * tokens.count * shape.hidden / outside
        router += tokens.count * (40 * chosen + 4) / outside + 4 * shape.experts
        if shape.jitter:  # `hidden_states *= torch.empty_like(hidden_states).uniform_(...)`
            router += rows * shape.hidden / outside
    sent = rows * chosen * kernel.expert_load
    return {
        "router": router,
        "expert inputs": sent * shape.hidden / outside,
        "experts": sent * widths * shape.expert_intermediate / kernel.tensor,
        "expert outputs": rows * chosen * shape.hidden / outside,
    }


def _torchtitan(
    shape: BlockShape, tokens: Tokens, kernel: Kernel, outside: int
) -> dict[str, float]:
    """torchtitan's `MoE` (models/moe/moe.py) under its `ExpertParallel`, counted as it runs.

    `data/traces/torchtitan_experts.json`: fp32 scores of all experts; four int64 indices, the fp32
    score and its copies of each chosen one (36 bytes); an int32 index for each row that the rank's
    experts are given. Scores multiply an fp32 copy of the k inputs (or of the results, bmm), which
    stays on the token's own rank.
    """
    chosen = shape.experts_per_token * tokens.count
    local = shape.experts / kernel.expert_ranks
    given = chosen * kernel.expert_load + ALIGNMENT * local
    element = kernel.element_bytes
    return {
        "router": (4 * tokens.count * shape.experts + 36 * chosen + 4 * given) / outside,
        "expert inputs": element * given * shape.hidden / outside,
        "experts": 4 * element * given * shape.expert_intermediate / kernel.tensor,
        "scored experts": 4 * chosen * shape.hidden / outside,
    }


def _megatron(shape: BlockShape, tokens: Tokens, kernel: Kernel, outside: int) -> dict[str, float]:
    """Megatron-LM's all-to-all dispatcher and grouped linear layers.

    Under sequence parallelism the tokens of all ranks that share an expert's matrices are gathered
    first (megatron/core/transformer/moe/token_dispatcher.py, `token_dispatch`). The weights of the
    chosen experts multiply the activation, so that their results need not be kept: saved are the
    first product (gate and up), and the second's input (moe/experts.py, `bias_act_func`); without
    a gate the activation before that multiplication instead of the second half. All of it has the
    rows that the all-to-all brought.
    """
    chosen, rows = shape.experts_per_token, kernel.element_bytes * tokens.count
    cut = kernel.expert_tensor or kernel.tensor
    sent = rows * chosen * kernel.expert_load
    gathered = sent / outside * (cut if kernel.sequence_parallel else 1)
    return {
        "router": 4 * tokens.count * shape.experts / outside,
        "expert inputs": gathered * shape.hidden,
        "experts": 3 * gathered * shape.expert_intermediate / cut,
    }
