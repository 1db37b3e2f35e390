"""Which ranks hold what: the table under the stages."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.core.memory import MemoryReport
from shardwise.core.memory.ranks import PARTS, RankGroup, binding_sentence, counted, stage_said
from shardwise.core.units import format_gib
from shardwise.panels.live_table import row, table
from shardwise.panels.live_text import paragraph

MOST = 12
"""As many groups are listed: the fullest ones, in order of stage."""


def ranks_entries(report: MemoryReport) -> Mapping[str, object]:
    """The table of ranks that hold the same, and the sentence on which of them binds."""
    fullest = sorted(report.ranks, key=lambda group: -group.peak_bytes)[:MOST]
    shown = [group for group in report.ranks if group in fullest]
    caption = "Ranks that hold the same states, with their own peak, allocated"
    if len(shown) < len(report.ranks):
        caption += f"; the {len(shown)} fullest of {len(report.ranks)} groups"
    return {
        "ranks.table": table(caption, _COLUMNS, [_row(report, group) for group in shown]),
        "ranks.text": [paragraph(binding_sentence(report))],
    }


_COLUMNS = {
    "Ranks": "text",
    "Parameters": "number",
    "Gradients": "number",
    "Masters and optimizer": "number",
    "Peak": "number",
    "They hold": "text",
}


def _row(report: MemoryReport, group: RankGroup) -> dict[str, object]:
    states = [group.states[part] for part in PARTS]
    return row(
        [
            _named(report, group),
            format_gib(states[0]),
            format_gib(states[1]),
            format_gib(states[2] + states[3]),
            f"{format_gib(group.peak_bytes)} at {group.binding_phase}",
            [stage_said(report, group.stage), group.why] if len(report.stages) > 1 else group.why,
        ]
    )


def _named(report: MemoryReport, group: RankGroup) -> str:
    """How many, and where they stand."""
    where = f"stage {group.stage}: " if len(report.stages) > 1 else ""
    shard = report.scenario.shard
    first, last = group.shards
    if last - first + 1 == shard:
        return f"{where}{counted(group.ranks)}, all alike"
    if first == last:
        span = f"shard {first} of {shard:,}"
    elif group.every:
        span = f"shards {first:,} to {last:,} of {shard:,}"
    else:
        span = f"shards between {first:,} and {last:,} of {shard:,}"
    return f"{where}{counted(group.ranks)}, {span}"
