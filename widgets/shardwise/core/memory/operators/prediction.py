"""Multi-token prediction: what stands around its block."""

from __future__ import annotations

from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.structure import BlockShape


def prediction(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """Bytes that one depth saves beside its block.

    Inputs of the two norms (the next tokens' embeddings, the stream), both joined as the
    projection's input, the final norm's input, and the head's (megatron/core/transformer/
    multi_token_prediction.py, `_concat_embeddings` and `_postprocess`); the mask of the dropout
    after the embedding.
    """
    mask = 1 if shape.dropout else 0
    return (6 * kernel.element_bytes + mask) * tokens.count * shape.hidden
