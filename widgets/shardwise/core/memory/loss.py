"""Logits and loss: the last thing of a forward pass and often its largest tensor."""

from __future__ import annotations

from typing import NamedTuple

CHUNKS = 8


class LossBytes(NamedTuple):
    """Bytes of logits and loss at the end of forward, at the start of backward, and in between.

    `saved` is what waits for backward: GPipe has every micro-batch wait. `product` is the logits'
    gradient as the head multiplies with it; 0 where that is small.
    """

    forward: float
    backward: float
    saved: float
    product: float = 0.0


def loss_bytes(
    tokens: float,
    vocabulary: float,
    element_bytes: int,
    kind: str,
    hidden: int,
    *,
    upcast: bool = True,
    soft_cap: bool = False,
    split: bool = False,
) -> LossBytes:
    """Logits, their fp32 copies and gradients for one micro-batch on one rank.

    `full` (transformers/loss/loss_utils.py, ForCausalLMLoss, upcasts to fp32): forward ends with
    the 16-bit logits, the fp32 copy and the fp32 log-softmax, 2 + 4 + 4 bytes a vocabulary entry
    and token; backward starts with the log-softmax, the gradient of its loss and its own gradient,
    4 + 4 + 4. (Korthikanti et al. 2022, section 4.3, count the fp32 logits alone: 4sbv.)
    `chunked`: the same for one chunk of eight at a time, and the head's input. `fused`: one chunk
    in 16 and 32 bits while the gradient of the head's input is kept (Liger-Kernel,
    `fused_linear_cross_entropy`). `compiled` (torch.compile of the cross entropy): the 16-bit
    logits and two fp32 numbers a row are kept, log-softmax is computed again where it is read, and
    the 16-bit gradient is the only other tensor (min cut of torch/_functorch/partitioners.py).

    Args:
        tokens: tokens of one micro-batch on this rank.
        vocabulary: vocabulary entries on this rank (divided by tensor parallelism).
        element_bytes: bytes of a logit before the upcast.
        kind: full, compiled, chunked or fused.
        hidden: width of the head's input.
        upcast: whether the loss is computed in fp32; BERT's, T5's and ViT's classes pass 16-bit
            logits to the cross entropy, which keeps their type (transformers' modeling files).
        soft_cap: whether logits are capped (Gemma 2): the tanh is kept, one more element.
        split: whether `full` runs over logits split by vocabulary in torch's `loss_parallel`, which
            writes log-softmax out: 2 + 4 + 4 + 4 bytes (logits, fp32, shifted, exponentials), then
            4 x 4 (log-softmax, gradient, exponentials, their sum:
            torch/distributed/tensor/parallel/loss.py). Without an upcast it computes in fp32
            all the same, but hands on 16 bits; fp32 logits are not copied.

    >>> loss_bytes(4096, 128256, 2, "full", 4096).backward / 2**30
    5.87109375
    """
    cells = tokens * vocabulary
    loss = 4 if upcast else element_bytes
    capped = element_bytes if soft_cap else 0
    forward = (element_bytes + (0 if element_bytes == loss else loss) + loss + capped) * cells
    backward = (3.0 * loss + capped) * cells
    if kind == "full" and split:
        first = (element_bytes + (0 if element_bytes == 4 else 4) + 8.0) * cells
        return LossBytes(first, 4.0 * loss * cells, 1.0 * loss * cells, element_bytes * cells)
    if kind == "full":
        return LossBytes(forward, backward, (loss + capped) * cells, element_bytes * cells)
    if kind == "compiled":
        logits = (element_bytes + capped) * cells + 8.0 * tokens
        return LossBytes(logits, logits + element_bytes * cells, logits)
    head_input = tokens * hidden * element_bytes
    if kind == "chunked":
        chunk_forward, chunk_backward = forward / CHUNKS, backward / CHUNKS
        return LossBytes(head_input + chunk_forward, head_input + chunk_backward, head_input)
    chunk = (element_bytes + 4) * cells / CHUNKS
    return LossBytes(2 * head_input + chunk, 2 * head_input, 2 * head_input)
