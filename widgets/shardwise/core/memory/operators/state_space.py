"""State-space mixers over mamba_ssm's fused kernels: what they save, and their backward."""

from __future__ import annotations

from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.structure import BlockShape


def scan_counted(shape: BlockShape, model_code: str) -> bool:
    """Whether the activations of a block's mixer are counted for this code."""
    if shape.mixer is None:
        return True
    return shape.mixer.kind == "mamba2" and model_code == "megatron"


def mixer(shape: BlockShape, tokens: Tokens, kernel: Kernel, outside: int) -> dict[str, float]:
    """Bytes by operator that Megatron-LM's Mamba-2 mixer saves, per tensor rank.

    The normed input of `in_proj`; its result, from which the fused function makes the rest again,
    and the scan's result before the gate (mamba_ssm/ops/triton/ssd_combined.py,
    `MambaSplitConv1dScanCombinedFn.forward`); the gated result, which the grouped norm saves with
    an fp32 rsqrt a group (layernorm_gated.py), and the norm's result as `out_proj`'s input
    (megatron/core/ssm/mamba_mixer.py). All-to-all context parallelism trades tokens for heads in
    between: as many bytes.
    """
    own = shape.mixer
    if own is None or not scan_counted(shape, kernel.model_code):
        return {}
    rows = kernel.element_bytes * tokens.count / kernel.tensor
    gathered = 1 if kernel.gathers_inputs else outside
    return {
        "mixer input": kernel.element_bytes * tokens.count * shape.hidden / gathered,
        "mixer projections": rows * own.projected,
        "mixer scan": rows * own.inner,
        "mixer output": 2 * rows * own.inner + 4 * tokens.count * own.groups / kernel.tensor,
    }


def mixer_backward(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """Bytes over what was saved at the worst moment of the mixer's backward.

    `_mamba_chunk_scan_combined_bwd` as it passes the states' gradients back through the chunks:
    the gradient of its result and that before the gate, all of `dzxbcdt`, the convolution's result
    made again and its gradient, products of C and B within chunks and time steps in fp32, and each
    chunk's state and its gradient (inner x state for each chunk) both in fp32 and as the 16-bit
    tensors that they become; the inputs of `out_proj` and of the norm are gone.
    """
    own = shape.mixer
    if own is None or not scan_counted(shape, kernel.model_code):
        return 0.0
    element, chunk = kernel.element_bytes, own.chunk or 1
    states = (8 + 2 * element) * own.inner * own.state / chunk
    inside = (10 + element) * own.heads + 4 * own.groups * (chunk - 1)
    made = element * (2 * own.inner + own.projected + 2 * own.convolved)
    freed = 2 * element * own.inner
    return tokens.count * (made + inside + states - freed) / kernel.tensor
