"""Run one program on several real ranks: `run(...)`, the function behind `%%ranks`.

Fresh processes each time, forked from a server that has torch loaded; bounded by a deadline; none
outlives the call, whatever happens to the program, the kernel or the server.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shardwise.core.errors import ScenarioError
from shardwise.core.units import parse_number
from shardwise.lab import forkserver
from shardwise.lab.cause import root_cause
from shardwise.lab.evidence import Heard, read_rank
from shardwise.lab.limits import available_bytes, refuse_too_much
from shardwise.lab.order import ORDER_FILE, Order
from shardwise.lab.program import Program, program_of
from shardwise.lab.progress import Progress
from shardwise.lab.result import Cause, RunResult

GRACE_SECONDS = 2.0  # after the first failure, for the others to notice and say where they were
BACKSTOP_SECONDS = 20.0  # beyond the deadline, should the server itself be stuck


def run(
    program: str | Callable[..., Any],
    world: int = 4,
    *,
    timeout: float = 60.0,
    collective_timeout: float = 20.0,
    inputs: Mapping[str, Any] | None = None,
    outputs: tuple[str, ...] = (),
    device: str = "auto",
    allow_failure: bool = False,
    progress: bool = True,
) -> RunResult:
    """Run text or a function on `world` fresh ranks and wait for all of them.

    Each rank has `rank`, `world`, `device` and an initialized process group. Of `outputs`,
    `result["losses"]` holds one value a rank; a function's return values are in `result.values`.
    Tensors arrive as NumPy arrays.

    Args:
        program: a cell's text or a plain function that stands alone.
        timeout: seconds until every rank must have finished.
        collective_timeout: seconds a collective may wait for its partners.
        inputs: values to set on every rank under these names.
        outputs: names to bring back from every rank.
        device: `auto` takes a GPU a rank with NCCL if there are enough, else gloo; `cpu`, `cuda`.
        allow_failure: return a failed result instead of raising it.
        progress: show a line while it takes longer than a second.

    Raises:
        RanksFailed: a rank failed or hung (unless `allow_failure`); it names the root cause.
        ScenarioError: the request cannot be met on this machine.
        SyntaxError: the text is not Python.
    """
    task = program_of(program, inputs=inputs, outputs=tuple(outputs))
    deadline = _seconds("timeout", timeout)
    patience = _seconds("collective_timeout", collective_timeout)
    with forkserver.lock:
        _refuse_what_cannot_run(world)
        result = _run(task, int(world), deadline, patience, device, Progress(progress))
    return result if allow_failure else result.raise_for_status()


def _seconds(name: str, value: float) -> float:
    """A number of seconds from half a second to a day."""
    return parse_number(value, name, minimum=0.5, maximum=86400)


def _refuse_what_cannot_run(world: int) -> None:
    """Ranks need fork, and memory for each."""
    if not hasattr(os, "fork"):
        raise ScenarioError("world", world, "a system with fork (Linux, macOS, WSL)")
    running = forkserver.running() is not None
    refuse_too_much(world, available_bytes=available_bytes(), server_running=running)


def _run(
    task: Program,
    world: int,
    timeout: float,
    collective_timeout: float,
    device: str,
    progress: Progress,
) -> RunResult:
    """Under the lock: hand the order to the server and read what the ranks left."""
    with progress:
        server = forkserver.server(progress.loading)
        kind, backend, where = choose_device(device, world, server.gpus)
        folder = Path(tempfile.mkdtemp(prefix="shardwise-"))
        try:
            order = Order(
                task, world, kind, backend, timeout, collective_timeout, GRACE_SECONDS,
                str(Path.cwd()), tuple(sys.path), dict(os.environ),
            )  # fmt: skip
            (folder / ORDER_FILE).write_bytes(pickle.dumps(order))
            started = time.monotonic()
            heard = _obeyed(server, order, folder, progress)
            seconds = time.monotonic() - started
            ranks = tuple(read_rank(folder, rank, heard) for rank in range(world))
            cause = root_cause(task, ranks, heard.reason, timeout)
            if heard.reason == "server":
                cause = Cause("signal", (), 0, "", f"The lab's fork server died: {heard.words}.")
            return RunResult(task, world, backend, where, ranks, seconds, cause)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def choose_device(device: str, world: int, gpus: int) -> tuple[str, str, str]:
    """(device, backend, the line that says so): one GPU a rank where there are enough.

    Two ranks on one GPU are no choice: NCCL refuses them ("Duplicate GPU detected").

    >>> choose_device("auto", 4, 0)
    ('cpu', 'gloo', '4 ranks on the CPU with gloo (no GPU here)')
    >>> choose_device("auto", 2, 8)[0:2]
    ('cuda', 'nccl')
    """
    ranks = f"{world} rank{'s' if world > 1 else ''}"
    if device not in ("auto", "cpu", "cuda"):
        raise ScenarioError("device", device, "auto, cpu or cuda")
    if device == "cuda" and gpus < world:
        raise ScenarioError(
            "device", device, f"cuda with at most {gpus} ranks here", "one GPU a rank is needed"
        )
    if device != "cpu" and gpus >= world:
        return "cuda", "nccl", f"{ranks} on {world} GPU{'s' if world > 1 else ''} with NCCL"
    if device == "cpu":
        why = "as asked"
    else:
        why = "no GPU here" if gpus == 0 else f"only {gpus} GPU{'s' if gpus > 1 else ''} here"
    return "cpu", "gloo", f"{ranks} on the CPU with gloo ({why})"


def _obeyed(server: forkserver.Server, order: Order, folder: Path, progress: Progress) -> Heard:
    """Send the order and listen to its end; an interrupt here ends the ranks before it goes on."""
    heard = Heard()
    finished = False
    try:
        server.say(ask="run", folder=str(folder))
        finished = _listen(server, heard, order.timeout + BACKSTOP_SECONDS, progress, order)
    except forkserver.ServerGone as problem:
        heard.reason, heard.words = "server", str(problem)
    except BaseException:
        _stop(server, heard, progress, order)
        raise
    if not finished:
        server.close()
        heard.reason = heard.reason or "server"
        heard.words = heard.words or "it did not answer"
    return heard


def _listen(
    server: forkserver.Server, heard: Heard, seconds: float, progress: Progress, order: Order
) -> bool:
    """Until the server says done (True) or the backstop passed (False)."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        words = server.hear(0.2)
        progress.waiting(order.world, len(heard.ends), order.timeout)
        if words is None:
            continue
        if words["event"] == "started":
            heard.pids = words["pids"]
        elif words["event"] == "ended":
            heard.ends[words["rank"]] = words
        elif words["event"] == "done":
            heard.reason = words["reason"]
            return True
    return False


def _stop(server: forkserver.Server, heard: Heard, progress: Progress, order: Order) -> None:
    """End the ranks of this order; a server that cannot is ended itself, and they with it."""
    try:
        server.say(ask="stop")
        if not _listen(server, heard, forkserver.STOP_SECONDS, progress, order):
            server.close()
    except BaseException:  # a second interrupt, or no server any more
        server.close()
        raise
