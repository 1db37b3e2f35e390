"""What blocks save when some weights have no gradients: frozen layers and low-rank adapters.

The gradient of a linear layer's input needs its weight only, so a frozen one keeps no input; a
frozen norm keeps what its input's gradient needs. An adapter's A keeps its input and B keeps A's
result (traced with peft: `data/traces/adapters.json`).
"""

from __future__ import annotations

from shardwise.core.memory.operators.attention import attention_kernel
from shardwise.core.memory.operators.run import Frozen, Kernel, Tokens
from shardwise.core.structure import BlockShape


def without_weights(
    operators: dict[str, float],
    shape: BlockShape,
    tokens: Tokens,
    kernel: Kernel,
    outside: int,
) -> dict[str, float]:
    """A block's saved bytes by operator, less what only frozen weights' gradients would need."""
    frozen = kernel.frozen
    assert frozen is not None
    if not frozen.flows:
        return dict.fromkeys(operators, 0.0)
    kept, inside = dict(operators), kernel.tensor
    hidden = tokens.count * shape.hidden
    if "attention" not in frozen.trained and shape.attention:
        kept["attention input"] = _input(kernel, frozen.attention_input, hidden) / outside
        kept["latent projections"] = _latent(shape, tokens)
        result = tokens.count * shape.heads * shape.value_head_dim / inside
        ran = attention_kernel(shape, tokens, kernel)
        held = ran in ("flash", "efficient")
        shared = held and not (shape.rotary_cat and ran == "flash")  # there it is a copy
        own = _input(kernel, frozen.attention_result, result, held=shared)
        kept["attention output"] = own + (kernel.element_bytes * result if held else 0.0)
    if "mlp" not in frozen.trained:
        # One norm feeds both halves of a parallel block (GPT-J): one input, kept once.
        together = shape.parallel and shape.parallel_norms == 1
        there = together and (frozen.attention_input > 0 or frozen.keeps_inputs)
        kept["MLP input"] = _input(kernel, frozen.mlp_input, hidden, held=there) / outside
        for name, width in (
            ("MLP", shape.intermediate),
            ("shared experts", shape.shared_intermediate),
        ):
            if width:
                product = tokens.count * width / inside
                own = _input(kernel, frozen.mlp_result, product, held=shape.activation == "relu")
                kept[name] += own - _product(shape, kernel, product)
    if "experts" not in frozen.trained and shape.experts:
        rows = kernel.element_bytes * kernel.expert_load * tokens.count * shape.experts_per_token
        kept["experts"] -= rows * shape.expert_intermediate / inside
        kept["expert inputs"] = 0.0
    if "router" not in frozen.trained and shape.experts and shape.router_in_fp32:
        kept["router"] -= 4 * hidden / outside if kernel.eager_modules else 0.0
    if frozen.rank:
        kept["adapters"] = kernel.element_bytes * frozen.rank * tokens.count * _targets(frozen)
    return kept


def product_kept(shape: BlockShape, kernel: Kernel) -> bool:
    """Whether the down projection's input is saved for it."""
    frozen = kernel.frozen
    if frozen is None or "mlp" in frozen.trained:
        return True
    if frozen.keeps_inputs:
        return False  # held on the autograd node until the whole block is done
    return frozen.mlp_result > 0 and not (frozen.dropout or frozen.cast)


def down_inputs(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """Bytes that adapters on the down projection keep of its input."""
    assert kernel.frozen is not None
    width = tokens.count * shape.intermediate / kernel.tensor
    return _input(kernel, kernel.frozen.mlp_result, width)


def held_inputs(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> float:
    """Bytes of inputs that int8 layers hold whether or not the block is checkpointed.

    bitsandbytes' `MatMul8bitLt.forward` puts its input on the autograd node (`ctx.tensors`) and not
    among the saved tensors, so that non-reentrant checkpointing does not see it (traced).
    """
    if kernel.frozen is None or not kernel.frozen.keeps_inputs:
        return 0.0
    rows, outside = kernel.element_bytes * tokens.count, kernel.tensor
    reads = (1 if shape.attention else 0) + (1 if shape.intermediate else 0)
    wide = shape.heads * shape.value_head_dim + shape.intermediate
    whole = reads * shape.hidden / (outside if kernel.sequence_parallel else 1)
    return rows * (whole + wide / outside)


def _targets(frozen: Frozen) -> int:
    return frozen.attention_input + frozen.attention_result + frozen.mlp_input + frozen.mlp_result


def _input(kernel: Kernel, targets: int, elements: float, *, held: bool = False) -> float:
    """Bytes that the adapters on `targets` layers keep of one input that all of them read.

    The input itself, once; each its own copy where dropout makes one (with a mask of 1 byte) or
    where autocast casts the fp32 copy that peft makes for fp32 adapters (`_cast_input_dtype`).
    """
    frozen = kernel.frozen
    assert frozen is not None
    apart = targets if frozen.dropout or frozen.cast else 0
    itself = frozen.keeps_inputs or (targets > 0 and not apart)
    copies = apart + (1 if itself and not held else 0)
    masks = targets if frozen.dropout else 0
    return (copies * kernel.element_bytes + masks) * elements


def _product(shape: BlockShape, kernel: Kernel, elements: float) -> float:
    """Bytes of the second projection's input that the activation does not need itself."""
    dropped = shape.position_bias and shape.dropout > 0  # T5, between the two projections
    if shape.activation == "relu" and not shape.gated and not dropped:
        return 0.0
    return kernel.element_bytes * elements


def _latent(shape: BlockShape, tokens: Tokens) -> float:
    ranks = shape.q_lora_rank + shape.kv_lora_rank
    norms = (shape.q_lora_rank > 0) + (shape.kv_lora_rank > 0)
    return tokens.count * (4 * ranks + 4 * norms)
