"""The fork server: a process with torch loaded that forks ranks, watches them and ends them.

It is our own rather than multiprocessing's because a rank must not outlive its cell even when the
kernel is killed: multiprocessing hands the pipe that would show the kernel's death to every child,
and keeps neither exit status nor signal of a child for us.

Three things end the ranks: the order's deadline, a word from the kernel, and the death of either
process above them (end of file here; PR_SET_PDEATHSIG and the leash pipe in the ranks).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
from pathlib import Path

from shardwise.lab.attendant import Run
from shardwise.lab.control import KernelGone, listen, say
from shardwise.lab.family import adopt_orphans

PRELOADED = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.utils.checkpoint",
    "shardwise.lab.worker",
    "shardwise.lab.measure",
)


def main(descriptor: int) -> None:
    """Load torch once, say so, then serve orders until the kernel goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    adopt_orphans()
    control = socket.socket(fileno=descriptor)
    kernel = os.getppid()
    for name in PRELOADED:
        __import__(name)
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # ranks share these objects' pages as long as no collection touches them
    with contextlib.suppress(KernelGone):
        say(control, event="ready", gpus=_count_gpus())
        while True:
            words = listen(control, kernel, 1.0)
            if words is not None and words["ask"] == "run":
                Run(control, kernel, Path(words["folder"])).serve()
    os._exit(0)


def _count_gpus() -> int:
    """CUDA devices, counted in a child: a process that touched CUDA cannot be forked any more."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        import torch

        count = 0
        with contextlib.suppress(Exception):
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        os.write(send, str(count).encode())
        os._exit(0)
    os.close(send)
    text = os.read(receive, 16)
    os.close(receive)
    os.waitpid(child, 0)
    return int(text or 0)


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[2])
    main(int(sys.argv[1]))
