"""Why calculators disagree: each formula's total for this scenario, and what it leaves out."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.charts import peers
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.peers.table import PeerRow, disagreement
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib
from shardwise.panels.live_table import row, table
from shardwise.panels.live_text import details, facts


def peers_section(scenario: Scenario) -> Mapping[str, object]:
    """Chart (i), the table of reasons, and where each formula stands."""
    report, found = estimate(scenario), disagreement(scenario)
    sources = [(f"{peer.peer}, {peer.version}", peer.source) for peer in found]
    return {
        "peers": peers.rows(report, found),
        "peers.text": peers.sentence(report, found),
        "peers.table": table("Why they disagree", _COLUMNS, [_row(report, peer) for peer in found]),
        "peers.sources": [details("Whose formulas these are", [facts(sources)])],
    }


_COLUMNS = {
    "Calculator": "text",
    "One GPU": "number",
    "Against our peak": "number",
    "Leaves out": "text",
    "Counts otherwise": "text",
    "Asked as": "text",
}


def _row(report: MemoryReport, peer: PeerRow) -> dict[str, object]:
    total = peer.total_bytes
    if total is None:
        return row([peer.peer, "–", "–", peer.not_applicable, "", peer.setting])
    return row(
        [
            peer.peer,
            format_gib(total),
            "ours" if peer.peer == peers.OURS else f"{total / report.peak_bytes - 1:+.0%}",
            list(peer.leaves_out),
            list(peer.defects),
            peer.setting,
        ]
    )
