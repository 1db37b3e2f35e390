"""Activations that a block saves for backward, by operator, per micro-batch and rank.

The terms follow Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer
Models", section 4 and table 2), written out for grouped-query heads, explicit head sizes, gated
MLPs, experts and latent attention. For its GPT (d = h/a, f = 4h, 2-byte elements, dropout) they add
up to s*b*h*(34 + 5*a*s/h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from shardwise.core.structure import BlockShape


@dataclass(frozen=True)
class Tokens:
    """What one rank's block sees: samples, tokens a sample on this rank, and tokens attended to."""

    samples: int
    length: float
    attended: int

    @property
    def count(self) -> float:
        """Tokens of one micro-batch on this rank."""
        return self.samples * self.length


@dataclass(frozen=True)
class Kernel:
    """How the block is run: element bytes, tensor parallelism, attention kernel."""

    element_bytes: int
    tensor: int
    sequence_parallel: bool
    attention: str
    model_code: str


@dataclass(frozen=True)
class Saved:
    """Bytes saved by one block: by operator, without checkpointing."""

    operators: tuple[tuple[str, float], ...]
    score_bytes: float
    input_bytes: float

    @property
    def total(self) -> float:
        """All operators together."""
        return sum(size for _, size in self.operators)


@lru_cache(maxsize=4096)
def block_saved(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> Saved:
    """What one block saves for backward when nothing is recomputed.

    Inside a tensor-parallel region (projections, heads, MLP width) bytes are divided by the degree
    t; norms, their inputs and dropout masks are whole on every rank unless sequence parallelism
    splits them too (Korthikanti et al. 2022, equations 2 and 4: sbh(10 + 24/t + 5as/ht), and
    everything over t).
    """
    outside = kernel.tensor if kernel.sequence_parallel else 1
    rows = kernel.element_bytes * tokens.count
    norms = _norms(shape, rows, kernel) / outside
    operators: dict[str, float] = {"norms": norms}
    scores = 0.0
    if shape.attention:
        repeats = 2 if shape.cross_attention else 1
        scores = repeats * score_bytes(shape, tokens, kernel)
        for name, size in _attention(shape, rows, tokens, kernel).items():
            operators[name] = repeats * size / (outside if name == "attention input" else 1)
        operators["attention scores"] = scores
    operators |= _feed_forward(shape, rows, tokens, kernel, outside)
    if shape.dropout:
        masks = 3 if shape.cross_attention else 2
        operators["dropout masks"] = masks * tokens.count * shape.hidden / outside
    kept = tuple((name, size) for name, size in operators.items() if size)
    return Saved(kept, scores, rows * shape.hidden / outside)


def _norms(shape: BlockShape, rows: float, kernel: Kernel) -> float:
    """Inputs of the block's norms: 2 x 2sbh for a GPT layer.

    transformers' RMSNorm computes in fp32: it keeps an fp32 copy of its input and the 16-bit
    normalized product besides (`models/llama/modeling_llama.py`, `LlamaRMSNorm.forward`).
    """
    count = 3 if shape.cross_attention else (1 if shape.parallel or not shape.attention else 2)
    each = rows * shape.hidden
    if kernel.model_code == "transformers" and shape.norm == "rmsnorm" and kernel.element_bytes < 4:
        return count * each * (1 + 4 / kernel.element_bytes)
    return count * each


def _attention(
    shape: BlockShape, rows: float, tokens: Tokens, kernel: Kernel
) -> Mapping[str, float]:
    """Input, q, k, v and the output projection's input: 11sbh less its mask for a GPT."""
    shared = kernel.tensor
    queries = shape.heads * shape.head_dim
    kv = max(shape.kv_heads, min(shape.heads, kernel.tensor))
    keys, values = kv * shape.head_dim, kv * shape.value_head_dim
    latent = shape.q_lora_rank + shape.kv_lora_rank + shape.rope_head_dim
    return {
        "attention input": rows * shape.hidden,
        "latent projections": rows * latent,
        "queries, keys, values": rows * (queries + keys + values) / shared,
        "attention output": rows * shape.heads * shape.value_head_dim / shared,
    }


def score_bytes(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """Attention scores kept for backward: the 5as/h term, or the row sums of a fused kernel.

    Eager and math attention keep the softmax output (2as²b), its dropout mask (as²b) and its
    dropout output (2as²b); the last two only with attention dropout. FlashAttention keeps one fp32
    log-sum-exp a head and token instead (Dao et al. 2022, algorithm 1).
    """
    heads = shape.heads / kernel.tensor
    if kernel.attention == "flash":
        return 4 * heads * tokens.count
    attended = min(tokens.attended, shape.sliding_window or tokens.attended)
    if kernel.model_code != "megatron":
        attended = tokens.attended  # a mask, not a shorter matrix
    cells = heads * tokens.count * attended
    dropout = kernel.element_bytes + 1 if shape.attention_dropout else 0
    return cells * (kernel.element_bytes + dropout)


def _feed_forward(
    shape: BlockShape, rows: float, tokens: Tokens, kernel: Kernel, outside: int
) -> dict[str, float]:
    """Dense MLP, routed experts and shared experts: 18sbh for a GPT layer less its mask."""
    operators: dict[str, float] = {}
    shared = kernel.tensor
    if shape.intermediate and not shape.parallel:
        operators["MLP input"] = rows * shape.hidden / outside
    widths = mlp_widths(shape, kernel)
    if shape.intermediate:
        operators["MLP"] = rows * widths * shape.intermediate / shared
    if shape.shared_intermediate:
        operators["shared experts"] = rows * widths * shape.shared_intermediate / shared
    if shape.experts:
        chosen = shape.experts_per_token
        operators["router"] = 4 * tokens.count * shape.experts / outside
        operators["expert inputs"] = rows * chosen * shape.hidden / outside
        operators["experts"] = rows * chosen * widths * shape.expert_intermediate / shared
        operators["expert outputs"] = rows * chosen * shape.hidden / outside
    return operators


def mlp_widths(shape: BlockShape, kernel: Kernel) -> int:
    """How many tensors of the MLP's width are saved.

    Plain: the activation's input and the second projection's input (8sbh + 8sbh of the paper).
    Gated: gate, up and their product; the separate modules of transformers and torchtitan also keep
    the activated gate for the multiplication.
    """
    if not shape.gated:
        return 2
    return 4 if kernel.model_code in ("transformers", "torchtitan") else 3


def kept_bytes(saved: Saved, checkpointing: str) -> float:
    """Bytes that a block keeps until its backward under one kind of checkpointing.

    `full` keeps the block's input, 2sbh; `selective` recomputes the core attention and keeps the
    rest (Korthikanti et al. 2022, section 5 and equation 6), which with FlashAttention saves
    nothing more, since that kernel recomputes the scores already.
    """
    if checkpointing == "full":
        return saved.input_bytes
    if checkpointing == "selective":
        return saved.total - saved.score_bytes
    return saved.total


def recomputed_bytes(saved: Saved, checkpointing: str) -> float:
    """The working set of one block's recomputation in backward, over what it kept."""
    return saved.total - kept_bytes(saved, checkpointing)
