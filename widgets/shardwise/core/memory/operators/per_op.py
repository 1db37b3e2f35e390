"""What torchtitan's per-operator checkpointing keeps of a block."""

from __future__ import annotations

from shardwise.core.memory.operators.attention import attention_kernel
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.structure import BlockShape


def kept_results(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> tuple[float, float]:
    """Bytes of results kept instead of recomputed, and those of them that recomputing ends before.

    torchtitan/distributed/activation_checkpoint.py, `_apply_op_sac`, with the list of
    models/llama3/infra/parallelize.py: every first of two matrix products (aten.mm, and addmm,
    which a layer with a bias runs: q, v, gate and down of a Llama block; not the experts' grouped
    ones), attention kernels' results and log-sum-exps, results of reduce-scatters. Recomputation
    stops once all that backward reads is there (`early_stop` of torch/utils/checkpoint.py), before
    the last product, whose kept result stays until the block is done.

    >>> llama = BlockShape(4096, 32, 8, 128, 128, 14336, True)
    >>> kept_results(llama, Tokens(1, 1, 1), Kernel(2, 1, False, "flash", "torchtitan"))
    (55424.0, 8192.0)
    """
    rows, tensor = kernel.element_bytes * tokens.count, kernel.tensor
    products, behind = _products(shape, tensor)
    kept = rows * sum(products[::2])
    ran = attention_kernel(shape, tokens, kernel) if shape.attention else ""
    if ran in ("flash", "efficient"):
        repeats = 2 if shape.cross_attention else 1
        output = rows * shape.heads * shape.value_head_dim / tensor
        kept += repeats * (output + 4 * tokens.count * shape.heads / tensor)
    if kernel.sequence_parallel:
        kept += rows * behind * shape.hidden / tensor
    # With dropout behind it, recomputation goes on: its mask is read.
    ends_there = len(products) % 2 == 1 and not (shape.position_bias and shape.dropout)
    last = 1.0 * rows * products[-1] if ends_there else 0.0
    return kept, last


def _products(shape: BlockShape, tensor: int) -> tuple[list[float], int]:
    """Widths of the results of a block's products, in order, and how many of them are row-parallel.

    A row-parallel product's result is whole on every rank: a summand of the reduction.
    """
    widths: list[float] = []
    rows = 0
    for _ in range(0 if not shape.attention else 2 if shape.cross_attention else 1):
        widths += [*(width / tensor for width in _projections(shape)), shape.hidden]
        rows += 1
    if shape.experts:
        widths.append(shape.experts)
    for inner in (shape.intermediate, shape.shared_intermediate):
        if not inner:
            continue
        rows += 1
        separate = [inner, inner] if shape.gated else [inner]
        joined = [2 * inner] if shape.gated and (shape.fused_qkv or shape.fused_gate) else separate
        widths += [*(width / tensor for width in joined), shape.hidden]
    return widths, rows


def _projections(shape: BlockShape) -> list[int]:
    """Widths of the projections to queries, keys and values."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if shape.kv_lora_rank:
        plain = shape.head_dim - shape.rope_head_dim + shape.value_head_dim
        latent = [shape.q_lora_rank] if shape.q_lora_rank else []
        return [*latent, queries, shape.kv_lora_rank + shape.rope_head_dim, shape.heads * plain]
    values = shape.kv_heads * shape.value_head_dim
    return [queries + keys + values] if shape.fused_qkv else [queries, keys, values]
