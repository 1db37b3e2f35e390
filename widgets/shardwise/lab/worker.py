"""One rank: born by a fork of the server, it runs the program, writes its report and ends.

Everything a rank leaves lies in the run's folder: `rankN.out` (what it printed), `.report`,
`.journal` (its collectives), `.trace` (Python stacks at a fatal signal or on request) and
`.flight` (torch's flight recorder, of a run that failed).
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import linecache
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from shardwise.lab.carry import carried
from shardwise.lab.journal import Journal
from shardwise.lab.program import CELL_FILE, Program

TRACE_SIGNAL = signal.SIGUSR1
_leave = os._exit  # the program's own calls of os._exit are noted first, ours are not
FAILED_EXIT_CODE = 1
LINGER_SECONDS = 0.3
ORDER_FILE = "order.pickle"


@dataclass(frozen=True)
class Order:
    """What the kernel asks the server for: a program on so many ranks, and its surroundings."""

    program: Program
    world: int
    device: str  # cpu | cuda
    backend: str  # gloo | nccl
    timeout: float
    collective_timeout: float
    grace: float
    directory: str
    path: tuple[str, ...]
    environment: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class Report:
    """What a rank says of itself when its program came to an end."""

    status: str  # ok | error | exit
    seconds: float
    values: dict[str, bytes] = field(default_factory=dict)
    exception: str = ""
    message: str = ""
    line: int = 0
    trace: str = ""
    exit_code: int = 0


def run_rank(order: Order, rank: int, folder: Path, leash: int) -> NoReturn:
    """Be rank `rank` of the order; never returns into the server's code."""
    code = FAILED_EXIT_CODE
    try:
        report = _lived(order, rank, folder, leash)
        _write(folder / f"rank{rank}.report", pickle.dumps(report))
        if report.status == "ok":
            _linger(folder, order.world)
        code = 0 if report.status == "ok" else report.exit_code or FAILED_EXIT_CODE
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        _leave(code)


def _linger(folder: Path, world: int) -> None:
    """Leave together: closing a connection can discard what its other end has not yet read."""
    limit = time.monotonic() + LINGER_SECONDS
    while time.monotonic() < limit:
        if all((folder / f"rank{other}.report").exists() for other in range(world)):
            return
        time.sleep(0.002)


def _lived(order: Order, rank: int, folder: Path, leash: int) -> Report:
    _settle(order, rank, folder)
    journal = Journal(folder / f"rank{rank}.journal")
    _watch(leash, folder / f"rank{rank}.flight")
    started = time.perf_counter()
    try:
        device = _join(order, rank, folder)
        journal.install()
        names = _execute(order, rank, device)
        values = {name: carried(name, names) for name in order.program.outputs}
        if order.device == "cuda":
            import torch

            torch.cuda.synchronize()
        return Report("ok", time.perf_counter() - started, values)
    except SystemExit as stop:
        seconds = time.perf_counter() - started
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        message = stop.code if isinstance(stop.code, str) else ""
        line = _line_of(stop)
        return Report("exit", seconds, message=message, line=line, exit_code=code)
    except BaseException as problem:
        return _failed(problem, time.perf_counter() - started, folder / f"rank{rank}.flight")


def _settle(order: Order, rank: int, folder: Path) -> None:
    """Own output, own stacks on request, the caller's folder, path and environment."""
    faults = os.open(folder / f"rank{rank}.trace", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.enable(file=faults, all_threads=True)
    faulthandler.register(TRACE_SIGNAL, file=faults, all_threads=True, chain=False)
    _note_abrupt_exit(faults)
    out = os.open(folder / f"rank{rank}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the rank
    sys.stdout = open(1, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(order.environment)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(order.world),
        LOCAL_WORLD_SIZE=str(order.world), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
        TORCH_FR_BUFFER_SIZE="2000",
    )  # fmt: skip
    sys.path[:] = order.path
    sys.argv[:] = ["ranks"]
    os.chdir(order.directory)
    text = order.program.source
    linecache.cache[CELL_FILE] = (len(text), None, text.splitlines(True), CELL_FILE)
    _silence()


def _note_abrupt_exit(faults: int) -> None:
    """`os._exit` runs no handler and leaves no trace: note the line it is called from."""

    def noted(status: int) -> NoReturn:
        faulthandler.dump_traceback(file=faults, all_threads=False)
        _leave(status)

    os._exit = noted


def _silence() -> None:
    """Three lines that torch prints on correct programs, silenced here rather than in outputs."""
    warnings.filterwarnings("ignore", message=".*returned a view.*", module="torch.*")
    warnings.filterwarnings("ignore", message="Full backward hook is firing.*")
    import logging

    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def _watch(leash: int, flight: Path) -> None:
    """A thread on the pipe from the server: a byte asks for the flight record, its end for ours."""

    def watch() -> None:
        while True:
            if not os.read(leash, 1):
                _leave(FAILED_EXIT_CODE)
            _dump_flight(flight)

    threading.Thread(target=watch, daemon=True).start()


def _dump_flight(path: Path) -> None:
    import torch

    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is not None:
        with contextlib.suppress(RuntimeError):
            text = dump(True, False)
            _write(path, text.encode() if isinstance(text, str) else text)


def _join(order: Order, rank: int, folder: Path) -> Any:
    """Take the device, then meet the other ranks through a file, so no port can be taken."""
    import torch
    import torch.distributed as dist

    if order.device == "cuda":
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
    else:
        device = torch.device("cpu")
    patience = timedelta(seconds=order.collective_timeout)
    store = dist.FileStore(str(folder / "store"), order.world)
    dist.init_process_group(
        order.backend,
        store=store,
        rank=rank,
        world_size=order.world,
        timeout=patience,
        device_id=device if order.device == "cuda" else None,
    )
    _bound_later_groups(patience)
    # A rank with a short program would be gone before the others have connected to it.
    store.set(f"joined{rank}", "yes")
    store.wait([f"joined{other}" for other in range(order.world)], patience)
    return device


def _bound_later_groups(patience: timedelta) -> None:
    """Groups made later, a mesh's say, would wait torch's default of half an hour."""
    from torch.distributed import distributed_c10d

    if hasattr(distributed_c10d, "_get_default_timeout"):
        distributed_c10d._get_default_timeout = lambda backend: patience


def _execute(order: Order, rank: int, device: Any) -> dict[str, Any]:
    """Run the source as a fresh `__main__`, so classes and pickles in it behave as in a script."""
    import types

    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    names = main.__dict__
    names["__builtins__"] = builtins
    names.update(rank=rank, world=order.world, device=device)
    names.update({name: pickle.loads(raw) for name, raw in order.program.inputs.items()})
    exec(compile(order.program.source, CELL_FILE, "exec"), names)
    return names


def _failed(problem: BaseException, seconds: float, flight: Path) -> Report:
    _dump_flight(flight)
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != CELL_FILE:
        trace = trace.tb_next
    frames = [
        frame
        for frame in traceback.extract_tb(trace)
        if not frame.filename.endswith(("shardwise/lab/journal.py", "distributed/c10d_logger.py"))
    ]
    head = ["Traceback (most recent call last):\n"] if frames else []
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(problem)]
    text = "".join([*head, *lines])
    return Report(
        "error", seconds, exception=type(problem).__name__, message=str(problem),
        line=_line_of(problem), trace=text,
    )  # fmt: skip


def _line_of(problem: BaseException) -> int:
    """The deepest line of the program in the exception's traceback."""
    line, trace = 0, problem.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == CELL_FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _write(path: Path, content: bytes) -> None:
    """All or nothing: a reader never sees half a file."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(content)
    part.replace(path)
