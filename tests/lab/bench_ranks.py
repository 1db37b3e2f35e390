"""How fast ranks answer and what they weigh: `python tests/lab/bench_ranks.py`.

Prints, for 2, 4 and 8 ranks, the first call (a fresh server loads torch), the median of later calls
of an all-reduce, the median of a training cell (an FSDP2 step with Adam), and what the ranks and
the server hold together while all of them are alive: PSS, which counts a shared page once.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from pathlib import Path

from shardwise.lab import run, shut_down

SMALL = """
import torch
import torch.distributed as dist
x = torch.ones(4)
dist.all_reduce(x)
"""
TRAINING = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (world,))
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(2, 64)).sum().backward()
optimizer.step()
"""
QUIET = {"device": "cpu", "progress": False}
HOLD = TRAINING + "\nimport os, time\ntime.sleep(3)\n"


def weight_bytes(parent: int) -> int:
    """PSS of a process and its children together."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    total = 0
    for pid in [str(parent), *children]:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def timed(source: str, world: int) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run(source, world, device="cpu", progress=False)
    return time.perf_counter() - started


def held_bytes(world: int) -> int:
    """The most that server and ranks held together while a training cell was alive."""
    from shardwise.lab import forkserver

    holder = threading.Thread(target=run, args=(HOLD, world), kwargs=QUIET)
    holder.start()
    most = 0
    server = forkserver.running().pid
    while holder.is_alive():
        with contextlib.suppress(OSError):  # a rank ended while it was read
            most = max(most, weight_bytes(server))
        time.sleep(0.2)
    return most


def main() -> None:
    """One line a number of ranks."""
    print("ranks  first call  all-reduce cell  training cell  server and ranks")
    for world in (2, 4, 8):
        shut_down()
        first = timed(SMALL, world)
        small = statistics.median(timed(SMALL, world) for _ in range(7))
        training = statistics.median(timed(TRAINING, world) for _ in range(3))
        held = held_bytes(world)
        print(
            f"{world:5}  {first:8.2f} s  {small:13.2f} s  {training:11.2f} s"
            f"  {held / 2**20:12.0f} MiB"
        )


if __name__ == "__main__":
    main()
