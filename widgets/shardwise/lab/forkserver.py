"""The kernel's end of the fork server: start it, send an order, hear what became of it.

One server a kernel, started at the first cell with ranks (a few seconds, torch loads) and kept:
every later cell forks from it in milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

START_SECONDS = 120.0
STOP_SECONDS = 15.0

lock = threading.RLock()  # one order at a time; a second thread waits its turn
_servers: list[Server] = []  # at most one: the server of this process


class ServerGone(RuntimeError):
    """The fork server ended without being asked to."""


class Server:
    """A running fork server and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = dict(
            os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shardwise.lab.server", str(theirs.fileno()),
                 json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # an interrupt of the kernel's group does not reach it
            )  # fmt: skip
        self._socket = ours
        self._pending = b""
        self.owner = os.getpid()
        self.gpus = 0

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs and belongs to this process (not to one this was forked from)."""
        return self.owner == os.getpid() and self._process.poll() is None

    def await_ready(self, waiting: Callable[[float], None]) -> None:
        """Until torch is loaded; `waiting` is called with the seconds so far."""
        words = self.hear(START_SECONDS, waiting)
        if words is None:
            self.close()
            raise ServerGone(f"torch did not load within {START_SECONDS:.0f} s")
        self.gpus = words["gpus"]

    def say(self, **words: Any) -> None:
        """Send one line."""
        try:
            self._socket.sendall(json.dumps(words).encode() + b"\n")
        except OSError as problem:
            raise ServerGone(f"the fork server is gone ({problem})") from None

    def hear(
        self, seconds: float, waiting: Callable[[float], None] | None = None
    ) -> dict[str, Any] | None:
        """The next line, or None when none came in time."""
        started = time.monotonic()
        while b"\n" not in self._pending:
            passed = time.monotonic() - started
            if passed > seconds:
                return None
            if waiting is not None:
                waiting(passed)
            if select.select([self._socket], [], [], min(0.1, max(seconds - passed, 0)))[0]:
                received = self._socket.recv(65536)
                if not received:
                    raise ServerGone(self._last_words())
                self._pending += received
        line, self._pending = self._pending.split(b"\n", 1)
        return json.loads(line)

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        code = self._process.poll()
        text = b""
        if code is not None and self._process.stderr is not None:
            text = self._process.stderr.read()
        tail = text.decode(errors="replace").strip().splitlines()[-1:]
        return f"the fork server ended with {code}: {tail[0] if tail else 'it said nothing'}"

    def close(self) -> None:
        """End the server; its ranks end with it (they die when it does)."""
        if self.owner != os.getpid():
            return
        self._socket.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        if self._process.stderr is not None:
            self._process.stderr.close()


def server(waiting: Callable[[float], None]) -> Server:
    """The server of this process, started when there is none; call it under `lock`."""
    if _servers and not _servers[0].alive:
        _servers.pop().close()
    if not _servers:
        fresh = Server()
        try:
            fresh.await_ready(waiting)
        except BaseException:
            fresh.close()
            raise
        _servers.append(fresh)
    return _servers[0]


def running() -> Server | None:
    """The server when it already runs."""
    return _servers[0] if _servers and _servers[0].alive else None


@atexit.register
def shut_down() -> None:
    """End the fork server of this process, if any; the next run starts a fresh one."""
    while _servers:
        _servers.pop().close()
