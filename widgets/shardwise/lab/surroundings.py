"""A rank's surroundings: its own output and stacks, the caller's folder, path and environment."""

from __future__ import annotations

import faulthandler
import linecache
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from shardwise.lab.order import Order
from shardwise.lab.program import CELL_FILE

TRACE_SIGNAL = signal.SIGUSR1
FAILED_EXIT_CODE = 1
leave = os._exit  # the program's own calls of os._exit are noted first, ours are not


def settle(order: Order, rank: int, folder: Path) -> None:
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
        leave(status)

    os._exit = noted


def _silence() -> None:
    """Three lines that torch prints on correct programs, silenced here rather than in outputs."""
    warnings.filterwarnings("ignore", message=".*returned a view.*", module="torch.*")
    warnings.filterwarnings("ignore", message="Full backward hook is firing.*")
    import logging

    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
