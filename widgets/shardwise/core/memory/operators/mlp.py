"""Dense MLPs: the tensors of their width that the activation function keeps."""

from __future__ import annotations

from shardwise.core.memory.operators.run import Kernel
from shardwise.core.structure import BlockShape

# Activations that transformers writes out in several operators (activations.py): the tensors of
# the MLP's width kept by the activation alone, its result not counted. Others are one kernel that
# keeps its input.
_WRITTEN_OUT = {"gelu_new": 4, "gelu_fast": 7, "quick_gelu": 2}


def mlp_widths(shape: BlockShape, kernel: Kernel) -> int:
    """How many tensors of the MLP's width are saved.

    Plain: the activation's input and the second projection's input (8sbh + 8sbh of Korthikanti et
    al. 2022). Gated: gate, up and their product; the separate modules of transformers, torchtitan
    and nanotron also keep the activated gate for the multiplication; fused and compiled ones
    compute it again (min cut of torch/_functorch/partitioners.py). transformers, traced: ReLU keeps
    its result alone, which is the second projection's input; GPT-2's `gelu_new` keeps its input,
    tanh, 1 + tanh and 0.5 x; NeoX-20B's `gelu_fast` also the products inside.
    """
    if kernel.eager_modules:
        if kernel.autocasts and shape.activation == "gelu_new":
            # Autocast computes pow in fp32: the input's copy, tanh, 1 + tanh (and the gate) are.
            return 7 + (4 if shape.gated else 1)
        # T5 drops between the two projections: ReLU's result is then not the second one's input.
        dropped = shape.position_bias and shape.dropout > 0
        in_place = shape.activation == "relu" and not dropped
        kept = _WRITTEN_OUT.get(shape.activation, 0 if in_place else 1)
        return kept + (3 if shape.gated else 1)
    if not shape.gated:
        return 2
    return 4 if kernel.separate else 3


def mlp_backward_widths(shape: BlockShape, kernel: Kernel) -> tuple[int, int]:
    """(gradients, tensors already freed) of the MLP's width at the worst moment of its backward.

    Gated: gradients of the product, the activated gate and up while the product, read by the down
    projection only, is freed: 6f less 2f (traced). Plain: gradients of result and input; a written
    out GELU has one more. Compiled: one kernel writes the gradients of gate and up, one of them in
    the product's place (`inplace_buffers` of torch/_inductor/config.py). T5 drops in between: what
    the down projection reads is the dropout's result (traced).
    """
    if kernel.model_code == "compiled":
        return 2, 1
    dropped = kernel.eager_modules and shape.position_bias and shape.dropout > 0
    if shape.gated:
        return 3, 1
    if shape.activation in _WRITTEN_OUT:
        return 3, 1
    return (2, 0) if shape.activation == "relu" and not dropped else (2, 1)
