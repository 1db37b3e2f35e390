"""What the blocks of one stage keep for backward, for one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from shardwise.core.adapters import targets_by_input
from shardwise.core.layout import Layout
from shardwise.core.memory.activations import block_saved, kept_bytes, recomputed_bytes
from shardwise.core.memory.autocast import autocasts
from shardwise.core.memory.backward import BlockMemory
from shardwise.core.memory.moments import adapter_forward, adapter_in_forward, block_moments
from shardwise.core.memory.operators.attention import mask_bytes
from shardwise.core.memory.operators.frozen import down_inputs, held_inputs
from shardwise.core.memory.operators.norms import norm_bytes
from shardwise.core.memory.operators.per_op import kept_results
from shardwise.core.memory.operators.run import Frozen, Kernel, Tokens
from shardwise.core.memory.outside import final_norm_backward, outside_saved
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.walk import Walk, walk_of
from shardwise.core.model import Model
from shardwise.core.precision import Precision
from shardwise.core.quantization import largest_linear
from shardwise.core.scenario import Scenario
from shardwise.core.structure import BlockShape
from shardwise.core.trainable import PARTS, Trainable
from shardwise.core.training import Training

CUDNN_ATTENTION = ("Hopper", "Blackwell")
"""Where TransformerEngine takes cuDNN's fused attention over the flash-attn package
(transformer_engine/pytorch/attention, `get_attention_backend`)."""


class StageActivations(NamedTuple):
    """Bytes that one stage keeps for one micro-batch.

    `kept` are all blocks', `memories` one for each kind of block of the stage's walk, `early` what
    is saved before the first block, `late` after the last; `shared` of `early` goes with the first
    block, `decoder` of it with the decoder's first. `closing` are bytes of the final norm and its
    backward, the first moment after the head's; `adapting` those of the last block's adapter.
    """

    kept: float
    memories: tuple[BlockMemory, ...]
    early: float
    late: float
    shared: float = 0.0
    decoder: float = 0.0
    closing: float = 0.0
    adapting: float = 0.0

    @property
    def whole(self) -> float:
        """All that waits for backward."""
        return self.kept + self.early + self.late


ATTENTION = (
    "attention input",
    "latent projections",
    "queries, keys, values",
    "attention output",
    "query and key norms",
    "attention scores",
)
"""The operators of a block's attention."""


def kernel_of(scenario: Scenario) -> Kernel:
    """How this scenario's blocks run."""
    training = scenario.training
    return _kernel(
        scenario.model,
        scenario.layout,
        training.precision,
        (training.attention, training.model_code),
        training.trainable,
        scenario.cluster.gpu.architecture not in CUDNN_ATTENTION,
    )


@lru_cache(maxsize=1024)
def _kernel(
    model: Model,
    layout: Layout,
    precision: Precision,
    code: tuple[str, str],
    trainable: Trainable,
    copies_output: bool,
) -> Kernel:
    attention, model_code = code
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
        context_a2a=layout.context_parallel > 1 and layout.context_exchange == "a2a",
        output_copied=model_code == "megatron" and attention == "flash" and copies_output,
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


def tokens_of(scenario: Scenario, shape: BlockShape) -> Tokens:
    """The tokens that a block of this shape sees: vision and audio encoders have their own."""
    training, fixed = scenario.training, scenario.model.fixed_sequence
    whole = fixed if fixed and shape.tokens != "sequence" else training.sequence_length
    cross = scenario.layout.context_parallel
    crossed = fixed if shape.cross_attention and shape.tokens == "sequence" else 0
    return Tokens(training.micro_batch, whole / cross, whole, crossed)


def stage_walk(stage: Stage, training: Training) -> Walk:
    """The stage's blocks by kind, under its checkpointing."""
    return walk_of(stage.blocks, training.activation_checkpointing, training.checkpoint_every)


def stage_activations(
    scenario: Scenario, stage: Stage, kernel: Kernel | None = None
) -> StageActivations:
    """Bytes kept by a stage's blocks for one micro-batch, under its checkpointing.

    `kernel` is `kernel_of(scenario)`, for who has it already.
    """
    kernel, training = kernel or kernel_of(scenario), scenario.training
    walk = stage_walk(stage, training)
    memories = tuple(
        block_memory(shape, tokens_of(scenario, shape), kernel, kind) for shape, kind in walk.kinds
    )
    whole = Tokens(
        training.micro_batch,
        training.sequence_length / scenario.layout.context_parallel,
        training.sequence_length,
    )
    if stage.blocks and stage.blocks[-1][0].tokens == "image":
        whole = tokens_of(scenario, stage.blocks[-1][0])
    outside = outside_saved(stage, whole, kernel, scenario.model.vocabulary)
    held = _held_masks(scenario, walk, kernel)
    masks = sum(held.values(), 0.0)
    early = outside.early - unneeded_at_the_start(scenario, stage, whole, kernel) + masks
    kept = 0.0
    for count, memory in zip(walk.counts, memories, strict=True):
        kept = kept + count * memory.kept
    shared, decoder = outside.shared + masks, outside.decoder + held.get((False, True), 0.0)
    closing = final_norm_backward(stage, whole, kernel)
    adapting = 0.0
    if stage.blocks:
        last = stage.blocks[-1][0]
        adapting = adapter_in_forward(last, tokens_of(scenario, last), kernel)
    return StageActivations(kept, memories, early, outside.late, shared, decoder, closing, adapting)


def _held_masks(
    scenario: Scenario, walk: Walk, kernel: Kernel
) -> Mapping[tuple[bool, bool], float]:
    """Attention masks are arguments of the blocks: checkpoints hold them until the last of them.

    By (of a sliding window, of a decoder with cross attention).
    """
    if not kernel.eager_modules or (kernel.frozen is not None and not kernel.frozen.flows):
        return {}
    return {
        (shape.sliding_window > 0, shape.cross_attention): mask_bytes(
            shape, tokens_of(scenario, shape), kernel
        )
        for shape, kind in walk.kinds
        if kind != "none" and shape.attention
    }


def unneeded_at_the_start(
    scenario: Scenario, stage: Stage, tokens: Tokens, kernel: Kernel
) -> float:
    """Bytes that the first block does not save before its first adapter, over a frozen embedding.

    Nothing there has a gradient: the first norm; with adapters on attention's output or in the MLP
    only, all that comes before them; the MLP beside an adapted attention. Checkpointing makes the
    embedding's result require one (`enable_input_require_grads`), and then all is saved.
    """
    frozen, training = kernel.frozen, scenario.training
    before = frozen is not None and not {"embedding", "position"} & set(frozen.trained)
    if frozen is None or not before or not frozen.flows or not stage.has_embedding:
        return 0.0
    if training.activation_checkpointing != "none":
        return 0.0
    first = stage.blocks[0][0] if stage.blocks else None
    if first is None or not kernel.eager_modules:
        return 0.0
    if "norm" in frozen.trained:  # its weight's gradient reads the product, not the fp32 copy
        return 4.0 * tokens.count * first.hidden if first.norm == "rmsnorm" else 0.0
    masks = frozen.attention_input if frozen.dropout else 0
    norm = norm_bytes(first, tokens.count, first.hidden, kernel)
    if not frozen.rank:
        return norm
    saved = dict(block_saved(first, tokens, kernel).operators)
    in_mlp = frozen.mlp_input or frozen.mlp_result
    if frozen.attention_input:
        beside = saved.get("MLP", 0.0) if first.parallel and not in_mlp else 0.0
        return norm + beside + masks * tokens.count * first.hidden
    if frozen.attention_result:  # it reads attention's output
        return norm + sum(saved.get(name, 0.0) for name in ATTENTION if name != "attention output")
    unread = sum(saved.get(name, 0.0) for name in (*ATTENTION, "norms"))
    if frozen.mlp_input or not first.intermediate:
        return unread
    # The down projection alone: the activation has no gradient either.
    return unread + saved.get("MLP", 0.0) - down_inputs(first, tokens, kernel)


def block_memory(shape: BlockShape, tokens: Tokens, kernel: Kernel, kind: str) -> BlockMemory:
    """A block under one kind of checkpointing."""
    made = _block_memory if tokens.many else _remembered
    return made(shape, tokens, kernel, kind)


def _block_memory(shape: BlockShape, tokens: Tokens, kernel: Kernel, kind: str) -> BlockMemory:
    """A checkpoint holds the block's input, which transformers' fp32 RMSNorm does not save."""
    held = 0.0
    if kind == "full" and kernel.frozen is not None:
        # int8 layers' first inputs stay; those of the recomputation go with its graph.
        held = held_inputs(shape, tokens, kernel)
        kernel = replace(kernel, frozen=replace(kernel.frozen, keeps_inputs=False))
    saved = block_saved(shape, tokens, kernel)
    results = kept_results(shape, tokens, kernel) if kind == "per-op" else (0.0, 0.0)
    kept, recomputed = kept_bytes(saved, kind, results[0]), recomputed_bytes(saved, kind, results)
    if kernel.frozen is not None and not kernel.frozen.flows:
        kept = recomputed = 0.0  # checkpoint holds no input that needs no gradient (traced)
    copied = kernel.eager_modules and shape.norm == "rmsnorm" and kernel.residual < 4
    if kind in ("full", "per-op") and copied:
        recomputed += saved.input_bytes
    moments = block_moments(shape, tokens, kernel, saved)
    if kind == "full" and kernel.frozen is not None:
        moments += adapter_forward(shape, tokens, kernel)
    return BlockMemory(kept + held, recomputed, saved.input_bytes, moments)


_remembered = lru_cache(maxsize=64)(_block_memory)
