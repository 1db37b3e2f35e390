"""A lesson's program as a plain torchrun script, and the commands that start it on real machines.

The cell's text goes in unchanged; around it stands what the lab does for a rank: its device, its
process group, and one JSON file a rank for the names that come back.
"""

from __future__ import annotations

import json
import re
import shlex

from shardwise.core.errors import ScenarioError
from shardwise.core.units import parse_whole
from shardwise.lab.program import Program

_HEAD = '''"""{title}: run me with torchrun (see {name}.sh), on one node or several."""
import atexit as _atexit
import datetime as _datetime
import json as _json
import os as _os
import pathlib as _pathlib
import sys as _sys
{more}
import torch as _torch
import torch.distributed as _dist

rank = int(_os.environ["RANK"])
world = int(_os.environ["WORLD_SIZE"])
_local_rank = int(_os.environ["LOCAL_RANK"])
_gpu = _torch.cuda.device_count() >= int(_os.environ["LOCAL_WORLD_SIZE"])
if _gpu:
    _torch.cuda.set_device(_local_rank)
else:
    _torch.set_num_threads(1)
device = _torch.device("cuda", _local_rank) if _gpu else _torch.device("cpu")
_dist.init_process_group(
    "nccl" if _gpu else "gloo",
    timeout=_datetime.timedelta(seconds={collective_timeout:g}),
    device_id=device if _gpu else None,
)
if rank == 0:
    print(f"{{world}} ranks, {{'NCCL on GPUs' if _gpu else 'gloo on the CPU'}}", flush=True)
{inputs}
# ---- the cell, unchanged -------------------------------------------------------------------------
'''

_TAIL = """
# ---- what comes back: one JSON file a rank -------------------------------------------------------
def _plain(value):
    if isinstance(value, _torch.Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, dict):
        return {{str(key): _plain(item) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


_folder = _pathlib.Path(_os.environ.get("RESULTS", "results"))
_folder.mkdir(parents=True, exist_ok=True)
_results = {{name: _plain(globals()[name]) for name in {outputs!r}}}
(_folder / f"rank{{rank}}.json").write_text(_json.dumps(_results))
_dist.barrier()  # nobody leaves while another still listens
_dist.destroy_process_group()
# gloo's threads can outlive the interpreter and abort a rank that has finished: end here instead.
_atexit._run_exitfuncs()
_sys.stdout.flush()
_sys.stderr.flush()
_os._exit(0)
"""

_SBATCH = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={per_node}
#SBATCH --cpus-per-task={cores}
#SBATCH --time=00:10:00
# One task a node: torchrun starts the {per_node} ranks there. Submit with: sbatch {name}.sbatch
set -euo pipefail
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun \\
  --nnodes "$SLURM_NNODES" --nproc-per-node {per_node} \\
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head_node:29400" \\
  {name}.py
"""

_SHELL = """#!/bin/bash
# One node, {ranks} ranks; --standalone takes a free port. Results go to ${{RESULTS:-results}}.
set -euo pipefail
torchrun --standalone --nproc-per-node {ranks} {name}.py
"""

_NODES = """#!/bin/bash
# {nodes} nodes of {per_node} ranks: run this on every node, HEAD being the name of one of them.
set -euo pipefail
: "${{HEAD:?set HEAD to the host name of one of the nodes}}"
torchrun --nnodes {nodes} --nproc-per-node {per_node} \\
  --rdzv-id {name} --rdzv-backend c10d --rdzv-endpoint "$HEAD:29400" \\
  {name}.py
"""


def torchrun_files(
    program: Program | str,
    world: int,
    *,
    name: str = "lesson",
    nodes: int = 1,
    outputs: tuple[str, ...] = (),
    collective_timeout: float = 600.0,
) -> dict[str, str]:
    """{file name: text} that run a cell's program under torchrun: one node, several, Slurm.

    `result.program` of a run carries its inputs and outputs along.

    Raises:
        ScenarioError: ranks that do not divide over the nodes, a bad name, inputs that are not
            plain values.
    """
    if isinstance(program, str):
        program = Program(program, outputs)
    world = parse_whole(world, "world", minimum=1, maximum=100_000)
    nodes = parse_whole(nodes, "nodes", minimum=1, maximum=10_000)
    if world % nodes:
        raise ScenarioError("nodes", nodes, f"a divisor of {world} ranks")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", name):
        raise ScenarioError("name", name, "letters, digits, - and _")
    per_node = world // nodes
    words = {"name": shlex.quote(name), "nodes": nodes, "per_node": per_node, "ranks": world}
    files = {
        f"{name}.py": script(program, name, collective_timeout),
        f"{name}.sbatch": _SBATCH.format(cores=per_node, **words),
    }
    if nodes == 1:
        files[f"{name}.sh"] = _SHELL.format(**words)
    else:
        files[f"{name}.sh"] = _NODES.format(**words)
    return files


def script(program: Program, name: str, collective_timeout: float) -> str:
    """The Python file: head, the program as it is, tail."""
    head = _HEAD.format(
        title=f"A Shardwise lesson's {program.title}",
        name=name,
        more="import pickle as _pickle\n" if program.inputs else "",
        collective_timeout=collective_timeout,
        inputs=_inputs(program),
    )
    return head + program.source.strip("\n") + "\n" + _TAIL.format(outputs=list(program.outputs))


def _inputs(program: Program) -> str:
    """Handed-in values: readable ones as literals, others as the pickles they travelled in."""
    import pickle

    lines = []
    for name, raw in program.inputs.items():
        value = pickle.loads(raw)
        try:
            plain = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            plain = False
        lines.append(f"{name} = {value!r}" if plain else f"{name} = _pickle.loads({raw!r})")
    return "\n".join(lines) + ("\n" if lines else "")
