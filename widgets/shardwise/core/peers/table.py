"""The table of disagreement: this package's estimate and the peers' totals for one scenario."""

from __future__ import annotations

from dataclasses import replace

from shardwise.core.memory.estimate import estimate
from shardwise.core.peers import accelerate, cookbook, deepspeed, llm_analysis, megatron
from shardwise.core.peers.row import PeerRow
from shardwise.core.scenario import Scenario

__all__ = ["PeerRow", "disagreement"]

_PEERS = (deepspeed, accelerate, cookbook, llm_analysis, megatron)


def disagreement(scenario: Scenario) -> tuple[PeerRow, ...]:
    """What this package and five public calculators say of one scenario, bytes on one GPU.

    The first row is `estimate`'s allocated peak on the worst rank, the others the peers' formulas
    as their code has them, defects included; a peer that cannot be asked gives None and the
    reason. Each row names its release or commit, the setting it was given and what it leaves out.

    >>> scenario = Scenario.from_dict({"model": "llama-3-8b", "layout": {"engine": "ddp"}})
    >>> for row in disagreement(scenario)[1:]:
    ...     print(row.peer, "-" if row.total_bytes is None else round(row.total_bytes / 2**30, 1))
    DeepSpeed estimator -
    accelerate estimate-memory 59.8
    EleutherAI cookbook 151.9
    llm-analysis 126.8
    Megatron-LM formula 152.7
    """
    rows = [module.row(scenario) for module in _PEERS]
    if not scenario.training.trainable.everything:
        rows = [_with_adapters(row) for row in rows]
    return (_own(scenario), *rows)


def _with_adapters(row: PeerRow) -> PeerRow:
    unknown = "Adapters and frozen weights are unknown to it: every parameter is trained."
    if row.total_bytes is None:
        return row
    return replace(row, leaves_out=(unknown, *row.leaves_out))


def _own(scenario: Scenario) -> PeerRow:
    report = estimate(scenario)
    return PeerRow(
        "Shardwise",
        "this estimate",
        f"{report.binding_phase}, stage {report.worst.index}: allocated bytes",
        report.peak_bytes,
        {name: size for name, size in report.parts.items() if size},
        report.host_bytes_per_node,
        leaves_out=report.not_modelled,
        source="shardwise.core.memory",
    )
