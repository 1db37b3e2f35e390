"""The moments inside one block's backward at which memory can peak."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.core.memory.activations import Saved
from shardwise.core.memory.operators.attention import attention_kernel, softmax_bytes
from shardwise.core.memory.operators.frozen import product_kept
from shardwise.core.memory.operators.mlp import mlp_backward_widths
from shardwise.core.memory.operators.norms import norm_backward, norm_behind, norm_bytes
from shardwise.core.memory.operators.run import Frozen, Kernel, Tokens
from shardwise.core.memory.operators.state_space import mixer_backward
from shardwise.core.structure import BlockShape


class Moment(NamedTuple):
    """One moment of a block's backward.

    `extra` are bytes over what the block saved (gradients and temporaries, less what is freed);
    `feed_forward` and `attention` are the shares of those weights that have their gradients;
    `product`: the MLP's largest gradient is just being made.
    """

    extra: float
    feed_forward: float
    attention: float
    product: bool = False


def block_moments(
    shape: BlockShape, tokens: Tokens, kernel: Kernel, saved: Saved
) -> tuple[Moment, ...]:
    """The candidates for a block's peak in backward, in order of time.

    transformers' modules, traced (`data/traces/ACTIVATIONS.md`, peak moments): the MLP (6f + 2h a
    token in gradients, less the down projection's input), grouped experts, the norm before the MLP
    (22h in fp32), attention (eager scores: gradient and result of the softmax), the first norm.
    Other code in torch the same, with its own norms and activations. Megatron-LM's fused modules:
    the widest gradients of the MLP, or of a norm, over all that was saved.
    """
    if kernel.model_code == "megatron":
        return _fused_moments(shape, tokens, kernel, saved)
    freed, moments = _feed_forward(shape, tokens, kernel, saved)
    outside = kernel.tensor if kernel.sequence_parallel else 1
    behind = 0.0
    norm = norm_backward(shape, tokens.count, kernel) / outside
    if (
        shape.post_norms == 2 or not shape.norm_first
    ):  # Gemma's norm of the MLP's result comes first, then attention's
        behind = norm_behind(shape, tokens.count, kernel) / outside
        moments = [moment._replace(extra=moment.extra - behind) for moment in moments]
        moments.insert(0, Moment(norm, 0.0, 0.0))
        freed += behind
    moments.append(Moment(norm - freed, 1.0, 0.0))
    freed += norm_bytes(shape, tokens.count, shape.hidden, kernel) / outside
    if shape.attention:
        share = _output_share(shape)
        freed += behind if shape.norm_first else 0.0
        moments.append(Moment(_attention(shape, tokens, kernel) - freed, 1.0, share))
    own = norm_bytes(shape, tokens.count, shape.hidden, kernel) / outside
    if shape.norm_first:
        moments.append(Moment(norm - saved.total + own, 1.0, 1.0))
    if kernel.frozen is not None:
        moments = frozen_moments(moments, kernel.frozen)
    if not shape.position_bias:
        return tuple(moments)
    # All blocks read one position bias (T5): its gradient is summed up from block to block.
    bias = kernel.element_bytes * shape.heads / kernel.tensor * tokens.length * tokens.attended
    return tuple(moment._replace(extra=moment.extra + bias) for moment in moments)


def frozen_moments(moments: list[Moment], frozen: Frozen) -> list[Moment]:
    """The same moments where weights are frozen: none at all, or with one layer dequantized.

    bitsandbytes writes a quantized layer's weight out in the compute type for its product, one
    layer at a time (`MatMul4Bit.backward`, `MatMul8bitLt.backward`); it is gone as the activation's
    gradients are made (traced).
    """
    if not frozen.flows:
        return [Moment(0.0, 0.0, 0.0)]
    if not frozen.dequantized_bytes:
        return moments
    written = frozen.dequantized_bytes
    return [m._replace(extra=m.extra + written) if m.product else m for m in moments]


def adapter_forward(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> tuple[Moment, ...]:
    """The recomputation's last and largest step: an fp32 adapter on the down projection.

    Its input, the fp32 copy that peft makes of it, with dropout another one, the frozen layer's
    result, and the stream with its gradient (traced: `data/traces/adapters.json`).
    """
    frozen = kernel.frozen
    assert frozen is not None
    if not (frozen.cast and frozen.mlp_result and shape.intermediate):
        return ()
    element = kernel.element_bytes
    wide = tokens.count * shape.intermediate / kernel.tensor
    copies = element + 4 + (4 if frozen.dropout else 0)
    return (Moment(copies * wide + 4 * element * tokens.count * shape.hidden, 0.0, 0.0),)


def adapter_in_forward(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """Bytes over what is saved as an fp32 adapter on the down projection runs in forward.

    Its input with peft's fp32 copy of it, and seven tensors of the stream: the embedding's result,
    the stream twice, the norm's result, the frozen layer's, the adapter's and that scaled (traced).
    """
    frozen = kernel.frozen
    if frozen is None or not (frozen.cast and frozen.mlp_result and shape.intermediate):
        return 0.0
    element = kernel.element_bytes
    wide = tokens.count * shape.intermediate / kernel.tensor
    return (element + 4) * wide + 7 * element * tokens.count * shape.hidden


_FEED_FORWARD = frozenset(
    (
        "MLP",
        "MLP input",
        "experts",
        "expert inputs",
        "expert outputs",
        "scored experts",
        "shared experts",
        "router",
    )
)


def _feed_forward(
    shape: BlockShape, tokens: Tokens, kernel: Kernel, saved: Saved
) -> tuple[float, list[Moment]]:
    """(bytes that are freed once the MLP's backward is over, its moments)."""
    rows, residual = kernel.element_bytes * tokens.count, saved.input_bytes
    sizes = dict(saved.operators)
    moments: list[Moment] = []
    if shape.intermediate:
        width = rows * shape.intermediate / kernel.tensor
        grads, gone = mlp_backward_widths(shape, kernel)
        gone = gone if product_kept(shape, kernel) else 0
        first = 1 / 3 if shape.gated else 1 / 2
        if _sums_adapter(kernel):  # of the adapter, of the frozen layer, and their sum
            moments.append(Moment((3 - gone) * width + residual, 0.0, 0.0))
        moments.append(Moment(width + residual, 0.0, 0.0, True))
        moments.append(Moment((grads - gone) * width + residual, first, 0.0))
        after = (2 if shape.gated else 1) * width + residual - sizes.get("MLP", 0.0)
        moments.append(Moment(after, 1.0, 0.0, True))
        # Both gradients of the input (whole on every tensor rank) beside that of one product.
        into = (2 if shape.gated else 1) * rows * shape.hidden
        last = width + into + residual - sizes.get("MLP", 0.0)
        moments.append(Moment(last, 1.0, 0.0, True))
    if shape.experts:
        moments += _expert_moments(shape, tokens, kernel, saved)
    return sum([size for name, size in saved.operators if name in _FEED_FORWARD]), moments


def _expert_moments(
    shape: BlockShape, tokens: Tokens, kernel: Kernel, saved: Saved
) -> list[Moment]:
    """The routed experts' moments, in order.

    transformers' grouped experts begin with the gradient of the scored rows, summed over each
    token's choices (`_scored_rows`).
    With expert parallelism the results' gradients come by all-to-all and are sorted: both lists of
    the rows that this rank was sent are there, over all that is saved. torchtitan ends with fp32
    gradients of the scored rows: of the products, of the rows and of the scores before they are
    summed (measured: `data/traces/torchtitan_experts.json`).
    """
    sizes, residual = dict(saved.operators), saved.input_bytes
    sent = kernel.element_bytes * tokens.count * shape.experts_per_token * kernel.expert_load
    inputs = sent * shape.hidden
    gate_up = 2 * sent * shape.expert_intermediate / kernel.tensor
    outputs, widths = sizes.get("expert outputs", 0.0), sizes.get("experts", 0.0)
    moments = [Moment(2 * inputs + residual, 0.0, 0.0)] if kernel.expert_ranks > 1 else []
    if kernel.eager_modules:
        moments.append(_scored_rows(shape, kernel, saved, inputs))
    if not shape.sinks:  # the product, read by the down projection only, is gone: 3m less m
        moments.append(Moment(gate_up + residual - outputs, 1 / 3, 0.0))
    moments.append(Moment(gate_up + inputs + residual - widths - outputs, 1.0, 0.0, True))
    if "scored experts" in sizes:
        gone = widths + sizes.get("expert inputs", 0.0)
        moments.append(Moment(3 * sizes["scored experts"] + residual - gone, 1.0, 0.0))
    return moments


def _scored_rows(shape: BlockShape, kernel: Kernel, saved: Saved, inputs: float) -> Moment:
    """The gradient of rows that scores have scaled, under transformers' grouped experts.

    It is spread out over each token's choices and sorted into a new tensor of zeros: three of them,
    in fp32 where the scores are (transformers/integrations/moe.py, `weighted_out[inv_perm]` and its
    sum; traced). A shared expert that runs after the others (DeepSeek) is done with by then; a
    gated one (Qwen) has the gradient of its own result.
    """
    residual, scored = saved.input_bytes, inputs
    if shape.scores_in_fp32:
        scored = 4 / kernel.element_bytes * inputs
    if shape.shared_gate or not shape.shared_intermediate:
        own = residual if shape.shared_gate else 0.0
        return Moment(3 * scored + residual + own, 0.0, 0.0)
    gone = dict(saved.operators).get("shared experts", 0.0)
    routed = shape.experts * shape.expert_intermediate
    share = shape.shared_intermediate / (routed + shape.shared_intermediate)
    return Moment(3 * scored + residual - gone, share, 0.0)


def _sums_adapter(kernel: Kernel) -> bool:
    """Whether an adapter on the down projection adds its input's gradient to the frozen layer's."""
    return kernel.frozen is not None and kernel.frozen.mlp_result > 0


def _attention(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """Gradients inside attention's backward, over what it saved.

    Eager and math: gradient and result of the fp32 softmax, 8as², and the gradient of the values,
    while these, the output, the softmax's 16-bit cast or what dropout kept are freed; flash:
    gradients of q, k, v and of its output.
    """
    rows = kernel.element_bytes * tokens.count
    cells = shape.heads / kernel.tensor * tokens.count * tokens.attended
    ran = attention_kernel(shape, tokens, kernel)
    if ran in ("math", "eager"):
        output = rows * shape.heads * shape.value_head_dim / kernel.tensor
        residual = kernel.residual * tokens.count * shape.hidden
        return residual - output + _softmax_backward(shape, kernel, ran) * cells
    width = shape.heads * (2 * shape.head_dim + 2 * shape.value_head_dim) / kernel.tensor
    return rows * (width + shape.hidden)


def _softmax_backward(shape: BlockShape, kernel: Kernel, ran: str) -> int:
    """Bytes a weight in the backward of dropout or of the softmax: two gradients less what went."""
    element = kernel.element_bytes
    softmax = 4 if ran == "math" else softmax_bytes(shape, kernel)
    if not shape.attention_dropout:
        cast = element if ran == "eager" and element < softmax else 0
        return 2 * softmax - cast
    # GPT-2 casts the weights back before it drops some of them, BERT does not.
    dropped = softmax if ran == "math" or not shape.causal else element
    result = 4 if ran == "math" else element
    return max(2 * dropped - result, 2 * softmax - result - 1)


def _output_share(shape: BlockShape) -> float:
    """The output projection's part of attention's weights: its gradient is the first one made."""
    if shape.kv_lora_rank:
        return 0.5
    output = shape.heads * shape.value_head_dim
    return output / (output + shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim)


def _fused_moments(
    shape: BlockShape, tokens: Tokens, kernel: Kernel, saved: Saved
) -> tuple[Moment, ...]:
    """Megatron-LM over TransformerEngine: linear layers with their norms, fused activations.

    The second projection's backward (its output's gradient, gathered under sequence parallelism,
    and its input's), the activation's (gradients of result and input; the result is freed), the
    first projection's (its input gathered again, its gradient whole), and attention's without a
    fused kernel: the gradient of the scores' dropout over the saved ones, after the MLP's tensors
    are gone (transformer_engine/pytorch/module/linear.py, layernorm_linear.py, attention.py).
    """
    rows, residual, sizes = kernel.element_bytes * tokens.count, saved.input_bytes, saved.operators
    whole, size_of = rows * shape.hidden, dict(sizes)
    gathered = whole if kernel.sequence_parallel else 0.0
    gate = 2 if shape.gated else 1
    moments = []
    for width, inputs in _widths(shape, kernel):
        wide, into = rows * width, whole * inputs
        moments.append(Moment(wide + (gathered if inputs == 1 else into) + residual, 1.0, 1.0))
        moments.append(Moment(gate * wide + residual, 1.0, 1.0))
        moments.append(Moment(gathered + into - wide + residual, 1.0, 1.0))
    if shape.attention:
        names = ("MLP", "MLP input", "experts", "expert inputs", "shared experts", "router")
        freed = sum(size_of.get(name, 0.0) for name in names)
        heads = shape.heads / kernel.tensor
        scores = 0.0
        if kernel.attention != "flash":
            scores = kernel.element_bytes * heads * tokens.count * tokens.attended
        context = rows * heads * (2 * shape.head_dim + 2 * shape.value_head_dim)
        moments.append(Moment(scores + context + residual - freed, 1.0, 1.0))
    if shape.mixer is not None:
        moments.append(Moment(mixer_backward(shape, tokens, kernel) + residual, 1.0, 1.0))
    return tuple(moments)


def _widths(shape: BlockShape, kernel: Kernel) -> list[tuple[float, float]]:
    """(width of the activation, inputs a token) of a block's dense and routed MLPs on one rank."""
    found: list[tuple[float, float]] = []
    if shape.intermediate:
        found.append((shape.intermediate / kernel.tensor, 1))
    if shape.experts:
        cut = kernel.expert_tensor or kernel.tensor
        chosen: float = shape.experts_per_token * kernel.expert_load
        if kernel.sequence_parallel:
            chosen = chosen * cut / kernel.tensor
        found.append((chosen * shape.expert_intermediate / cut, chosen))
    return found or [(0.0, 0.0)]
