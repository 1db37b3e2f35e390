"""What this machine can carry: refuse ranks it cannot, before the first one starts."""

from __future__ import annotations

import os
from pathlib import Path

from shardwise.core.errors import ScenarioError
from shardwise.core.units import MIB, parse_whole

# tests/lab/bench_ranks.py: server and ranks together 350 MiB for 2 ranks, 500 MiB for 8, so about
# 25 MiB a rank with a small model and 300 MiB for the server; both with room to spare.
RANK_BYTES = 60 * MIB
SERVER_BYTES = 400 * MIB
RANKS_PER_CORE = 4
ALWAYS_ALLOWED_RANKS = 8


def most_ranks(cores: int) -> int:
    """Ranks beyond which waiting for a core outlasts the timeouts.

    >>> most_ranks(2), most_ranks(16)
    (8, 64)
    """
    return max(ALWAYS_ALLOWED_RANKS, RANKS_PER_CORE * cores)


def refuse_too_much(world: int, *, available_bytes: int | None, server_running: bool) -> None:
    """Raise a sentence when `world` ranks do not fit the cores or the free memory here.

    Raises:
        ScenarioError: not a whole number, too many ranks, or too little memory for them.
    """
    most = most_ranks(os.cpu_count() or 1)
    try:
        parse_whole(world, "world", minimum=1, maximum=most)
    except ScenarioError as problem:
        raise ScenarioError(
            "world", world, problem.allowed, f"this machine has {os.cpu_count()} cores"
        ) from None
    needed = world * RANK_BYTES + (0 if server_running else SERVER_BYTES)
    if available_bytes is not None and needed > available_bytes:
        raise ScenarioError(
            "world",
            world,
            f"ranks that fit {available_bytes // MIB} MiB of free memory",
            f"{world} ranks need about {needed // MIB} MiB; close other notebooks' kernels "
            "or take fewer ranks",
        )


def available_bytes() -> int | None:
    """Memory that can still be taken: of the machine and of our control group; None if unknown."""
    found = [_machine_bytes(), *_group_bytes()]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def _machine_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _group_bytes() -> list[int | None]:
    """What containers allow: memory.max less what is in use and not mere file cache."""
    roots = (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "total_inactive_file"),
    )  # fmt: skip
    found: list[int | None] = []
    for root, limit_name, used_name, cache_name in roots:
        try:
            limit = (Path(root) / limit_name).read_text().strip()
            used = int((Path(root) / used_name).read_text())
            statistics = (Path(root) / "memory.stat").read_text().splitlines()
        except (OSError, ValueError):
            continue
        cache = next((int(s.split()[1]) for s in statistics if s.split()[0] == cache_name), 0)
        if limit.isdigit() and int(limit) < 2**60:
            found.append(int(limit) - used + cache)
    return found
