"""Memory over a step, over pipeline stages, and after each change: what these views show."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.charts import changes, phases, stages
from shardwise.core.decision import decide
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.sensitivity import Change, sensitivity
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import code_of
from shardwise.core.units import format_gib
from shardwise.panels.live_table import row, table
from shardwise.panels.loading_view import loading_entries
from shardwise.panels.ranks_view import ranks_entries


def phases_section(scenario: Scenario) -> Mapping[str, object]:
    """Charts (f) and (g) for the layout as it is set."""
    return _step("As set", estimate(scenario))


def decided_phases_section(scenario: Scenario) -> Mapping[str, object]:
    """The same charts for the decided layout."""
    decision = decide(scenario)
    if decision.strategy == "none":
        return _step("Nothing fits, so as set", estimate(scenario))
    return _step("As decided", estimate(decision.scenario))


def _step(whose: str, report: MemoryReport) -> Mapping[str, object]:
    said = f"{whose}: {code_of(report.scenario.layout)}."
    return {
        "phases": phases.rows(report),
        "phases.text": f"{said} {phases.sentence(report)}",
        "stages": stages.rows(report),
        "stages.text": stages.sentence(report),
        **ranks_entries(report),
        **loading_entries(report),
    }


def changes_section(scenario: Scenario) -> Mapping[str, object]:
    """Chart (h), and the same changes as a table with a button each."""
    report, found = estimate(scenario), sensitivity(scenario)
    listed = [_row(number, change) for number, change in enumerate(found, 1)]
    return {
        "changes": changes.rows(report, found),
        "changes.text": changes.sentence(report, found),
        "changes.table": table(_CAPTION, _COLUMNS, listed),
    }


_CAPTION = (
    "What frees most of the layout as it is set, by allocated bytes; whether it fits is judged on "
    "what the card must have, reserve included"
)
_COLUMNS = {
    "Change": "text",
    "From, to": "text",
    "Frees, allocated": "number",
    "Leaves allocated": "number",
    "Card must have": "number",
    "Then": "text",
    "Costs": "text",
}
_NAMES = {
    "cluster.gpus_per_node": "GPUs per node",
    "layout.zero_stage": "engine",
    "layout.offload.optimizer": "optimizer offload",
    "layout.gradient_as_bucket_view": "gradient_as_bucket_view",
}
"""Changed keys that people call otherwise; the others by their last word."""


def _row(number: int, change: Change) -> dict[str, object]:
    cells = [
        f"{number} {change.label}",
        f"{_named(change.field)} {change.before} → {change.after}",
        format_gib(change.freed_bytes),
        format_gib(change.peak_bytes),
        format_gib(estimate(change.scenario).needed_bytes),
        change.verdict,
        change.cost,
    ]
    return row(cells, change.key)


def _named(field: str) -> str:
    """What a changed key is called.

    >>> _named("cluster.nodes"), _named("training.activation_checkpointing")
    ('nodes', 'activation checkpointing')
    """
    return _NAMES.get(field, field.rpartition(".")[2].replace("_", " "))


def changed(scenario: Scenario, key: str) -> Scenario | None:
    """The scenario with the change of that key; None when it is offered no more."""
    return next((c.scenario for c in sensitivity(scenario) if c.key == key), None)
