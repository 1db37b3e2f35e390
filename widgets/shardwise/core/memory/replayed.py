"""What the caching allocator holds where a step is known tensor by tensor, by replay."""

from __future__ import annotations

from functools import lru_cache

from shardwise.core.memory.allocator import Allocator, held_for
from shardwise.core.memory.streams.deepspeed_pipeline import PipelineStage
from shardwise.core.scenario import Scenario
from shardwise.core.structure import BlockShape
from shardwise.core.trainable import ALL


def has_stream(scenario: Scenario) -> bool:
    """Whether the order of a step's tensors is written down for this code.

    Megatron-LM's dense blocks with their own attention, all checkpointed, in DeepSpeed's pipeline
    with ZeRO-1 or none.
    """
    layout, training = scenario.layout, scenario.training
    shapes = {shape for shape, _ in scenario.model.block_groups}
    return (
        (layout.engine, training.model_code) == ("deepspeed", "megatron")
        and (training.attention, training.activation_checkpointing) == ("eager", "full")
        and layout.zero_stage <= 1
        and layout.schedule == "1f1b"
        and layout.context_parallel == layout.expert_parallel == layout.virtual_stages == 1
        and not layout.sequence_parallel
        and layout.offload_optimizer == layout.offload_parameters == "none"
        and training.trainable == ALL
        and all(_dense(shape) for shape in shapes)
        and len(shapes) == 1
    )


def _dense(shape: BlockShape) -> bool:
    return shape.attention and shape.causal and not (shape.experts or shape.cross_attention)


@lru_cache(maxsize=64)
def replayed(scenario: Scenario, index: int) -> Allocator | None:
    """The allocator after two steps of one stage; None where no stream is written down.

    Peaks of it are what tensors took and what was reserved for them. Tens of milliseconds.
    """
    if not has_stream(scenario):
        return None
    return held_for(PipelineStage(scenario, index).events())
