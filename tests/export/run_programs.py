"""Run by torchrun: several exported programs one after another, in one process group.

Each program is executed unchanged as `__main__`; only making and ending the process group is done
once for all, because the start of a rank takes longer than a tiny model's training.
"""

from __future__ import annotations

import os
import runpy
import sys
from datetime import timedelta

import torch.distributed as dist

STEPS = 6


def main() -> None:
    """Run every program named on the command line; the first failure ends this rank."""
    programs = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    ended = dist.destroy_process_group
    dist.init_process_group = lambda *_: None
    dist.destroy_process_group = lambda: None
    for program in programs:
        if dist.get_rank() == 0:
            print(f"program {program}", flush=True)
        sys.argv = [program, "--steps", str(STEPS)]
        runpy.run_path(program, run_name="__main__")
    dist.barrier()
    ended()
    # gloo's threads can outlive the interpreter and abort a rank that has finished: end here.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
