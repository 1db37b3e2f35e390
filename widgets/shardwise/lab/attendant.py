"""One order of the server's, from its first fork to the death of its last process."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from shardwise.lab.control import KernelGone, listen, say
from shardwise.lab.family import die_with, end_children
from shardwise.lab.order import ORDER_FILE
from shardwise.lab.surroundings import TRACE_SIGNAL
from shardwise.lab.worker import run_rank

POLL_SECONDS = 0.005
OUTPUT_LIMIT_BYTES = 16 * 2**20
LAST_WORDS_SECONDS = 0.3
KILL_SECONDS = 10.0  # a process inside a driver call ends only when the call does


@dataclass
class Rank:
    """A forked rank, as the server follows it."""

    number: int
    pid: int
    leash: int
    ended: bool = False
    stopped: bool = False


class Run:
    """One order from its first fork to the death of its last process."""

    def __init__(self, control: socket.socket, kernel: int, folder: Path) -> None:
        self.control, self.kernel, self.folder = control, kernel, folder
        self.order = pickle.loads((folder / ORDER_FILE).read_bytes())
        self.ranks: list[Rank] = []
        self.reason = ""

    def serve(self) -> None:
        """Fork, follow and clean up; the folder goes too when nobody is left to read it."""
        try:
            for number in range(self.order.world):
                self._fork(number)
            say(self.control, event="started", pids=[rank.pid for rank in self.ranks])
            self._follow()
        except KernelGone:
            self._kill()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        finally:
            self._kill()
        say(self.control, event="done", reason=self.reason)

    def _fork(self, number: int) -> None:
        read_end, leash = os.pipe()
        server = os.getpid()
        pid = os.fork()
        if pid:
            os.close(read_end)
            self.ranks.append(Rank(number, pid, leash))
            return
        try:
            die_with(server)
            os.setsid()
            self.control.close()
            os.close(leash)
            for other in self.ranks:
                os.close(other.leash)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            run_rank(self.order, number, self.folder, read_end)
        finally:
            os._exit(1)

    def _follow(self) -> None:
        """Until every rank ended: heed the deadline, the kernel's word and the first failure."""
        deadline = time.monotonic() + self.order.timeout
        while any(not rank.ended for rank in self.ranks):
            words = listen(self.control, self.kernel, POLL_SECONDS)
            if words is not None and words["ask"] == "stop":
                self.reason = "interrupted"
                return
            for rank in self.ranks:
                if self._reap(rank) and self.reason == "":
                    self.reason = "failed"
                    deadline = min(deadline, time.monotonic() + self.order.grace)
            if self._output_bytes() > OUTPUT_LIMIT_BYTES:
                self.reason = "output"
                return
            if time.monotonic() > deadline:
                self.reason = self.reason or "deadline"
                self._last_words()
                return

    def _reap(self, rank: Rank) -> bool:
        """Note a rank that ended and how; True when it failed."""
        if rank.ended:
            return False
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, rank.pid, options) is None:
            return False
        with contextlib.suppress(OSError):  # its children; before the wait, while the id is ours
            os.killpg(rank.pid, signal.SIGKILL)
        _, status, usage = os.wait4(rank.pid, 0)
        rank.ended = True
        code = os.waitstatus_to_exitcode(status)
        finished = (self.folder / f"rank{rank.number}.report").exists()
        say(
            self.control, event="ended", rank=rank.number, code=code, stopped=rank.stopped,
            time=time.monotonic(), peak_bytes=usage.ru_maxrss * 1024,
        )  # fmt: skip
        return code != 0 or not finished

    def _output_bytes(self) -> int:
        sizes = 0
        for rank in self.ranks:
            with contextlib.suppress(OSError):
                sizes = max(sizes, (self.folder / f"rank{rank.number}.out").stat().st_size)
        return sizes

    def _last_words(self) -> None:
        """Ask every rank that still lives where it is: Python stacks and flight record."""
        for rank in self.ranks:
            if not rank.ended:
                with contextlib.suppress(OSError):
                    os.kill(rank.pid, TRACE_SIGNAL)
                with contextlib.suppress(OSError):
                    os.write(rank.leash, b"d")
        time.sleep(LAST_WORDS_SECONDS)

    def _kill(self) -> None:
        """End every rank, its process group, and whatever its children left behind."""
        alive = [rank for rank in self.ranks if not rank.ended]
        for rank in alive:
            rank.stopped = True
            with contextlib.suppress(OSError):
                os.kill(rank.pid, signal.SIGKILL)
        limit = time.monotonic() + KILL_SECONDS
        while any(not rank.ended for rank in alive) and time.monotonic() < limit:
            for rank in alive:
                with contextlib.suppress(KernelGone):
                    self._reap(rank)
            time.sleep(POLL_SECONDS)
        for rank in self.ranks:
            with contextlib.suppress(OSError):
                os.close(rank.leash)
        self.ranks = []
        end_children()
