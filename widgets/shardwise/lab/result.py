"""What came of a run: each rank's values, output and fate, and one root cause if it failed."""

from __future__ import annotations

import html
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.lab.journal import Entry
from shardwise.lab.program import RETURN_NAME, Program


@dataclass(frozen=True)
class RankResult:
    """One rank: how it ended and what it left."""

    rank: int
    status: str  # ok | error | exit | died | hung | stopped
    output: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    peak_resident_bytes: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    exception: str = ""
    message: str = ""
    line: int = 0
    trace: str = ""
    waiting_in: str = ""  # the torch function at the top of its stack when it was ended
    journal: tuple[Entry, ...] = ()
    flight: tuple[Mapping[str, Any], ...] = ()
    ended_at: float = 0.0

    @property
    def fate(self) -> str:
        """How it ended, in words."""
        if self.status == "died" and self.exit_code is not None and self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        if self.status in ("died", "exit"):
            return f"ended with exit code {self.exit_code}"
        if self.status == "error":
            return f"raised {self.exception}"
        words = {"ok": "finished", "hung": "was still at work", "stopped": "was ended by the lab"}
        return words[self.status]


@dataclass(frozen=True)
class Cause:
    """Why a run failed: one sentence with rank, line and collective, and what else was seen."""

    kind: str  # exception | exit | signal | hang | mismatch | output | interrupted
    ranks: tuple[int, ...]
    line: int
    collective: str
    sentence: str
    detail: str = ""

    def __str__(self) -> str:
        """The sentence."""
        return self.sentence


@dataclass(frozen=True)
class RunResult:
    """All ranks of one run, in order."""

    program: Program
    world: int
    backend: str
    where: str
    ranks: tuple[RankResult, ...]
    seconds: float
    cause: Cause | None = None

    @property
    def ok(self) -> bool:
        """Whether every rank finished."""
        return self.cause is None

    @property
    def values(self) -> tuple[Any, ...]:
        """What the function returned, one value a rank."""
        return self[RETURN_NAME]

    @property
    def source(self) -> str:
        """The text the ranks executed."""
        return self.program.source

    def __getitem__(self, name: str) -> tuple[Any, ...]:
        """A returned name, one value a rank; None for a rank that did not get there."""
        if name not in self.program.outputs:
            raise KeyError(f"{name!r}; this run returned: {', '.join(self.program.outputs) or '-'}")
        return tuple(rank.values.get(name) for rank in self.ranks)

    def raise_for_status(self) -> RunResult:
        """This result when every rank finished, else `RanksFailed` with the root cause."""
        if self.cause is not None:
            raise RanksFailed(self)
        return self

    def text(self) -> str:
        """Outputs rank by rank, equal ones folded; then the cause and each rank's fate."""
        parts = [self.where]
        for ranks, output in folded([rank.output for rank in self.ranks]):
            if output:
                parts.append(_labelled(ranks, output))
        if self.cause is not None:
            parts.append(self.failure())
        return "\n".join(parts)

    def failure(self) -> str:
        """The root cause, its traceback within the program, and the fates of all ranks."""
        if self.cause is None:
            return ""
        lines = [self.cause.sentence]
        if self.cause.detail:
            lines += ["", self.cause.detail.rstrip()]
        lines.append("")
        fates = [_fate(rank) for rank in self.ranks]
        for ranks, fate in folded(fates):
            lines.append(f"  {rank_names(ranks)} {fate}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        """The text."""
        return self.text()

    def _repr_html_(self) -> str:
        """The same text, with each group of ranks under its name."""
        blocks = [f"<p>{html.escape(self.where)}</p>"]
        for ranks, output in folded([rank.output for rank in self.ranks]):
            if output:
                blocks.append(
                    f"<p><b>{rank_names(ranks)}</b></p><pre>{html.escape(output.rstrip())}</pre>"
                )
        if self.cause is not None:
            blocks.append(f'<pre role="alert">{html.escape(self.failure())}</pre>')
        return "".join(blocks)


class RanksFailed(RuntimeError):
    """A run failed; `.result` holds every rank, `.cause` the root cause."""

    def __init__(self, result: RunResult) -> None:
        self.result = result
        self.cause = result.cause
        super().__init__(result.failure())

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of the launcher's own frames."""
        return ["The ranks failed.", *self.result.failure().splitlines()]


def folded(texts: list[str]) -> list[tuple[list[int], str]]:
    """Ranks with equal text together, in the order of the first of them.

    >>> folded(["a", "b", "a"])
    [([0, 2], 'a'), ([1], 'b')]
    """
    groups: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        groups.setdefault(text, []).append(rank)
    return [(ranks, text) for text, ranks in groups.items()]


def rank_names(ranks: list[int] | tuple[int, ...]) -> str:
    """Ranks as people write them.

    >>> rank_names([0, 1, 2, 5]), rank_names([3])
    ('ranks 0-2, 5', 'rank 3')
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"


def _labelled(ranks: list[int], output: str) -> str:
    label = f"[{rank_names(ranks)}]"
    body = output.rstrip("\n")
    return f"{label} {body}" if "\n" not in body else f"{label}\n{body}"


def _fate(rank: RankResult) -> str:
    text = rank.fate
    if rank.line:
        text = f"{text} at line {rank.line}"
    if rank.status != "ok" and rank.waiting_in:
        text = f"{text}, in {rank.waiting_in}"
    return text
