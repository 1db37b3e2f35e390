"""One rank: born by a fork of the server, it runs the program, writes its report and ends.

Everything a rank leaves lies in the run's folder: `rankN.out` (what it printed), `.report`,
`.journal` (its collectives), `.trace` (Python stacks at a fatal signal or on request) and
`.flight` (torch's flight recorder, of a run that failed).
"""

from __future__ import annotations

import builtins
import contextlib
import pickle
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from shardwise.lab.carry import carried
from shardwise.lab.flight import dump_flight, watch_leash, write_whole
from shardwise.lab.journal import Journal
from shardwise.lab.order import Order, Report
from shardwise.lab.program import CELL_FILE
from shardwise.lab.surroundings import FAILED_EXIT_CODE, leave, settle

LINGER_SECONDS = 0.3


def run_rank(order: Order, rank: int, folder: Path, leash: int) -> NoReturn:
    """Be rank `rank` of the order; never returns into the server's code."""
    code = FAILED_EXIT_CODE
    try:
        report = _lived(order, rank, folder, leash)
        write_whole(folder / f"rank{rank}.report", pickle.dumps(report))
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
        leave(code)


def _linger(folder: Path, world: int) -> None:
    """Leave together: closing a connection can discard what its other end has not yet read."""
    limit = time.monotonic() + LINGER_SECONDS
    while time.monotonic() < limit:
        if all((folder / f"rank{other}.report").exists() for other in range(world)):
            return
        time.sleep(0.002)


def _lived(order: Order, rank: int, folder: Path, leash: int) -> Report:
    settle(order, rank, folder)
    journal = Journal(folder / f"rank{rank}.journal")
    watch_leash(leash, folder / f"rank{rank}.flight")
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
    dump_flight(flight)
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
