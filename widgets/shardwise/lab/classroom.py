"""Is this machine fit for the lessons? `python -m shardwise.lab.classroom` says so in a few lines.

One sentence a finding; exit code 0 when every lesson will run, 1 when something is missing. It
starts real ranks, so what it says of them was seen and not assumed.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.core.errors import ScenarioError
from shardwise.core.units import GIB, format_gib
from shardwise.lab.limits import available_bytes

# The heaviest lesson (DeepSpeed) is 860 MB with its kernel; server and browser tab come on top.
ENOUGH_MEMORY_BYTES = int(1.6 * GIB)
ENOUGH_DISK_BYTES = GIB
OLDEST_TORCH = (2, 8)  # before, pipelines hang on gloo (fixed by pytorch/pytorch#152938)
RANKS = 4
SLOW_START_SECONDS = 60.0
SLOW_ANSWER_SECONDS = 10.0
SUM = "import torch, torch.distributed as dist\nn = torch.tensor(float(rank))\ndist.all_reduce(n)"


@dataclass(frozen=True)
class Finding:
    """What was found about one thing: `level` is ok, slow (works, less well) or missing."""

    level: str
    sentence: str

    def __str__(self) -> str:
        """Level and sentence on one line."""
        return f"{self.level:8}{self.sentence}"


def cores_finding(cores: int) -> Finding:
    """Two cores are what the lessons' times are made for.

    >>> cores_finding(1).level, cores_finding(2).level
    ('slow', 'ok')
    """
    if cores >= 2:
        return Finding("ok", f"{cores} cores.")
    return Finding("slow", "1 core: the lessons run, in about twice their time.")


def memory_finding(free_bytes: int | None) -> Finding:
    """Free memory, of the machine or of what its container allows."""
    if free_bytes is None:
        return Finding("slow", "Free memory is unknown on this system; 1.6 GiB are needed.")
    free, needed = format_gib(free_bytes), format_gib(ENOUGH_MEMORY_BYTES)
    if free_bytes >= ENOUGH_MEMORY_BYTES:
        return Finding("ok", f"{free} of memory free.")
    return Finding("missing", f"{free} of memory free, {needed} needed: close other programs.")


def disk_finding(free_bytes: int, folder: str) -> Finding:
    """Free space where the ranks leave their results."""
    free = format_gib(free_bytes)
    if free_bytes >= ENOUGH_DISK_BYTES:
        return Finding("ok", f"{free} free in {folder}.")
    needed = format_gib(ENOUGH_DISK_BYTES)
    return Finding("missing", f"{free} free in {folder}, {needed} needed: empty it or set TMPDIR.")


def torch_finding(version: str | None) -> Finding:
    """The version of torch that is installed.

    >>> torch_finding("2.13.0+cpu").level, torch_finding("2.1.0").level, torch_finding(None).level
    ('ok', 'missing', 'missing')
    """
    oldest = ".".join(map(str, OLDEST_TORCH))
    if version is None:
        return Finding("missing", "torch is not installed: pip install 'shardwise[lab]'.")
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST_TORCH:
        return Finding("missing", f"torch {version} is too old: {oldest} or later is needed.")
    return Finding("ok", f"torch {version}.")


def ranks_findings() -> Iterator[Finding]:
    """Start the fork server and let four ranks add up their numbers, twice."""
    from shardwise.lab.ranks import run

    first = f"The fork server started and {RANKS} ranks answered"
    again = f"Once it runs, {RANKS} ranks answer"
    for words, slow in ((first, SLOW_START_SECONDS), (again, SLOW_ANSWER_SECONDS)):
        started = time.monotonic()
        try:
            result = run(SUM, RANKS, outputs=("n",), device="cpu", progress=False)
        except (ScenarioError, RuntimeError, OSError) as problem:
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            yield Finding("missing", f"{RANKS} ranks did not answer: {lines[0]}")
            return
        seconds = time.monotonic() - started
        yield answer_finding({float(value) for value in result["n"]}, words, seconds, slow)


def answer_finding(sums: set[float], words: str, seconds: float, slow: float) -> Finding:
    """Whether the ranks' sums are right, and in time.

    >>> answer_finding({6.0}, "4 ranks answer", 0.3, 10.0).sentence
    '4 ranks answer in 0.3 s.'
    """
    right = float(sum(range(RANKS)))
    if sums != {right}:
        return Finding("missing", f"{RANKS} ranks answered {sorted(sums)}, not {right:.0f}.")
    if seconds > slow:
        return Finding("slow", f"{words} in {seconds:.1f} s: this machine is busy.")
    return Finding("ok", f"{words} in {seconds:.1f} s.")


def notebook_finding() -> Finding:
    """JupyterLab and a kernel to run the notebooks in."""
    absent = [name for name in ("jupyterlab", "ipykernel") if _version(name) is None]
    if not absent:
        return Finding("ok", f"jupyterlab {_version('jupyterlab')}.")
    return Finding("missing", f"Not installed: {', '.join(absent)} (pip install them).")


def findings() -> Iterator[Finding]:
    """Everything, in the order in which it can go wrong."""
    linux = sys.platform == "linux"
    yield cores_finding(len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1)
    yield memory_finding(available_bytes())
    folder = tempfile.gettempdir()
    yield disk_finding(shutil.disk_usage(folder).free, folder)
    yield notebook_finding()
    torch = torch_finding(_version("torch"))
    yield torch
    if torch.level != "missing":
        yield from ranks_findings()


def verdict(found: list[Finding]) -> tuple[int, str]:
    """(exit code, last line).

    >>> verdict([Finding("ok", "2 cores."), Finding("slow", "busy")])
    (0, 'Ready: the lessons run here, slower than they should.')
    """
    missing = sum(each.level == "missing" for each in found)
    if missing:
        things = "one thing is" if missing == 1 else f"{missing} things are"
        return 1, f"Not ready: {things} missing."
    slow = any(each.level == "slow" for each in found)
    return 0, f"Ready: the lessons run here{', slower than they should' if slow else ''}."


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> int:
    """Print each finding as it comes, then the verdict."""
    found = []
    for each in findings():
        print(each, flush=True)
        found.append(each)
    code, line = verdict(found)
    print(line)
    return code


if __name__ == "__main__":
    sys.exit(main())
