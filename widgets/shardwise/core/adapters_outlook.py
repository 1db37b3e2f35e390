"""What adapters would change: where full training does not fit, and over a base that is frozen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.core.adapters import trained_parameters
from shardwise.core.advice import adjustments, with_changes
from shardwise.core.attempts import fits
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import scenario_for
from shardwise.core.trainable import QUANTIZED, Trainable
from shardwise.core.training import Training
from shardwise.core.units import format_count, format_gib

RANK = 16
"""peft's examples and torchtune's recipes take 8 to 64; the rank hardly moves the total."""


def with_adapters(asked: Scenario) -> str:
    """The lightest adapters that would fit whole on each GPU where full training fits nowhere.

    LoRA (Hu et al. 2021) over a 16-bit base first, then QLoRA's 4 bits (Dettmers et al. 2023); each
    as the training is set, then with full checkpointing and one sample.
    """
    if not asked.training.trainable.everything:
        return ""
    for training in _adapted(asked.training):
        try:
            laid = scenario_for(replace(asked, training=training), "ddp")
        except ScenarioError:
            return ""  # a model without the linear layers that adapters go on
        if laid is not None and fits(report := estimate(laid)):
            kind = "QLoRA" if training.trainable.quantized else "LoRA"
            changes = with_changes(adjustments(asked.training, laid))
            return (
                f"If adapters will do instead of full training (Trained: {kind}): rank "
                f"{RANK}{changes} needs {format_gib(report.needed_bytes)} a GPU and fits."
            )
    return ""


def _adapted(given: Training) -> Iterator[Training]:
    for base in ("16-bit", "nf4"):
        trainable = Trainable(rank=RANK, targets=("default",), base=base)
        adapted = replace(given, trainable=trainable)
        yield adapted
        yield replace(adapted, activation_checkpointing="full", checkpoint_every=0, micro_batch=1)


def frozen_base(asked: Scenario, chosen: Scenario, strategy: str) -> tuple[str, ...]:
    """What is trained beside what is frozen, what ZeRO can do for it, and a smaller base."""
    trainable, model = asked.training.trainable, asked.model
    if trainable.everything:
        return ()
    trained = trained_parameters(model, trainable)
    lines = [
        f"{format_count(trained)} of {format_count(model.parameters)} parameters are trained "
        f"({trained / model.parameters:.2%}); the rule of 16 is that of full training."
    ]
    if strategy != "ddp":
        states = trained * 12 / 2**30
        lines.append(
            f"ZeRO-1 and ZeRO-2 shard what is trained, {states:.2f} GiB of optimizer state at "
            "most: the frozen weights stay whole on every GPU, however many there are."
        )
    if strategy == "ddp" or not trainable.rank or trainable.quantized:
        return tuple(lines)
    for base in QUANTIZED:
        smaller = replace(asked.training, trainable=replace(trainable, base=base))
        laid = scenario_for(replace(asked, training=smaller), "ddp")
        if laid is not None and estimate(laid).verdict == "fits":
            needed = format_gib(estimate(laid).needed_bytes)
            lines.append(
                f"Stored as {base}, the base would fit whole on each GPU under DDP ({needed}), "
                "with no gathering at all."
            )
            break
    return tuple(lines)
