"""What loading takes, before the first step: the table under the ranks."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.core.memory import MemoryReport
from shardwise.core.memory.loading import Loading
from shardwise.core.units import format_gib
from shardwise.panels.live_table import row, table


def loading_entries(report: MemoryReport) -> Mapping[str, object]:
    """The ways to load the model that the engine offers, each with what it takes."""
    rows = [_row(report, way) for way in report.loading]
    return {"loading.table": table("Before the first step: ways to load", _COLUMNS, rows)}


_COLUMNS = {
    "Loaded": "text",
    "One GPU, at most": "number",
    "RAM of a node": "number",
    "There is room": "text",
    "Why": "text",
}


def _row(report: MemoryReport, way: Loading) -> dict[str, object]:
    host = report.scenario.cluster.host_memory_bytes
    lacking = []
    if way.gpu_bytes > report.usable_bytes:
        lacking.append(f"no: the card has {format_gib(report.usable_bytes)}")
    if way.host_bytes_per_node > host:
        lacking.append(f"no: the node has {format_gib(host)} of RAM")
    ram = format_gib(way.host_bytes_per_node) if way.host_bytes_per_node else "little"
    said = " and ".join(lacking) or "yes"
    return row([way.way, format_gib(way.gpu_bytes), ram, said, way.why])
