"""What to change first: the five changes of a scenario that free most on the worst rank."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.errors import ScenarioError
from shardwise.core.memory.changes import CHANGES
from shardwise.core.memory.estimate import estimate
from shardwise.core.scenario import Scenario

MOST = 5


@dataclass(frozen=True)
class Change:
    """One change of a scenario and what it buys.

    `field` is the changed key ("training.loss"), `before` and `after` its values as people read
    them. `freed_bytes` is the fall of the allocated peak on the worst rank, `peak_bytes` what is
    left, `verdict` the changed scenario's. `cost` is one sentence; `cheap` says that neither the
    results nor the speed suffer worth the name.
    """

    key: str
    label: str
    field: str
    before: str
    after: str
    scenario: Scenario
    freed_bytes: float
    peak_bytes: float
    verdict: str
    cost: str
    cheap: bool


def sensitivity(scenario: Scenario, most: int = MOST) -> tuple[Change, ...]:
    """The changes that free most on the worst rank, largest first; only those that free anything.

    A change that cannot be (a degree that does not divide the heads, offload that the host's
    memory does not hold) is left out. Equal savings keep the order of `CHANGES`, cheap ones first.
    Bytes are differences of `estimate`'s `peak_bytes`; what each change costs names its source in
    `changes.py`.

    Raises:
        ScenarioError: `most` is no whole number of 1 or more.

    >>> first = sensitivity(Scenario.from_dict({"model": "llama-3-8b"}))[0]
    >>> first.label, first.freed_bytes > 0
    ('full activation checkpointing', True)
    """
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ScenarioError("most", most, "a whole number of 1 or more")
    now = estimate(scenario).peak_bytes
    found = []
    for proposal in CHANGES:
        try:
            changed = proposal.apply(scenario)
        except ScenarioError:
            continue
        if changed is None:
            continue
        report = estimate(changed.scenario)
        freed = now - report.peak_bytes
        if freed <= 0 or report.host_bytes_per_node > changed.scenario.cluster.host_memory_bytes:
            continue
        found.append(
            Change(
                key=proposal.key,
                label=changed.label or proposal.label,
                field=changed.field or proposal.field,
                before=changed.before,
                after=changed.after,
                scenario=changed.scenario,
                freed_bytes=freed,
                peak_bytes=report.peak_bytes,
                verdict=report.verdict,
                cost=changed.cost or proposal.cost,
                cheap=proposal.cheap,
            )
        )
    found.sort(key=lambda change: (-change.freed_bytes, not change.cheap))
    return tuple(found[:most])
