"""Chart (i): what other calculators' formulas give for the same scenario, beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.charts.stacked import SHOWN_CARDS, label_of, labels
from shardwise.charts.theme import EDGE, PEER_COLORS
from shardwise.core.memory import MemoryReport
from shardwise.core.peers.row import PeerRow
from shardwise.core.units import GIB, format_gib

COLUMNS = {
    "peer": "Calculator",
    "gib": "One GPU (GiB)",
    "from": "Band from (GiB)",
    "to": "Band to (GiB)",
}
OURS = "Shardwise"


def rows(report: MemoryReport, peers: Sequence[PeerRow]) -> dict[str, list[dict[str, object]]]:
    """Datasets `rows` (a bar each, ours first) and `limits` (the card).

    Ours stands there twice: allocated, as most formulas mean it, and as the card shows it.
    """
    limit = report.usable_bytes / GIB
    ours = [
        _row(f"{OURS}, allocated", report.peak_bytes, limit, "ours"),
        _row(
            f"{OURS}, device", report.needed_bytes, limit, "ours",
            (report.low_bytes, report.needed_high_bytes),
        ),
    ]  # fmt: skip
    listed = [
        _row(peer.peer, peer.total_bytes, limit, "peer")
        for peer in others(peers)
        if peer.total_bytes is not None
    ]
    edge = round(SHOWN_CARDS * limit, 3)
    name = f"card: {limit:.1f} GiB"
    return {"rows": [*ours, *listed], "limits": [{"gib": limit, "edge": edge, "label": name}]}


def others(peers: Sequence[PeerRow]) -> tuple[PeerRow, ...]:
    """The rows that are not this package's own."""
    return tuple(peer for peer in peers if peer.peer != OURS)


def _row(
    name: str, size_bytes: float, limit: float, whose: str, band: tuple[float, float] | None = None
) -> dict[str, object]:
    """One bar; a peer gives no band, so its low and high are its total."""
    low, high = band or (size_bytes, size_bytes)
    shown, size = SHOWN_CARDS * limit, size_bytes / GIB
    return {
        "peer": name,
        "gib": round(size, 2),
        "end": round(min(size, shown), 3),
        "low": round(min(low / GIB, shown), 3),
        "high": round(min(high / GIB, shown), 3),
        "from": round(low / GIB, 2) if band else None,
        "to": round(high / GIB, 2) if band else None,
        "color": PEER_COLORS[whose],
        "label": label_of(size) + (" »" if size > shown else ""),
        "short": label_of(size),
        "share": round(min(high / GIB, shown) / shown, 4),
        "limit": round(limit, 3),
    }


def sentence(report: MemoryReport, peers: Sequence[PeerRow]) -> str:
    """How far the others are apart, and on which side of the card's line."""
    totals = [p.total_bytes for p in others(peers) if p.total_bytes is not None]
    ours = f"Ours is {format_gib(report.peak_bytes)} allocated, {format_gib(report.needed_bytes)} "
    ours += "on the device"
    if not totals:
        return f"{ours}; none of the other formulas applies to this scenario."
    under = sum(total <= report.usable_bytes for total in totals)
    return (
        f"{ours}; the others give {format_gib(min(totals))} to {format_gib(max(totals))}: "
        f"{under} of {len(totals)} say that it fits on a card of {format_gib(report.usable_bytes)}."
    )


def spec() -> Any:
    """One bar a calculator, ours in another color with its band, and the card's line."""
    import altair as alt

    base = alt.Chart(alt.NamedData("rows"), width=400, height=alt.Step(24))
    y = alt.Y("peer:N", sort=None, title=None, axis=alt.Axis(labelLimit=150))
    bars = base.mark_bar(stroke=EDGE, strokeWidth=0.7).encode(
        x=alt.X("end:Q", title="GiB on one GPU", scale=alt.Scale(nice=False, zero=True)),
        y=y,
        color=alt.Color("color:N", scale=None),
        tooltip=[alt.Tooltip("peer:N", title="calculator"), alt.Tooltip("gib:Q", title="GiB")],
    )
    bands = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q", y=y)
    limits = alt.Chart(alt.NamedData("limits"))
    line = limits.mark_rule(strokeDash=[6, 3], strokeWidth=2).encode(x="gib:Q")
    name = limits.mark_text(align="center", baseline="bottom", dy=-3, fontSize=11).encode(
        x="gib:Q", y=alt.value(0), text="label:N"
    )
    edge = limits.mark_point(opacity=0).encode(x="edge:Q")
    return alt.layer(bars, bands, line, name, edge, labels(base, y))
