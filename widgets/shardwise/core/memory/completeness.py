"""Which scenarios save more for backward than an estimate counts."""

from __future__ import annotations

from shardwise.core.memory.kernel import kernel_of
from shardwise.core.memory.operators.recorded import recorded_layer
from shardwise.core.memory.operators.state_space import scan_counted
from shardwise.core.scenario import Scenario


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
