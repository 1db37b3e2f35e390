"""Beside the downloads: what each program really runs, and what it leaves to the user."""

from __future__ import annotations

from shardwise.core.decision import Decision, decide
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib
from shardwise.export.realized import realized
from shardwise.panels.live_text import bullets, error, heading, paragraph

Block = dict[str, object]


def file_blocks(scenario: Scenario) -> list[Block]:
    """Sentences on the FSDP program and the DeepSpeed file of the decided layout."""
    decision = decide(scenario)
    if decision.strategy == "none":
        return [error("Nothing fits, so the programs are written for the layout as it is set.")]
    return [
        paragraph(
            "Numbers and scenario hold the layout as it is set; the programs hold the decided one."
        ),
        *_program(decision),
        *_deepspeed(decision),
    ]


def _program(decision: Decision) -> list[Block]:
    """torch keeps no master weights and so on: what its program runs has an estimate of its own."""
    try:
        real = realized(decision.scenario)
    except ScenarioError as problem:
        return [heading("FSDP program"), error(str(problem))]
    report = estimate(real.scenario)
    said = (
        f"What the program runs needs {format_gib(report.needed_bytes)} of "
        f"{format_gib(report.usable_bytes)}: {report.verdict}."
    )
    lines = [*real.notes, "It needs transformers: pip install transformers."]
    blocks = [heading("FSDP program"), paragraph(said), bullets(lines)]
    if report.verdict == "does not fit":
        advice = "Take DeepSpeed's file, or a heavier step, instead of this program."
        blocks.insert(1, error(f"As torch runs it, the decided layout does not fit. {advice}"))
    return blocks


def _deepspeed(decision: Decision) -> list[Block]:
    """What the JSON cannot say and the training script must."""
    training = decision.scenario.training
    lines = []
    if training.activation_checkpointing != "none":
        lines.append("Call model.gradient_checkpointing_enable() in the script: no JSON key does.")
    if training.loss != "full":
        lines.append(f"The {training.loss} loss is the script's own, too.")
    lines.append(
        "Pass the file to deepspeed.initialize(config=...) or to the Trainer (deepspeed=)."
    )
    return [heading("DeepSpeed configuration"), bullets(lines)]
