"""What a change is before it is tried, and what it makes of a scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.core.scenario import Scenario


@dataclass(frozen=True)
class Changed:
    """A changed scenario; `label`, `cost` and `field` where they depend on it."""

    scenario: Scenario
    before: str
    after: str
    label: str = ""
    cost: str = ""
    field: str = ""


@dataclass(frozen=True)
class Proposal:
    """One change: `apply` gives None where there is nothing to change.

    It raises ScenarioError where the changed scenario cannot be. `cost` is one sentence.
    """

    key: str
    label: str
    field: str
    cost: str
    apply: Callable[[Scenario], Changed | None]
    cheap: bool = False
