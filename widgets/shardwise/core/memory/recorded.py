"""Recorded layers under checkpointing, and which blocks' activations no formula here knows."""

from __future__ import annotations

from shardwise.core.memory.activations import Saved, kept_bytes
from shardwise.core.memory.backward import BlockMemory
from shardwise.core.memory.kernel import kernel_of
from shardwise.core.memory.moments import Moment
from shardwise.core.memory.operators.recorded import (
    Layer,
    bytes_of,
    counts_of,
    recorded_layer,
)
from shardwise.core.memory.operators.run import Tokens
from shardwise.core.memory.operators.state_space import scan_counted
from shardwise.core.scenario import Scenario
from shardwise.core.structure import BlockShape


def recorded_memory(
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


def leaves_something_out(scenario: Scenario) -> bool:
    """Whether there may be more than is counted.

    Activations of mixers in code not recorded, or a config of an architecture that is not known:
    those read as a LLaMA-like decoder had 4 to 97 % of their parameters missing. A bare number of
    parameters is taken at its word.
    """
    model = scenario.model
    guessed = not model.known and model.architecture != "parameters only"
    return guessed or leaves_out_activations(scenario)


def leaves_out_activations(scenario: Scenario) -> bool:
    """Whether blocks save more for backward than is counted: mixers in code not recorded."""
    special = [s for s, _ in scenario.model.block_groups if s.recorded or s.mixer is not None]
    training = scenario.training
    if not special:
        return False
    if training.model_code != "transformers":
        return any(not scan_counted(shape, training.model_code) for shape in special)
    kernel, by_operator = kernel_of(scenario), training.activation_checkpointing == "per-op"
    return by_operator or any(recorded_layer(shape, kernel) is None for shape in special)
