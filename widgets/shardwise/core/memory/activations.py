"""Activations that a block saves for backward, by operator, per micro-batch and rank.

The terms follow Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer
Models", section 4 and table 2), written out for grouped-query heads, explicit head sizes, gated
MLPs, experts and latent attention. For its GPT (d = h/a, f = 4h, 2-byte elements, dropout) they add
up to s*b*h*(34 + 5*a*s/h). With `model_code="transformers"` each operator keeps what was traced of
transformers' own modules (`data/traces/ACTIVATIONS.md`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from shardwise.core.arrays import there
from shardwise.core.memory.operators.attention import attention, attention_kernel, score_bytes
from shardwise.core.memory.operators.experts import routed_experts
from shardwise.core.memory.operators.frozen import without_weights
from shardwise.core.memory.operators.mlp import mlp_widths
from shardwise.core.memory.operators.norms import norms
from shardwise.core.memory.operators.prediction import prediction
from shardwise.core.memory.operators.recorded import (
    Layer,
    bytes_of,
    counts_of,
    labelled,
    recorded_layer,
)
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.memory.operators.state_space import mixer
from shardwise.core.structure import BlockShape

__all__ = ["Kernel", "Saved", "Tokens", "block_saved", "kept_bytes", "recomputed_bytes"]


class Saved(NamedTuple):
    """Bytes saved by one block: by operator, and all together, without checkpointing."""

    operators: tuple[tuple[str, float], ...]
    score_bytes: float
    input_bytes: float
    total: float


def block_saved(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> Saved:
    """What one block saves for backward when nothing is recomputed.

    Inside a tensor-parallel region (projections, heads, MLP width) bytes are divided by the degree
    t; norms, their inputs and dropout masks are whole on every rank unless sequence parallelism
    splits them too (Korthikanti et al. 2022, equations 2 and 4: sbh(10 + 24/t + 5as/ht), and
    everything over t).
    """
    if shape.recorded and (layer := recorded_layer(shape, kernel)) is not None:
        return _recorded(layer, shape, tokens, kernel)
    outside = kernel.tensor if kernel.sequence_parallel else 1
    rows = kernel.element_bytes * tokens.count
    operators: dict[str, float] = {"norms": norms(shape, tokens, kernel) / outside}
    scores = 0.0
    if shape.attention:
        repeats = 2 if shape.cross_attention else 1
        scores = repeats * score_bytes(shape, tokens, kernel)
        efficient = kernel.eager_modules and attention_kernel(shape, tokens, kernel) == "efficient"
        if repeats == 2 and efficient and shape.position_bias:
            # The bias is added to the decoder's own scores; cross attention has none.
            scores = score_bytes(shape, tokens, kernel)
        for name, size in attention(shape, tokens, kernel).items():
            split = outside if name == "attention input" and not kernel.gathers_inputs else 1
            operators[name] = repeats * size / split
        if repeats == 2 and tokens.crossed and not kernel.eager_modules:
            further = tokens.samples * tokens.crossed - tokens.count
            width = shape.kv_heads * (shape.head_dim + shape.value_head_dim) / kernel.tensor
            operators["queries, keys, values"] += kernel.element_bytes * further * width
            other = replace(tokens, attended=tokens.crossed)
            scores = scores / 2 + score_bytes(shape, other, kernel)
        operators["attention scores"] = scores
    if shape.mixer is not None:
        operators |= mixer(shape, tokens, kernel, outside)
    operators |= _feed_forward(shape, rows, tokens, kernel, outside)
    if shape.dropout:
        operators["dropout masks"] = shape.branches * tokens.count * shape.hidden / outside
        if kernel.eager_modules and shape.position_bias:  # T5 drops inside the MLP too
            operators["dropout masks"] += tokens.count * shape.intermediate / kernel.tensor
    if shape.prediction:
        operators["prediction"] = prediction(shape, tokens, kernel) / outside
    if kernel.frozen is not None:
        operators = without_weights(operators, shape, tokens, kernel, outside)
        scores = operators.get("attention scores", 0.0)
    kept = tuple((name, size) for name, size in operators.items() if there(size))
    entering = kernel.residual * tokens.count * shape.hidden / outside
    return Saved(kept, scores, entering, sum(operators.values()))


def _recorded(layer: Layer, shape: BlockShape, tokens: Tokens, kernel: Kernel) -> Saved:
    """What a recorded layer saves, by what its bytes grow with."""
    counts = counts_of(shape, tokens)
    operators = labelled(layer.saved, counts)
    scores = sum(size for name, size in operators if name == "attention scores")
    stream = 4 if shape.fp32_stream else kernel.residual
    entering = stream * tokens.count * shape.hidden
    return Saved(operators, scores, entering, bytes_of(layer.saved, counts))


def _feed_forward(
    shape: BlockShape, rows: float, tokens: Tokens, kernel: Kernel, outside: int
) -> dict[str, float]:
    """Dense MLP, routed experts and shared experts: 18sbh for a GPT layer less its mask."""
    operators: dict[str, float] = {}
    shared = kernel.tensor
    by_router = kernel.eager_modules or kernel.model_code in ("megatron", "torchtitan")
    reads = shape.intermediate or (shape.experts and by_router)
    if reads and (not shape.parallel or (kernel.eager_modules and shape.parallel_norms > 1)):
        # Autocast casts the input anew for the gate's and for the up projection.
        twice = kernel.residual_bytes and kernel.eager_modules and shape.gated
        copies = 2 if twice and not (shape.fused_qkv or shape.fused_gate) else 1
        split = 1 if kernel.gathers_inputs else outside
        operators["MLP input"] = copies * rows * shape.hidden / split
    widths = mlp_widths(shape, kernel)
    if shape.intermediate:
        operators["MLP"] = rows * widths * shape.intermediate / shared
    if shape.shared_intermediate:
        operators["shared experts"] = rows * widths * shape.shared_intermediate / shared
        if shape.shared_gate and kernel.eager_modules:
            operators["shared experts"] += rows * shape.hidden / outside
    if shape.experts:
        operators |= routed_experts(shape, tokens, kernel, outside)
    return operators


def kept_bytes(saved: Saved, checkpointing: str, results: float = 0.0) -> float:
    """Bytes that a block keeps until its backward under one kind of checkpointing.

    `full` keeps the block's input, 2sbh; `selective` recomputes the core attention and keeps the
    rest (Korthikanti et al. 2022, section 5 and equation 6), which with FlashAttention saves
    nothing more, since that kernel recomputes the scores already. `per-op` is torchtitan's kind:
    `results` are those that it keeps (`operators/per_op.py`).
    """
    if checkpointing == "per-op":
        return saved.input_bytes + results
    if checkpointing == "full":
        return saved.input_bytes
    if checkpointing == "selective":
        return saved.total - saved.score_bytes
    return saved.total


def recomputed_bytes(
    saved: Saved, checkpointing: str, results: tuple[float, float] = (0.0, 0.0)
) -> float:
    """The working set of one block's recomputation in backward, over what it kept.

    The second of `results` is the last one kept, which `per-op` recomputes as well.
    """
    kept = kept_bytes(saved, checkpointing, results[0])
    return saved.total + results[1] - kept
