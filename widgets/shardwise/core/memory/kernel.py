"""How the blocks of a scenario run, and on which tokens."""

from __future__ import annotations

from functools import lru_cache

from shardwise.core.adapters import targets_by_input
from shardwise.core.layout import Layout
from shardwise.core.memory.autocast import autocasts
from shardwise.core.memory.operators.recompute import CORE_ATTENTION
from shardwise.core.memory.operators.run import Frozen, Kernel, Tokens
from shardwise.core.model import Model
from shardwise.core.precision import Precision
from shardwise.core.quantization import largest_linear
from shardwise.core.routing import expert_load
from shardwise.core.scenario import Scenario
from shardwise.core.structure import BlockShape
from shardwise.core.trainable import PARTS, Trainable

CUDNN_ATTENTION = ("Hopper", "Blackwell")
"""Where TransformerEngine takes cuDNN's fused attention over the flash-attn package
(transformer_engine/pytorch/attention, `get_attention_backend`)."""


def kernel_of(scenario: Scenario) -> Kernel:
    """How this scenario's blocks run."""
    training = scenario.training
    return _kernel(
        scenario.model,
        scenario.layout,
        training.precision,
        (training.attention, training.model_code, training.recompute_modules),
        training.trainable,
        scenario.cluster.gpu.architecture not in CUDNN_ATTENTION,
        expert_load(training, scenario.layout),
    )


@lru_cache(maxsize=1024)
def _kernel(
    model: Model,
    layout: Layout,
    precision: Precision,
    code: tuple[str, str, tuple[str, ...]],
    trainable: Trainable,
    copies_output: bool,
    load: float,
) -> Kernel:
    attention, model_code, recomputed = code
    again = gathers_again(layout, model_code)
    return Kernel(
        element_bytes=precision.compute_bytes,
        tensor=layout.tensor_parallel,
        sequence_parallel=layout.sequence_parallel,
        attention=attention,
        model_code=model_code,
        residual_bytes=4 if fp32_stream(layout, precision, trainable) else 0,
        frozen=None if trainable.everything else _frozen(model, trainable, layout, precision),
        gathers_inputs=layout.sequence_parallel and not again,
        expert_tensor=layout.expert_tensor,
        expert_ranks=layout.expert_parallel,
        expert_load=load,
        context_a2a=layout.context_parallel > 1 and layout.context_exchange == "a2a",
        recomputed=recomputed if model_code == "megatron" else CORE_ATTENTION,
        output_copied=model_code == "megatron" and attention == "flash" and copies_output,
        fp32_buffers=precision.parameter_bytes == 4 > precision.compute_bytes,
    )


def gathers_again(layout: Layout, model_code: str) -> bool:
    """Whether sequence parallelism gathers a linear layer's input again in backward.

    Megatron-LM does, and nanotron with `tp_recompute_allgather`; torch's ColwiseParallel saves the
    whole input on every rank, unless async tensor parallelism joins gathering and product.
    """
    chosen = layout.regather_inputs
    return model_code in ("megatron", "nanotron") if chosen is None else chosen


def fp32_stream(layout: Layout, precision: Precision, trainable: Trainable) -> bool:
    """Whether autocast runs over an fp32 residual stream: embeddings are stored in fp32."""
    return autocasts(layout, precision) and trainable.base in ("as-trained", "fp32")


def _frozen(model: Model, trainable: Trainable, layout: Layout, precision: Precision) -> Frozen:
    """How blocks run with frozen weights and adapters."""
    if not trainable.rank:
        trained = tuple(part for part in PARTS if part not in trainable.frozen)
        own = {tensor.part for module in model.blocks for tensor in module.tensors}
        flows = bool(own & set(trained)) or bool({"embedding", "position"} & set(trained))
        return Frozen(trained, flows)
    targets = targets_by_input(model, trainable)
    largest = max(largest_linear(module) for module in model.blocks) if trainable.quantized else 0
    return Frozen(
        rank=trainable.rank,
        attention_input=targets.get("attention input", 0),
        attention_result=targets.get("attention result", 0),
        mlp_input=targets.get("mlp input", 0),
        mlp_result=targets.get("mlp result", 0),
        dropout=trainable.dropout > 0,
        cast=autocasts(layout, precision),
        dequantized_bytes=precision.compute_bytes * largest / layout.tensor_parallel,
        keeps_inputs=trainable.base == "int8",
    )


def micro_batch_tokens(scenario: Scenario) -> float:
    """Tokens of one micro-batch on this rank."""
    training = scenario.training
    return training.micro_batch * training.sequence_length / scenario.layout.context_parallel


def tokens_of(scenario: Scenario, shape: BlockShape) -> Tokens:
    """The tokens that a block of this shape sees: vision and audio encoders have their own.

    A vision tower sees each picture of each sample by itself.
    """
    training, fixed = scenario.training, scenario.model.fixed_sequence
    whole = fixed if fixed and shape.tokens != "sequence" else training.sequence_length
    cross = scenario.layout.context_parallel
    crossed = fixed if shape.cross_attention and shape.tokens == "sequence" else 0
    seen = training.images_per_sample if shape.tokens == "image" else 1
    return Tokens(training.micro_batch * seen, whole / cross, whole, crossed)
