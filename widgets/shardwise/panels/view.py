"""What the panels show for one scenario: pure, so that tests need neither a kernel nor a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardwise.charts import layers, path, rule, scaling
from shardwise.core.decision import Decision, decide
from shardwise.core.memory import estimate
from shardwise.core.memory.report import PARTS
from shardwise.core.memory.timeline import PhaseRow
from shardwise.core.permalink import to_query
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_count, format_gib
from shardwise.panels.answer import answer_blocks, short_name
from shardwise.panels.comparison import bars_section
from shardwise.panels.files_text import file_blocks
from shardwise.panels.live_text import (
    bullets,
    code,
    details,
    facts,
    heading,
    paragraph,
    step,
    steps,
)
from shardwise.panels.memory_view import (
    changes_section,
    decided_phases_section,
    phases_section,
)
from shardwise.panels.peers_view import peers_section

Sections = Mapping[str, Callable[[Scenario], Mapping[str, object]]]


def rule_section(scenario: Scenario) -> Mapping[str, object]:
    """Chart (a) and its sentence."""
    return {"rule": rule.rows(scenario), "rule.text": rule.sentence(scenario)}


def path_section(scenario: Scenario) -> Mapping[str, object]:
    """Chart (c), the answer in words, and the walk with its reasons."""
    decision = decide(scenario)
    return {
        "path": path.rows(decision),
        "path.text": "",
        "answer": answer_blocks(scenario, decision),
        "walk": walk_blocks(decision),
    }


def walk_blocks(decision: Decision) -> list[dict[str, object]]:
    """The five questions, each with its verdict and the reason of every attempt."""
    states = {"yes": "chosen", "no": "failed", "not asked": "skipped"}
    listed = []
    for question in decision.questions:
        whys = [attempt.why for attempt in question.attempts] or [question.why]
        listed.append(step(question.question, states[question.verdict], " ".join(whys)))
    return [steps(listed)]


def scaling_section(scenario: Scenario) -> Mapping[str, object]:
    """Chart (d), its sentence, and whose training it is of."""
    data, training = scaling.rows(scenario), scenario.training
    said = (
        f"With the training as it is set (micro-batch {training.micro_batch}, "
        f"activation checkpointing {training.activation_checkpointing})"
    )
    if adjustments := decide(scenario).adjustments:
        said += f", while the strategies' bars above have {'; '.join(adjustments)}"
    return {"scaling": data, "scaling.text": f"{said}: {scaling.sentence(data)}"}


def layers_section(scenario: Scenario) -> Mapping[str, object]:
    """Chart (e), its sentence, and what is known of the model."""
    model = scenario.model
    rows = [
        ("Model", model.name or "from the given config"),
        ("Architecture", model.architecture or "unknown"),
        ("Parameters", f"{model.parameters:,} ({format_count(model.parameters)})"),
        ("Active for a token", f"{model.active_parameters:,}"),
        ("Layers", f"{model.layers}"),
        ("Vocabulary", f"{model.vocabulary:,}"),
    ]
    rows += [(f"in {part}", f"{count:,}") for part, count in model.parameters_by_part.items()]
    blocks = [facts(rows)]
    if model.assumptions:
        blocks.append(bullets(list(model.assumptions)))
    return {
        "layers": layers.rows(scenario),
        "layers.text": layers.sentence(scenario),
        "model": blocks,
    }


def numbers_section(scenario: Scenario) -> Mapping[str, object]:
    """Every number opened up, for the decided layout: formula, values, source; assumptions."""
    decision = decide(scenario)
    report = estimate(decision.scenario)
    whose = "decided layout"
    if decision.strategy == "none":
        whose = "layout as it is set, since nothing fits"
    elif decision.scenario == scenario:
        whose = "decided layout, which is the one that is set"
    opened = [
        details(
            f"{PARTS[part]}: {format_gib(size)}",
            [code(str(report.explain(part)))],
        )
        for part, size in report.parts.items()
    ]
    stages = [
        (
            f"stage {stage.index}, {stage.layers} layers",
            f"{format_gib(stage.peak_bytes)} at {stage.binding_phase}",
        )
        for stage in report.stages
    ]
    phases = [(row.name, _with_first_step(row)) for row in report.timeline]
    blocks = [
        heading(f"Of the {whose}: {short_name(decision.scenario.layout)}"),
        paragraph(
            f"At {report.binding_phase}: {format_gib(report.peak_bytes)} "
            f"allocated, {format_gib(report.reserved_bytes)} reserved, "
            f"{format_gib(report.device_bytes)} on the device (what nvidia-smi shows, "
            f"{format_gib(report.cached_bytes)} of it idle blocks that the allocator gives back "
            f"before a request fails), so the card must have {format_gib(report.needed_bytes)} "
            f"of {format_gib(report.usable_bytes)}; host memory "
            f"{format_gib(report.host_bytes_per_node)} a node."
        ),
        *opened,
        heading("From load to the next step, allocated"),
        facts(phases),
        *([heading("Pipeline stages"), facts(stages)] if len(stages) > 1 else []),
        heading("Assumed"),
        bullets(list(report.assumptions)),
        heading("Not counted"),
        bullets(list(report.not_modelled)),
    ]
    return {"numbers": blocks}


def _with_first_step(row: PhaseRow) -> str:
    """A phase's size, and what it is in the first step where that differs."""
    size = format_gib(row.total_bytes)
    if row.first_step_bytes in (None, row.total_bytes):
        return size
    return f"{size}; in the first step {format_gib(row.first_step_bytes or 0.0)}"


def files_section(scenario: Scenario) -> Mapping[str, object]:
    """What stands beside the downloads."""
    return {"files": file_blocks(scenario)}


SECTIONS: Sections = {
    "rule": rule_section,
    "bars": bars_section,
    "path": path_section,
    "phases": phases_section,
    "decided phases": decided_phases_section,
    "changes": changes_section,
    "peers": peers_section,
    "scaling": scaling_section,
    "layers": layers_section,
    "numbers": numbers_section,
    "files": files_section,
}
"""Each section's part of the feed, as a function of the scenario."""


def feed_data(scenario: Scenario, sections: tuple[str, ...]) -> dict[str, object]:
    """What the feed carries for these sections, the permalink included."""
    data: dict[str, object] = {"permalink": to_query(scenario)}
    for name in sections:
        data |= SECTIONS[name](scenario)
    return data
