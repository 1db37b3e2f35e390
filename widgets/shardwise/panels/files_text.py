"""Beside the downloads: what each program really runs, and what it leaves to the user."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.core.decision import Decision, decide
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib
from shardwise.export import export
from shardwise.export.deepspeed import realized as as_deepspeed_runs
from shardwise.export.realized import realized
from shardwise.panels.live_text import bullets, error, heading, paragraph

Block = dict[str, object]

PROGRAMS: Mapping[str, str] = {"fsdp2": "FSDP program", "deepspeed": "DeepSpeed configuration"}
"""What each target of `export` is called here."""


def refusal(scenario: Scenario, target: str) -> str:
    """Why the target cannot be written for this scenario; empty when it can."""
    try:
        export(scenario, target)
    except ScenarioError as problem:
        return str(problem)
    return ""


def file_blocks(scenario: Scenario) -> list[Block]:
    """Sentences on the numbers, the FSDP program and the DeepSpeed file."""
    decision = decide(scenario)
    whose = "the decided layout"
    if decision.strategy == "none":
        whose = "the layout as it is set, since nothing fits"
    said = (
        "Numbers hold every bar of the chart: yours as it is set, and each strategy; their "
        f"basis column says which is decided. The scenario is as it is set; programs are for "
        f"{whose}."
    )
    return [paragraph(said), *_program(decision), *_deepspeed(decision)]


def _program(decision: Decision) -> list[Block]:
    """torch keeps no master weights and so on: what its program runs has an estimate of its own."""
    title = heading(PROGRAMS["fsdp2"])
    if reason := refusal(decision.scenario, "fsdp2"):
        return [title, error(f"Cannot be written: {reason}")]
    real = realized(decision.scenario)
    report = estimate(real.scenario)
    lines = [*real.notes, "It needs transformers: pip install transformers."]
    other = "DeepSpeed's file"
    return [title, *_verdict(decision, report, "torch", other), bullets(lines)]


def _deepspeed(decision: Decision) -> list[Block]:
    """What DeepSpeed needs for it, what the JSON cannot say and the training script must."""
    title = heading(PROGRAMS["deepspeed"])
    if reason := refusal(decision.scenario, "deepspeed"):
        return [title, error(f"Cannot be written: {reason}")]
    real = as_deepspeed_runs(decision.scenario)
    training, lines = real.training, []
    if real.layout.engine != decision.scenario.layout.engine:
        lines.append(
            f"The layout's engine is {decision.scenario.layout.engine}; this file's is deepspeed, "
            f"at the same ZeRO stage {real.layout.zero_stage}."
        )
    if training.activation_checkpointing != "none":
        lines.append("Call model.gradient_checkpointing_enable() in the script: no JSON key does.")
    if training.loss != "full":
        lines.append(f"The {training.loss} loss is the script's own, too.")
    lines.append(
        "Pass the file to deepspeed.initialize(config=...) or to the Trainer (deepspeed=)."
    )
    verdict = _verdict(decision, estimate(real), "DeepSpeed", "the FSDP program")
    return [title, *verdict, bullets(lines)]


def _verdict(decision: Decision, report: MemoryReport, who: str, other: str) -> list[Block]:
    """What this engine needs for the layout, and a warning where that is more than there is."""
    usable = format_gib(report.usable_bytes)
    said = f"As {who} runs it, the card must have {format_gib(report.needed_bytes)} of {usable}"
    host = report.host_bytes_per_node
    if host:
        said += f" (and the host {format_gib(host)} a node)"
    if report.verdict == "tight":
        said += f", up to {format_gib(report.needed_high_bytes)} with fragmentation"
    said = f"{said}: {report.verdict}."
    if report.verdict != "does not fit":
        return [paragraph(said)]
    if decision.strategy == "none":
        return [error(said)]
    return [error(f"{said} Look at {other}, or take a heavier step, instead of this one.")]
