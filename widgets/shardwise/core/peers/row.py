"""One line of the table of disagreement: what a peer's formula gives and what it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PeerRow:
    """What one public calculator's formula gives for a scenario.

    `total_bytes` is bytes on one GPU, None where the peer does not apply (`not_applicable` says
    why); `parts` are its own parts in bytes, in its own words, empty where it has none.
    `host_bytes` is CPU memory a node where the peer gives it. `setting` is how the scenario was put
    to it, `version` the release or commit whose formula this is. `leaves_out` holds one sentence
    for each term that is missing, `defects` one for each term that it counts wrongly.
    """

    peer: str
    version: str
    setting: str
    total_bytes: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    host_bytes: float | None = None
    leaves_out: tuple[str, ...] = ()
    defects: tuple[str, ...] = ()
    not_applicable: str = ""
    source: str = ""
