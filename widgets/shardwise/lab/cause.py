"""The root cause of a failed run: the rank that went wrong, not those that noticed.

When one rank fails, the others see its connection close or their collective time out. These
followers' errors are recognized by their text and set aside; what is left names the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardwise.lab.journal import Entry
from shardwise.lab.mismatch import at_line, mismatch
from shardwise.lab.program import Program
from shardwise.lab.result import Cause, RankResult, rank_names

# What gloo, NCCL and the stores say on a rank whose partner went away or never came.
_FOLLOWER = re.compile(
    r"connection (?:was )?(?:closed|reset)|broken pipe|socket closed|timed out|timeout"
    r"|remote process (?:has )?exited|connectfullmesh|peer .*(?:gone|closed)|recvBytes|sendBytes"
    r"|aborted due to|watchdog",
    re.IGNORECASE,
)
_FOLLOWER_TYPES = ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError")
SIGABRT = -6
SIGKILL = -9


def is_follower(rank: RankResult) -> bool:
    """Whether this rank's error is only the echo of another's end."""
    return (
        rank.status == "error"
        and rank.exception in _FOLLOWER_TYPES
        and _FOLLOWER.search(rank.message) is not None
    )


def root_cause(
    program: Program, ranks: tuple[RankResult, ...], reason: str, timeout: float
) -> Cause | None:
    """The cause of the failure, or None when every rank finished.

    `reason` is why the server ended the run: "" | failed | deadline | output.
    """
    if reason == "output":
        worst = max(ranks, key=lambda rank: len(rank.output))
        return Cause(
            "output", (worst.rank,), worst.line, "",
            f"Rank {worst.rank} printed more than 16 MiB{at_line(program, worst.line)}; "
            "the run was ended.",
        )  # fmt: skip
    if all(rank.status == "ok" for rank in ranks):
        return None
    return (
        mismatch(program, ranks)
        or _own_failure(program, ranks)
        or _absence(program, ranks, timeout)
        or _stuck(program, ranks, timeout)
    )


def _own_failure(program: Program, ranks: tuple[RankResult, ...]) -> Cause | None:
    """The earliest rank that failed by itself; an abort ranks after a plain error."""
    failed = [
        rank
        for rank in ranks
        if rank.status in ("died", "exit") or (rank.status == "error" and not is_follower(rank))
    ]
    if not failed:
        return None
    first = min(failed, key=lambda rank: (rank.exit_code == SIGABRT, rank.ended_at))
    others = _waiting(program, [rank for rank in ranks if rank is not first])
    if first.status == "error":
        text = first.message.strip().splitlines()[0][:300] if first.message.strip() else ""
        what = f"raised {first.exception}{at_line(program, first.line)}"
        sentence = f"Rank {first.rank} {what}{': ' + text if text else ''}."
        return _cause("exception", first, sentence, others, first.trace)
    signalled = first.status == "died" and (first.exit_code or 0) < 0
    where = at_line(program, first.line) or _last_seen(program, first)
    sentence = f"Rank {first.rank} {_with_hint(first)}{where}."
    if first.message:
        sentence = f"{sentence} It said: {first.message[:200]}"
    return _cause("signal" if signalled else "exit", first, sentence, others, "")


def _cause(kind: str, rank: RankResult, sentence: str, others: str, detail: str) -> Cause:
    pending = _pending(rank)
    operation = pending.operation if pending is not None else ""
    return Cause(kind, (rank.rank,), rank.line, operation, f"{sentence}{others}", detail)


def _with_hint(rank: RankResult) -> str:
    if rank.exit_code == SIGKILL:
        return f"was {rank.fate} (the system does that when memory runs out)"
    return f"was {rank.fate}" if (rank.exit_code or 0) < 0 else rank.fate


def _last_seen(program: Program, rank: RankResult) -> str:
    if not rank.journal:
        return ", before its first collective"
    last = rank.journal[-1]
    return f", last seen in {last}{at_line(program, last.line)}"


def _pending(rank: RankResult) -> Entry | None:
    """The collective this rank had entered and not left."""
    return next((entry for entry in reversed(rank.journal) if not entry.returned), None)


def _waiting(program: Program, ranks: Iterable[RankResult]) -> str:
    """Where the other ranks stood, once for all that stood alike."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        pending = _pending(rank)
        if pending is not None:
            places.setdefault(f"{pending}{at_line(program, pending.line)}", []).append(rank.rank)
    said = [f"{rank_names(members)} waited in {place}" for place, members in places.items()]
    return f" Meanwhile {'; '.join(said)}." if said else ""


def _absence(program: Program, ranks: tuple[RankResult, ...], timeout: float) -> Cause | None:
    """Ranks waited for a collective that others of the group never called."""
    for rank in ranks:
        pending = _pending(rank)
        if pending is None and is_follower(rank) and rank.journal:
            pending = rank.journal[-1]  # an asynchronous one: it was entered, its wait() failed
        if pending is None or pending.point_to_point or rank.status == "ok":
            continue
        members = _members(pending.group, ranks)
        absent = [other for other in members if _calls(other, pending.group) < pending.number]
        if not absent:
            continue
        present = [other.rank for other in members if other not in absent]
        verb = "waits" if len(present) == 1 else "wait"
        whose = "" if pending.group == "all" else f" of ranks {pending.group}"
        sentence = (
            f"{_capital(rank_names([other.rank for other in absent]))} never called {pending} "
            f"(collective number {pending.number}{whose}), in which {rank_names(present)} {verb}"
            f"{at_line(program, pending.line)}: {_absent_clause(program, absent)}."
        )
        numbers = tuple(other.rank for other in absent)
        line = absent[0].line or pending.line
        return Cause("hang", numbers, line, pending.operation, sentence, _stacks(absent))
    return None


def _members(group: str, ranks: tuple[RankResult, ...]) -> list[RankResult]:
    if group == "all" or "..." in group:
        return list(ranks)
    numbers = {int(number) for number in group.split(",")}
    return [rank for rank in ranks if rank.rank in numbers]


def _calls(rank: RankResult, group: str) -> int:
    numbers = [e.number for e in rank.journal if e.group == group and not e.point_to_point]
    return max(numbers, default=0)


def _absent_clause(program: Program, absent: list[RankResult]) -> str:
    said = []
    for rank in absent:
        doing = f"was{at_line(program, rank.line)}" if rank.status != "ok" else "had finished"
        said.append(f"rank {rank.rank} {doing}")
    return "; ".join(said)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _stacks(ranks: Iterable[RankResult]) -> str:
    return "\n".join(f"rank {rank.rank}:\n{rank.trace.rstrip()}" for rank in ranks if rank.trace)


def _stuck(program: Program, ranks: tuple[RankResult, ...], timeout: float) -> Cause:
    """A hang without a missing collective: an endless loop, a lock, sends and receives."""
    ended = [rank for rank in ranks if rank.status == "ok"]
    stuck = [rank for rank in ranks if rank.status in ("hung", "stopped", "error")]
    busy = [rank for rank in stuck if _pending(rank) is None and not is_follower(rank)] or stuck
    said = "; ".join(_stuck_clause(program, rank) for rank in busy)
    if ended and all(is_follower(rank) or _pending(rank) for rank in stuck):
        sentence = _capital(f"{rank_names([r.rank for r in ended])} finished while {said}.")
        culprits = tuple(rank.rank for rank in ended)
    else:
        sentence = f"{_stuck_how(program, stuck, busy, timeout)}: {said}."
        culprits = tuple(rank.rank for rank in busy)
    pending = next((entry for entry in map(_pending, busy) if entry is not None), None)
    operation = pending.operation if pending is not None else busy[0].waiting_in
    line = busy[0].line or (pending.line if pending is not None else 0)
    return Cause("hang", culprits, line, operation, sentence, _stacks(busy))


def _stuck_how(
    program: Program, stuck: list[RankResult], busy: list[RankResult], timeout: float
) -> str:
    """All wait; or some were waited for (in a collective that a library made); or all went on."""
    waiters = [rank for rank in stuck if is_follower(rank) and rank not in busy]
    if all(is_follower(rank) or _pending(rank) for rank in busy):
        return "Deadlock, everybody waits"
    if waiters:
        absent, present = (rank_names([rank.rank for rank in each]) for each in (busy, waiters))
        return _capital(f"{absent} never came to where {present} waited") + at_line(
            program, waiters[0].line
        )
    return f"No end after {timeout:g} s"


def _stuck_clause(program: Program, rank: RankResult) -> str:
    pending = _pending(rank)
    if pending is not None:
        return f"rank {rank.rank} waited in {pending}{at_line(program, pending.line)}"
    inside = f" in {rank.waiting_in}" if rank.waiting_in else ""
    verb = "waited for the others" if is_follower(rank) else "was"
    return f"rank {rank.rank} {verb}{at_line(program, rank.line)}{inside}"
