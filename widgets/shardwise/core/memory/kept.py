"""What the blocks of one stage keep for backward, for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.memory.activations import Saved, block_saved, kept_bytes, recomputed_bytes
from shardwise.core.memory.backward import BlockMemory
from shardwise.core.memory.buffers import autocasts
from shardwise.core.memory.moments import Moment, block_moments
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.memory.outside import outside_saved
from shardwise.core.memory.stages import Stage
from shardwise.core.scenario import Scenario
from shardwise.core.structure import BlockShape


@dataclass(frozen=True)
class StageActivations:
    """Bytes that one stage keeps for one micro-batch, and its blocks in order of forward.

    `kept` are all blocks', `early` what is saved before the first, `late` after the last.
    """

    kept: float
    blocks: tuple[BlockMemory, ...]
    early: float
    late: float

    @property
    def whole(self) -> float:
        """All that waits for backward."""
        return self.kept + self.early + self.late


def kernel_of(scenario: Scenario) -> Kernel:
    """How this scenario's blocks run."""
    layout, training = scenario.layout, scenario.training
    return Kernel(
        element_bytes=training.precision.compute_bytes,
        tensor=layout.tensor_parallel,
        sequence_parallel=layout.sequence_parallel,
        attention=training.attention,
        model_code=training.model_code,
        residual_bytes=4 if autocasts(layout, training.precision) else 0,
    )


def tokens_of(scenario: Scenario, shape: BlockShape) -> Tokens:
    """The tokens that a block of this shape sees: vision and audio encoders have their own."""
    training, fixed = scenario.training, scenario.model.fixed_sequence
    whole = fixed if fixed and shape.tokens != "sequence" else training.sequence_length
    cross = scenario.layout.context_parallel
    return Tokens(training.micro_batch, whole / cross, whole)


def stage_activations(scenario: Scenario, stage: Stage) -> StageActivations:
    """Bytes kept by a stage's blocks for one micro-batch, under its checkpointing."""
    kernel, training = kernel_of(scenario), scenario.training
    blocks: list[BlockMemory] = []
    for shape, count in stage.blocks:
        tokens = tokens_of(scenario, shape)
        saved = block_saved(shape, tokens, kernel)
        moments = block_moments(shape, tokens, kernel)
        own = {
            kind: _block_memory(saved, shape, kernel, kind, moments)
            for kind in _kinds(training.activation_checkpointing)
        }
        for _ in range(count):
            kind = training.activation_checkpointing
            if kind == "every":
                kind = "none" if len(blocks) % training.checkpoint_every else "full"
            blocks.append(own[kind])
    whole = Tokens(
        training.micro_batch,
        training.sequence_length / scenario.layout.context_parallel,
        training.sequence_length,
    )
    if stage.blocks and stage.blocks[-1][0].tokens == "image":
        whole = tokens_of(scenario, stage.blocks[-1][0])
    outside = outside_saved(stage, whole, kernel, scenario.model.vocabulary)
    kept = sum(block.kept for block in blocks)
    return StageActivations(kept, tuple(blocks), outside.early, outside.late)


def _kinds(checkpointing: str) -> tuple[str, ...]:
    return ("none", "full") if checkpointing == "every" else (checkpointing,)


def _block_memory(
    saved: Saved, shape: BlockShape, kernel: Kernel, kind: str, moments: tuple[Moment, ...]
) -> BlockMemory:
    """A block under one kind of checkpointing.

    A checkpoint holds the block's input, which transformers' fp32 RMSNorm does not save itself.
    """
    recomputed = recomputed_bytes(saved, kind)
    copied = kernel.eager_modules and shape.norm == "rmsnorm" and kernel.residual < 4
    if kind == "full" and copied:
        recomputed += saved.input_bytes
    return BlockMemory(kept_bytes(saved, kind), recomputed, saved.input_bytes, moments)
