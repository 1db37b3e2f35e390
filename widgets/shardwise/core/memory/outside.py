"""What is saved outside the blocks: inputs, position tables, final norm, the head's input."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.memory.operators.norms import norm_bytes
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.memory.stages import Stage


@dataclass(frozen=True)
class Outside:
    """Bytes saved for one micro-batch before the blocks (kept to the end) and after them."""

    early: float
    late: float


def outside_saved(stage: Stage, tokens: Tokens, kernel: Kernel, vocabulary: int) -> Outside:
    """Bytes outside the blocks of transformers' models; nothing is counted for other code.

    Token ids 8 each (or a picture's pixels), rotary cos and sin 2d each once, dropout after the
    embedding (mask and result), T5's bucket indices 8s² and bias; the final norm (8h + 4 in
    RMSNorm), its result as the head's input, the labels: `data/traces/ACTIVATIONS.md`, outside
    the layers.
    Sequence parallelism splits the final norm and what it hands to the head.
    """
    if not kernel.eager_modules or not stage.blocks:
        return Outside(0.0, 0.0)
    first, last = stage.blocks[0][0], stage.blocks[-1][0]
    count, early, late = tokens.count, 0.0, 0.0
    if stage.has_embedding:
        early = 8.0 * count if vocabulary else 0.0
        if first.tokens == "image":  # the picture, and its copy in the compute type
            patch = sum(t.elements for t in stage.root_tensors if len(t.shape) == 4)
            pixels = patch / first.hidden * (count - tokens.samples)
            early += (4 + kernel.element_bytes) * pixels
        if first.rotary and first.attention:
            width = first.rope_head_dim or first.head_dim
            early += 2 * kernel.residual * tokens.length * width
        if first.dropout:
            # Its result is the first LayerNorm's input, which the blocks count.
            result = 0 if first.norm == "layernorm" and first.causal else kernel.residual
            early += (1 + result) * count * first.hidden
        for shape in {shape for shape, _ in stage.blocks if shape.position_bias}:
            early += 8.0 * tokens.length * tokens.attended
            if shape.cross_attention:
                bias = kernel.element_bytes * shape.heads / kernel.tensor
                early += bias * tokens.length * tokens.attended
                early += (10 + 2 * kernel.residual) * count * shape.hidden
    if stage.has_head:
        late = norm_bytes(last, count, last.hidden, kernel)
        late += count * ((kernel.element_bytes * last.hidden if vocabulary else 0) + 8)
        if not last.causal and vocabulary:  # BERT's transform: dense, GELU, norm
            late += 2 * kernel.element_bytes * count * last.hidden
    return Outside(early, late / (kernel.tensor if kernel.sequence_parallel else 1))
