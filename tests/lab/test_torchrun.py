"""The exported script: what the lab ran, torchrun runs, unchanged, with the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from shardwise.core.errors import ScenarioError
from shardwise.lab import run, torchrun_files

CELL = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(3)
model = DistributedDataParallel(nn.Linear(width, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.full((4, width), 1.0 + rank, device=device)) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
weight = model.module.weight
"""


def launched(files, folder, world, name="lesson"):
    """Write the files and run them with torchrun as their shell script says."""
    for file, text in files.items():
        (folder / file).write_text(text)
    words = next(
        line for line in files[f"{name}.sh"].splitlines() if line.startswith("torchrun ")
    ).split()
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    environment.pop("PYTHONWARNINGS", None)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words[1:]],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    texts = [(folder / "results" / f"rank{rank}.json").read_text() for rank in range(world)]
    return [json.loads(text) for text in texts]


def test_torchrun_gives_what_the_lab_gave(tmp_path):
    """A DDP lesson, exported with its inputs, ends with the lab's losses and weights."""
    result = run(CELL, 2, inputs={"width": 6}, outputs=("losses", "weight"), device="cpu")
    results = launched(torchrun_files(result.program, 2), tmp_path, 2)
    for rank in range(2):
        assert results[rank]["losses"] == pytest.approx(result["losses"][rank], abs=1e-6)
        assert np.allclose(results[rank]["weight"], result["weight"][rank], atol=1e-6)


def test_the_cell_stands_in_the_script_unchanged():
    """Line by line what was in the notebook."""
    files = torchrun_files(CELL, 2, outputs=("losses",))
    assert CELL.strip("\n") in files["lesson.py"]
    compile(files["lesson.py"], "lesson.py", "exec")


def test_a_function_is_exported_with_its_call():
    """A function's program calls it with rank, world and inputs as the lab does."""

    def product(rank, world, factor):
        return rank * world * factor

    program = run(product, 2, inputs={"factor": 5}).program
    text = torchrun_files(program, 2)["lesson.py"]
    assert "returned = product(rank=rank, world=world, factor=factor)" in text
    assert "factor = 5" in text
    compile(text, "lesson.py", "exec")


def test_several_nodes_meet_at_one_of_them():
    """16 ranks on 2 nodes: 8 a node, one rendezvous, and the same for Slurm."""
    files = torchrun_files(CELL, 16, name="ddp", nodes=2)
    assert set(files) == {"ddp.py", "ddp.sh", "ddp.sbatch"}
    for text in (files["ddp.sh"], files["ddp.sbatch"]):
        assert "--nproc-per-node 8" in text and "--rdzv-backend c10d" in text
    assert "--nnodes 2" in files["ddp.sh"]
    assert "#SBATCH --nodes=2" in files["ddp.sbatch"]
    assert "#SBATCH --gpus-per-node=8" in files["ddp.sbatch"]


@pytest.mark.parametrize("ending", ["sh", "sbatch"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_shell_understands_the_scripts(tmp_path, ending, nodes):
    """bash parses them."""
    path = tmp_path / "script"
    path.write_text(torchrun_files(CELL, 4, nodes=nodes)[f"lesson.{ending}"])
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=10)


@pytest.mark.parametrize(
    ("world", "options", "words"),
    [
        (7, {"nodes": 2}, "a divisor of 7 ranks"),
        (0, {}, "from 1 to"),
        (4, {"name": "a b; rm"}, "letters, digits"),
        (4, {"nodes": 0}, "from 1 to"),
    ],
)
def test_exports_that_cannot_run_are_refused(world, options, words):
    """Ranks that do not divide over the nodes and names that are no file names."""
    with pytest.raises(ScenarioError, match=words):
        torchrun_files(CELL, world, **options)
