"""What the blocks of one stage keep for backward, for one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from shardwise.core.memory.activations import Saved, block_saved, kept_bytes, recomputed_bytes
from shardwise.core.memory.backward import BlockMemory
from shardwise.core.memory.held_scores import forward_bytes, run_again
from shardwise.core.memory.kernel import kernel_of, tokens_of
from shardwise.core.memory.moments import Moment, adapter_forward, adapter_in_forward, block_moments
from shardwise.core.memory.operators.attention import mask_bytes
from shardwise.core.memory.operators.frozen import held_inputs
from shardwise.core.memory.operators.per_op import kept_results
from shardwise.core.memory.operators.recompute import CORE_ATTENTION, recomputed_modules
from shardwise.core.memory.operators.recorded import Layer, bytes_of, counts_of, recorded_layer
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.memory.outside import final_norm_backward, outside_saved
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.unneeded import unneeded_at_the_start
from shardwise.core.memory.walk import Walk, kind_at, walk_of
from shardwise.core.scenario import Scenario
from shardwise.core.structure import BlockShape
from shardwise.core.training import Training


class StageActivations(NamedTuple):
    """Bytes that one stage keeps for one micro-batch.

    `kept` are all blocks', `memories` one for each kind of block of the stage's walk, `early` what
    is saved before the first block, `late` after the last; `shared` of `early` goes with the first
    block, `decoder` of it with the decoder's first. `closing` are bytes of the final norm and its
    backward, the first moment after the head's; `running` those of the last block in forward, over
    what it keeps: of its adapter, or of scores that are held.
    """

    kept: float
    memories: tuple[BlockMemory, ...]
    early: float
    late: float
    shared: float = 0.0
    decoder: float = 0.0
    closing: float = 0.0
    running: float = 0.0

    @property
    def whole(self) -> float:
        """All that waits for backward."""
        return self.kept + self.early + self.late


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
    seen = tokens_of(scenario, stage.blocks[0][0]) if stage.blocks else whole
    outside = outside_saved(stage, whole, kernel, scenario.model.vocabulary, seen)
    held = _held_masks(scenario, walk, kernel)
    masks = sum(held.values(), 0.0)
    early = outside.early - unneeded_at_the_start(scenario, stage, whole, kernel) + masks
    kept = 0.0
    for count, memory in zip(walk.counts, memories, strict=True):
        kept = kept + count * memory.kept
    shared, decoder = outside.shared + masks, outside.decoder + held.get((False, True), 0.0)
    closing = final_norm_backward(stage, whole, kernel)
    running = _running(scenario, stage, kernel) if stage.blocks else 0.0
    return StageActivations(kept, memories, early, outside.late, shared, decoder, closing, running)


def _running(scenario: Scenario, stage: Stage, kernel: Kernel) -> float:
    """Bytes of the last block at a moment of forward, over what it keeps; 0 where none is high."""
    last, training = stage.blocks[-1][0], scenario.training
    tokens = tokens_of(scenario, last)
    if not last.holds_scores:
        return adapter_in_forward(last, tokens, kernel)
    how = training.activation_checkpointing, training.checkpoint_every
    own = kind_at(*how, stage.layers - 1)
    before = kind_at(*how, stage.layers - 2) if stage.layers > 1 else ""
    running = forward_bytes(last, tokens, kernel, block_saved(last, tokens, kernel), (before, own))
    # Checkpoints hold the mask anyway (`_held_masks`).
    mask = mask_bytes(last, tokens, kernel) if how[0] == "none" else 0.0
    return running + mask


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


@lru_cache(maxsize=1024)
def block_memory(shape: BlockShape, tokens: Tokens, kernel: Kernel, kind: str) -> BlockMemory:
    """A block under one kind of checkpointing.

    A checkpoint holds the block's input, which transformers' fp32 RMSNorm does not save.
    """
    if shape.recorded and (layer := recorded_layer(shape, kernel)) is not None:
        return _recorded_memory(layer, shape, tokens, block_saved(shape, tokens, kernel), kind)
    held = 0.0
    if kind == "full" and kernel.frozen is not None:
        # int8 layers' first inputs stay; those of the recomputation go with its graph.
        held = held_inputs(shape, tokens, kernel)
        kernel = replace(kernel, frozen=replace(kernel.frozen, keeps_inputs=False))
    saved = block_saved(shape, tokens, kernel)
    results = kept_results(shape, tokens, kernel) if kind == "per-op" else (0.0, 0.0)
    kept, recomputed = kept_bytes(saved, kind, results[0]), recomputed_bytes(saved, kind, results)
    if kind == "selective" and kernel.recomputed != CORE_ATTENTION:
        dropped, recomputed = recomputed_modules(shape, dict(saved.operators), kernel.recomputed)
        kept = saved.total - dropped
    if kernel.frozen is not None and not kernel.frozen.flows:
        kept = recomputed = 0.0  # checkpoint holds no input that needs no gradient (traced)
    first = shape.norm != "layernorm" and shape.norm_first
    copied = kernel.eager_modules and first and kernel.residual < 4
    if kind in ("full", "per-op") and copied:
        recomputed += saved.input_bytes
    moments = block_moments(shape, tokens, kernel, saved)
    if kind != "none":
        moments += run_again(shape, tokens, kernel, saved)
    if kind == "full" and kernel.frozen is not None:
        moments += adapter_forward(shape, tokens, kernel)
    return BlockMemory(kept + held, recomputed, saved.input_bytes, moments)


def _recorded_memory(
    layer: Layer, shape: BlockShape, tokens: Tokens, saved: Saved, kind: str
) -> BlockMemory:
    """A recorded layer's bytes: kept, recomputed, and its moments.

    A checkpoint holds the layer's input, which is counted twice where the layer saves it too; while
    it is recomputed, its forward moments stand beside the gradient of the stream.
    """
    counts = counts_of(shape, tokens)
    own = bytes_of(layer.entering, counts)
    moments = [
        Moment(bytes_of(one.live, counts) - saved.total, one.feed_forward, one.others)
        for one in layer.instants
    ]
    if kind not in ("full", "per-op"):
        kept = kept_bytes(saved, kind)
        return BlockMemory(kept, saved.total - kept, saved.input_bytes, tuple(moments))
    for forward in layer.forward:
        moments.append(Moment(bytes_of(forward, counts) - saved.total + own, 0.0, 0.0))
    return BlockMemory(saved.input_bytes, saved.total - own, saved.input_bytes, tuple(moments))
