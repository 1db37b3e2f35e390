"""Attention: projections, the kernel that runs, and its scores."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.core.arrays import everywhere, least, rounded_up
from shardwise.core.memory.operators.norms import head_norms
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.structure import BlockShape


def attention_kernel(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> str:
    """The kernel that transformers' code ends up with: flash, efficient, math or eager.

    Architectures without SDPA run eager attention. A mask (a sliding window shorter than the
    sequence, T5's bias) or values of another head size rule CUDA's flash kernel out; SDPA then
    takes the memory-efficient one (torch.nn.attention.SDPBackend).
    """
    if not kernel.eager_modules:
        return kernel.attention
    if not shape.sdpa:
        return "eager"
    if kernel.attention in ("math", "eager"):
        return kernel.attention
    masked = shape.position_bias or has_mask(shape, tokens)
    if kernel.attention == "efficient" or kernel.element_bytes == 4:
        # The efficient kernel (flash has no fp32) knows no grouped heads; with a mask transformers
        # repeats keys and values beforehand (integrations/sdpa_attention.py, use_gqa_in_sdpa).
        return "math" if shape.kv_heads < shape.heads and not masked else "efficient"
    # Heads of at most 256 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
    unlike = shape.value_head_dim != shape.head_dim or shape.head_dim > 256
    return "efficient" if unlike or masked else "flash"


def has_mask(shape: BlockShape, tokens: Tokens) -> bool:
    """Whether attention gets a mask: always (Falcon), or from a window's length on.

    transformers/masking_utils.py leaves the causal mask out of SDPA while the sequence is shorter
    than the window.
    """
    window = shape.sliding_window
    return shape.masked or (window > 0 and everywhere(window <= tokens.attended))


def attention(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> Mapping[str, float]:
    """Input, q, k, v and the output projection's input: 11sbh less its mask for a GPT."""
    rows = kernel.element_bytes * tokens.count
    kv = max(shape.kv_heads, min(shape.heads, kernel.tensor))
    if kernel.eager_modules and attention_kernel(shape, tokens, kernel) == "math":
        rows = 4 * tokens.count  # SDPA's math computes in fp32
    parts = {
        "attention input": kernel.element_bytes
        * tokens.count
        * shape.hidden
        * _reads(shape, kernel),
        "latent projections": _latent(shape, tokens, kernel),
        "queries, keys, values": rows * _projected(shape, tokens, kernel, kv) / kernel.tensor,
        "attention output": kernel.element_bytes
        * tokens.count
        * shape.heads
        * shape.value_head_dim
        / kernel.tensor,
    }
    if kernel.context_a2a and not kernel.eager_modules:
        # Saved by attention before the all-to-all back, and after it by the output projection
        # (transformer_engine/pytorch/attention, AttnFuncWithCPAndQKVOA2A).
        parts["attention output"] *= 2
    elif kernel.output_copied:
        # flash-attn keeps (sample, token), the projection reads (token, sample): one layout for a
        # single sample (transformer_engine/pytorch/attention, FlashAttention.forward).
        parts["attention output"] *= 1 + least(tokens.samples - 1, 1)
    if kernel.model_code == "megatron" and shape.qk_norm:
        # Its inputs are views that keep the fused projection whole beside the normed copies.
        query = shape.heads * shape.head_dim + kv * shape.head_dim
        parts["query and key norms"] = kernel.element_bytes * tokens.count * query / kernel.tensor
    if shape.rotary_each and kernel.eager_modules:
        parts["rotation"] = 2 * kernel.residual * tokens.length * shape.head_dim
    if kernel.followed:
        parts["query and key norms"] = head_norms(shape, tokens.count, kernel)
    if kernel.eager_modules and attention_kernel(shape, tokens, kernel) == "flash":
        if padded(shape.head_dim) > shape.head_dim:  # as wide as the kernel's, and cut
            parts["attention output"] *= 1 + padded(shape.head_dim) / shape.head_dim
        elif shape.rotary_cat:
            parts["attention output"] *= 2
    return parts


def padded(head_dim: int) -> int:
    """The head size that CUDA's flash kernel runs on, a multiple of 8.

    aten/src/ATen/native/transformers/attention.cpp, `pad_last_dim<8>`: queries, keys and values are
    copied to it, and the result is cut to the size asked for.

    >>> padded(150), padded(128)
    (152, 128)
    """
    return -(-head_dim // 8) * 8


def _reads(shape: BlockShape, kernel: Kernel) -> int:
    """Copies of attention's input: autocast casts it anew for each projection that reads it."""
    if not kernel.residual_bytes or not kernel.eager_modules:
        return 1
    # Falcon (masked) has one projection too.
    return 1 if shape.fused_qkv or shape.masked else 3


def _projected(shape: BlockShape, tokens: Tokens, kernel: Kernel, kv: int) -> int:
    """Elements a token of queries, keys and values as saved.

    transformers: eager and memory-efficient attention read keys and values repeated to all query
    heads; slices of a fused projection keep the whole of it alive beside rotated copies, unless
    values are copied too (repeated, or scaled in fp32 by SDPA's math).
    """
    heads, width, values = shape.heads, shape.head_dim, shape.value_head_dim
    if kernel.model_code == "nanotron":
        # q, k and v are made contiguous together, then keys and values once more for the rotation;
        # rotated in place, queries keep the first copy alive (nanotron/models/llama.py).
        together = kv * (width + values) if shape.kv_heads == heads else 0
        return heads * width + together + kv * (width + values)
    if not kernel.eager_modules:
        return heads * width + kv * (width + values)
    ran = attention_kernel(shape, tokens, kernel)
    if shape.kv_lora_rank and ran in ("math", "eager"):
        return heads * (2 * width + values)
    if shape.kv_lora_rank:  # values are a slice of the projection that also made the keys
        return heads * (2 * width + (width - shape.rope_head_dim) + values)
    if ran == "flash" and padded(width) > width:
        return (heads + 2 * kv) * padded(width)
    # One head is expanded as a view, which the math kernel writes out as it casts.
    repeated = ran != "flash" and (kv > 1 or ran == "math")
    copied = ran in ("math", "eager") or (repeated and kv < heads)
    if repeated:
        kv = heads
    if shape.fused_qkv and not copied:
        whole = (heads + 2 * shape.kv_heads) * width
        return whole + ((heads + kv) * width if shape.rotary else 0)
    return heads * width + kv * (width + values)


def _latent(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """DeepSeek's low-rank queries, keys and values; transformers norms each latent: 8 + 4/r."""
    if not kernel.eager_modules:
        latent = shape.q_lora_rank + shape.kv_lora_rank
        if kernel.model_code == "megatron":  # the norm's input and the next projection's
            latent *= 2
        return kernel.element_bytes * tokens.count * (latent + shape.rope_head_dim)
    ranks = shape.q_lora_rank + shape.kv_lora_rank
    norms = (shape.q_lora_rank > 0) + (shape.kv_lora_rank > 0)
    return tokens.count * ((4 + 2 * kernel.element_bytes) * ranks + 4 * norms)


def score_bytes(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """Attention scores kept for backward: the 5as/h term, or the row sums of a fused kernel.

    Megatron's eager and math attention keep the softmax output (2as²b), its dropout mask (as²b) and
    its dropout output (2as²b); the last two only with attention dropout. FlashAttention keeps one
    fp32 log-sum-exp a head and token instead (Dao et al. 2022, algorithm 1).
    """
    heads = shape.heads / kernel.tensor
    ran = attention_kernel(shape, tokens, kernel)
    if ran == "flash":
        return 4 * heads * tokens.count
    if kernel.eager_modules:
        return _transformers_scores(shape, tokens, kernel, ran)
    attended = least(tokens.attended, shape.sliding_window or tokens.attended)
    if kernel.model_code != "megatron":
        attended = tokens.attended  # a mask, not a shorter matrix
    cells = heads * tokens.count * attended
    dropout = kernel.element_bytes + 1 if shape.attention_dropout else 0
    return cells * (kernel.element_bytes + dropout)


def _transformers_scores(shape: BlockShape, tokens: Tokens, kernel: Kernel, ran: str) -> float:
    """Scores of transformers' attention, traced (`data/traces/ACTIVATIONS.md`).

    Eager: the fp32 softmax 4as², its 16-bit cast 2as², tanh of a soft cap 2as² (gpt-oss, GPT-2,
    BERT: one 16-bit softmax, fp32 under autocast); dropout adds its mask and keeps its result
    instead of the cast. SDPA's math: the fp32 softmax, and dropout's mask and result in fp32.
    Efficient: log-sum-exp padded to 32 rows, and each sample's mask (2s², for each head if a bias).
    """
    heads, element = shape.heads / kernel.tensor, kernel.element_bytes
    cells = heads * tokens.count * tokens.attended
    drops = shape.attention_dropout > 0
    if ran == "eager":
        softmax = softmax_bytes(shape, kernel)
        cast = element if element < softmax else 0
        result = element + 1 if drops else cast
        return cells * (softmax + result + (element if shape.soft_cap else 0))
    if ran == "math":
        return cells * (4 + (5 if drops else 0))
    sums = 4 * heads * tokens.samples * 32 * rounded_up(tokens.length / 32)
    if shape.position_bias:
        own_mask = tokens.length * tokens.attended if shape.cross_attention else 0.0
        return sums + element * heads * tokens.length * tokens.attended + own_mask
    if not has_mask(shape, tokens):
        return sums
    return sums + element * tokens.count * tokens.attended


def softmax_bytes(shape: BlockShape, kernel: Kernel) -> int:
    """Bytes of one weight of eager attention's softmax: fp32 by its code or by autocast's list."""
    if shape.softmax_in_fp32 and not shape.sinks:
        return 4
    return kernel.residual


def mask_bytes(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """The mask that transformers makes once a forward pass (masking_utils.py).

    In the stream's type and for each sample for eager attention; where SDPA is handed one it is
    bool, and the same for all samples. T5's position bias, for
    all samples at once, is handed on the same way, while a checkpointed first block saves no bucket
    indices (8s², counted outside the blocks).
    """
    ran = attention_kernel(shape, tokens, kernel)
    if shape.position_bias:
        bias = kernel.residual * shape.heads / kernel.tensor - 8
        return bias * tokens.length * tokens.attended
    if ran == "eager":
        return kernel.residual * tokens.count * tokens.attended if shape.causal else 0.0
    if not has_mask(shape, tokens):
        return 0.0
    return tokens.length * tokens.attended
