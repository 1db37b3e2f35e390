"""The server's end of the control socket: lines of JSON to the kernel and from it."""

from __future__ import annotations

import json
import os
import select
import socket


class KernelGone(Exception):
    """The other end of the control socket closed, or its process died."""


def say(control: socket.socket, **words: object) -> None:
    """One line to the kernel."""
    try:
        control.sendall(json.dumps(words).encode() + b"\n")
    except OSError:
        raise KernelGone from None


def listen(control: socket.socket, kernel: int, seconds: float) -> dict | None:
    """One line from the kernel, or None when it said nothing in time."""
    if os.getppid() != kernel:
        raise KernelGone
    if not select.select([control], [], [], seconds)[0]:
        return None
    line = b""
    while not line.endswith(b"\n"):
        byte = control.recv(1)
        if not byte:
            raise KernelGone
        line += byte
    return json.loads(line)
