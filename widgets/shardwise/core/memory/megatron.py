"""What Megatron-LM and TransformerEngine hold besides states and saved activations.

Each term is named after the code that allocates it; they count where the engine and the model code
are both Megatron-LM's. Sizes in bytes on one rank.
"""

from __future__ import annotations

from functools import lru_cache

from shardwise.core.arrays import most
from shardwise.core.hardware import Gpu
from shardwise.core.memory.kernel import micro_batch_tokens
from shardwise.core.memory.loss import LossBytes
from shardwise.core.memory.stages import Stage
from shardwise.core.scenario import Scenario

_MIB = 2**20
_LARGE_WORKSPACE = ("Hopper", "Blackwell")


def runs_megatron(scenario: Scenario) -> bool:
    """Whether Megatron-LM's engine runs its own modules."""
    return scenario.layout.engine == "megatron" and scenario.training.model_code == "megatron"


def resident_bytes(scenario: Scenario, stage: Stage) -> float:
    """Bytes that are there all the time from the second micro-batch on, over states and gradients.

    The workspaces of cuBLAS, TransformerEngine's placeholders for weight gradients, and one buffer
    (`get_global_memory_buffer`, named "mpu") that serves two ends: with sequence parallelism the
    head's input is gathered into it (megatron/core/tensor_parallel/layers.py), and Megatron-LM's
    own attention (`eager` here, `--transformer-impl local`) computes its scores in it
    (megatron/core/transformer/dot_product_attention.py, `matmul_input_buffer`).
    """
    if not runs_megatron(scenario):
        return 0.0
    layout, element = scenario.layout, scenario.training.precision.compute_bytes
    grouped = any(shape.experts for shape, _ in stage.blocks)
    size = float(workspace_bytes(scenario.cluster.gpu, grouped))
    if layout.gradient_accumulation_fusion:
        size += placeholder_bytes(stage, element)
    cells: float = 0
    if layout.sequence_parallel and stage.has_head and scenario.model.vocabulary:
        cells = micro_batch_tokens(scenario) * scenario.model.hidden
    if scenario.training.attention == "eager":
        heads = max((shape.heads for shape, _ in stage.blocks), default=0) / layout.tensor_parallel
        length = scenario.training.sequence_length
        cells = most(cells, heads * micro_batch_tokens(scenario) * length)
    return size + element * cells


def workspace_bytes(gpu: Gpu, grouped: bool) -> int:
    """cuBLAS workspaces of the forward and the backward thread, and TransformerEngine's own.

    Experts' grouped products run on four streams with a workspace each
    (`get_multi_stream_cublas_workspace` of the same file).

    PyTorch: 4096 x 8 KiB on Hopper and Blackwell, else 4096 x 2 + 16 x 8 KiB
    (aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`), one for each thread's
    handle. TransformerEngine: 32 MiB there, else 4 MiB (transformer_engine/pytorch/module/base.py,
    `get_cublas_workspace_size_bytes`): 96 MiB on an H100, 20.25 MiB on an A100.
    """
    engine = 1 + (4 if grouped else 0)
    if gpu.architecture in _LARGE_WORKSPACE:
        return (2 * 32 + engine * 32) * _MIB
    return 2 * (4096 * 2 + 16 * 8) * 1024 + engine * 4 * _MIB


def placeholder_bytes(stage: Stage, element: int) -> float:
    """Dummy weight gradients in the weights' type, one for each shape that a stage's blocks have.

    With gradient accumulation fused, the product goes to `main_grad` itself, but autograd must be
    handed a tensor: TransformerEngine makes one a shape and keeps it
    (transformer_engine/pytorch/module/base.py, `get_dummy_wgrad`). Queries, keys and values are one
    matrix, as are gate and up; each expert's matrices have the same shapes.
    """
    return float(element * _distinct(stage))


@lru_cache(maxsize=256)
def _distinct(stage: Stage) -> int:
    sizes: set[tuple[str, int]] = set()
    for unit in set(stage.unit_tensors):
        parts: dict[str, int] = {}
        for tensor in unit:
            if len(tensor.shape) > 1 and tensor.part in ("attention", "mlp", "experts"):
                share = tensor.shape[0] if tensor.expert else 1
                parts[tensor.part] = parts.get(tensor.part, 0) + tensor.elements // share
            elif len(tensor.shape) == 2 and tensor.part == "other":  # a mixer's two projections
                parts[f"other {tensor.shape}"] = tensor.elements
        sizes |= set(parts.items())
    return sum(size for _, size in sizes)


def head_loss(scenario: Scenario, stage: Stage) -> LossBytes:
    """Logits and loss of Megatron-LM's vocabulary-parallel cross entropy, and the head's backward.

    `full` (megatron/core/tensor_parallel/cross_entropy.py): 16-bit logits V/t a token and their
    fp32 copy, which becomes the softmax, then the gradient, in place; autograd casts that to 16
    bits: 2 + 4 bytes an entry at the end of forward and at the start of backward. `fused`
    (`--cross-entropy-loss-fusion` with TransformerEngine, transformer_engine/common/triton/
    cross_entropy.py): the gradient overwrites the 16-bit logits. Then the head's backward: the
    gradients of logits, of its whole input and of its weight (megatron/core/tensor_parallel/
    layers.py, `LinearWithGradAccumulationAndAsyncCommunication.backward`: made in the weight's type
    with or without fusion). Each depth of multi-token prediction has logits and a loss of its own
    before the last one's, whose softmax (or 16-bit gradient) waits for its backward.
    """
    training, tensor = scenario.training, scenario.layout.tensor_parallel
    element, tokens = training.precision.compute_bytes, micro_batch_tokens(scenario)
    vocabulary, hidden = scenario.model.vocabulary / tensor, scenario.model.hidden
    logits = element * tokens * vocabulary
    deeper = sum(count for shape, count in stage.blocks if shape.prediction)
    weight = element * vocabulary * hidden if scenario.layout.engine == "megatron" else 0.0
    head = logits + weight + element * tokens * hidden
    if training.loss == "fused":
        held = deeper * logits
        return LossBytes(logits + held, head + held, logits + held)
    softmax = 4.0 * tokens * vocabulary
    held = deeper * softmax
    return LossBytes(logits + softmax + held, most(logits + softmax, head) + held, softmax + held)
