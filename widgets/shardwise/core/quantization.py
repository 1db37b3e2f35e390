"""How the frozen weights are stored: in 16 bits, or quantized by bitsandbytes."""

from __future__ import annotations

import math

from shardwise.core.structure import Module, Tensor
from shardwise.core.targets import is_table
from shardwise.core.trainable import BASES, Trainable

NF4_BLOCK, NF4_NESTED_BLOCK = 64, 256


def stored_bytes(tensor: Tensor, trainable: Trainable, in_block: bool) -> tuple[float, float]:
    """(bytes an element, bytes of quantization statistics an element) of a frozen tensor.

    bitsandbytes quantizes the blocks' linear layers; embedding, norms, router and head stay in 16
    bits. LLM.int8 (Dettmers et al. 2022a): one byte and an fp32 scale a row. NF4 (Dettmers et al.
    2023, section 3): half a byte and an fp32 absmax a block of 64, 0.5625 B; with double
    quantization the absmax is 8 bits and an fp32 follows each 256 of them, 0.516 B.

    >>> weight = Tensor("q_proj.weight", (4096, 4096), "attention", "column")
    >>> sum(stored_bytes(weight, Trainable(rank=8, base="nf4"), True))
    0.5625
    """
    linear = in_block and len(tensor.shape) > 1 and tensor.part in ("attention", "mlp", "experts")
    if not trainable.quantized:
        return BASES[trainable.base], 0.0
    if not linear or is_table(tensor):
        return BASES["16-bit"], 0.0
    if trainable.base == "int8":
        return 1.0, 4.0 / tensor.shape[-1]
    if trainable.double_quantized:
        return 0.5, 1 / NF4_BLOCK + 4 / (NF4_BLOCK * NF4_NESTED_BLOCK)
    return 0.5, 4 / NF4_BLOCK


def largest_linear(module: Module) -> int:
    """Elements of the largest single linear layer of a block; one expert of fused ones."""
    sizes = (
        math.prod(t.shape[-2:]) for t in module.tensors if t.part in ("attention", "mlp", "experts")
    )
    return max(sizes, default=0)
