"""Selective recomputation by module, as Megatron-LM's `--recompute-modules` names them."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.core.arrays import most
from shardwise.core.structure import BlockShape

CORE_ATTENTION = ("core_attn",)
"""What `selective` recomputes unless told."""

_OPERATORS: Mapping[str, tuple[str, ...]] = {
    "core_attn": ("attention scores",),
    "mla_up_proj": ("queries, keys, values",),
    "mlp": ("MLP",),
    "moe": ("router", "expert inputs", "experts", "expert outputs", "shared experts"),
    "shared_experts": ("shared experts",),
}


def module_bytes(shape: BlockShape, operators: Mapping[str, float], module: str) -> float:
    """Bytes that a block does not keep because one module is recomputed.

    `layernorm` drops the results of norms that stand alone: before latent attention and before
    experts, while others are fused with the linear layer that follows. `moe_act` drops the experts'
    activation, one of their three widths; `mla_up_proj` and `mlp` do nothing without latent
    attention and in layers with experts (megatron/core/transformer/transformer_layer.py,
    multi_latent_attention.py, moe/experts.py).
    """
    if module == "layernorm":
        before = operators.get("attention input", 0.0) if shape.kv_lora_rank else 0.0
        return before + (operators.get("MLP input", 0.0) if shape.experts else 0.0)
    if module == "moe_act":
        return operators.get("experts", 0.0) / 3
    if module == "mla_up_proj" and not shape.kv_lora_rank:
        return 0.0
    return sum(operators.get(name, 0.0) for name in _OPERATORS[module])


def recomputed_modules(
    shape: BlockShape, operators: Mapping[str, float], modules: tuple[str, ...]
) -> tuple[float, float]:
    """(bytes that are not kept, those of the largest module: one is made again at a time)."""
    sizes = [module_bytes(shape, operators, module) for module in modules]
    largest = 0.0
    for size in sizes:
        largest = most(largest, size)
    return sum(sizes), largest
