"""Real ranks: what they are given, what they print, what comes back."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import still_running

from shardwise.core.errors import ScenarioError
from shardwise.lab import run
from shardwise.lab.program import program_of
from shardwise.lab.ranks import choose_device
from shardwise.lab.result import folded, rank_names

SUM = """
import torch
import torch.distributed as dist

total = torch.tensor([float(rank)])
dist.all_reduce(total)
print(f"sum {total.item():.0f}")
"""


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_every_rank_joins_one_group_and_the_sum_is_theirs(world):
    """An all-reduce over all ranks gives 0 + 1 + ... on each of them."""
    result = run(SUM, world, outputs=("total",))
    assert [float(value[0]) for value in result["total"]] == [world * (world - 1) / 2] * world
    assert result.backend == "gloo" or result.backend == "nccl"


def test_no_process_outlives_a_run_that_went_well():
    """After an ordinary run all its ranks have ended."""
    result = run(SUM, 4)
    pids = [rank.pid for rank in result.ranks]
    assert len(set(pids)) == 4
    assert still_running(pids, 0) == []


def test_equal_outputs_fold_and_different_ones_stand_in_rank_order():
    """Ranks that printed the same share one block; the others follow in order."""
    result = run("print('even' if rank % 2 == 0 else f'odd {rank}')", 4)
    assert result.text().splitlines()[1:] == [
        "[ranks 0, 2] even",
        "[rank 1] odd 1",
        "[rank 3] odd 3",
    ]
    assert result.text().splitlines()[0] == result.where


def test_a_function_returns_its_value_from_every_rank():
    """A function is called with the arguments it names, and its return values come back."""

    def share(rank, world, device, size):
        return {"mine": size // world, "first": rank * size // world, "device": device.type}

    result = run(share, 2, inputs={"size": 10}, device="cpu")
    assert result.values == (
        {"mine": 5, "first": 0, "device": "cpu"},
        {"mine": 5, "first": 5, "device": "cpu"},
    )


def test_tensors_come_back_as_numpy_and_scalars_as_numbers():
    """Tensors of any dtype, nested too, arrive without torch; bfloat16 widens to float32."""
    source = """
import torch
several = [torch.arange(3), {"half": torch.ones(2, dtype=torch.bfloat16)}, torch.tensor(7)]
"""
    (value,) = run(source, 1, outputs=("several",))["several"]
    assert isinstance(value[0], np.ndarray) and value[0].tolist() == [0, 1, 2]
    assert value[1]["half"].dtype == np.float32
    assert value[2] == 7 and isinstance(value[2], int)


def test_the_notebook_process_never_loads_torch():
    """Running ranks and reading their tensors leaves torch out of the calling process."""
    script = textwrap.dedent("""
        import sys
        from shardwise.lab import run
        result = run("import torch\\nx = torch.ones(3)", 2, outputs=("x",))
        assert result["x"][1].sum() == 3
        print("torch" in sys.modules)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"


def test_ranks_see_the_callers_folder_environment_and_a_quiet_thread_pool(monkeypatch, tmp_path):
    """Relative paths and environment variables mean on a rank what they mean in the notebook."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDWISE_TEST_WORD", "hello")
    source = """
import os, torch
seen = (os.getcwd(), os.environ["SHARDWISE_TEST_WORD"], torch.get_num_threads(),
        os.environ["RANK"], os.environ["WORLD_SIZE"])
"""
    result = run(source, 2, outputs=("seen",))
    assert result["seen"][1] == (str(tmp_path), "hello", 1, "1", "2")


def test_classes_of_a_cell_can_be_pickled_between_ranks():
    """The program runs as `__main__`, so its own classes travel through object collectives."""
    source = """
import torch.distributed as dist

class Note:
    def __init__(self, text):
        self.text = text

notes = [None] * world
dist.all_gather_object(notes, Note(f"from {rank}"))
texts = [note.text for note in notes]
"""
    assert run(source, 2, outputs=("texts",))["texts"] == (["from 0", "from 1"],) * 2


def test_a_later_run_starts_fresh():
    """Nothing a rank defines or seeds is there for the next run."""
    run("import torch\ntorch.manual_seed(7)\nleft_over = 1", 1)
    source = "import torch\nfound = 'left_over' in globals()\nseed = torch.initial_seed()"
    result = run(source, 1, outputs=("found", "seed"))
    assert result["found"] == (False,) and result["seed"] != (7,)


def test_ddp_equals_one_process_on_the_whole_batch():
    """Two ranks with half a batch each train to the weights of one process with all of it."""
    source = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def train(model, inputs, targets):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 5)).to(device)

torch.manual_seed(1)
inputs, targets = torch.randn(16, 12).to(device), torch.randint(0, 5, (16,)).to(device)
alone = train(network(), inputs, targets)
together = train(DistributedDataParallel(network()), inputs[rank::world], targets[rank::world])
error = max((a - b).abs().max().item() for a, b in zip(alone, together))
"""
    assert max(run(source, 2, outputs=("error",))["error"]) <= 1e-5


@pytest.mark.parametrize(
    ("wanted", "world", "gpus", "chosen"),
    [
        ("auto", 4, 0, ("cpu", "gloo", "4 ranks on the CPU with gloo (no GPU here)")),
        ("auto", 2, 1, ("cpu", "gloo", "2 ranks on the CPU with gloo (only 1 GPU here)")),
        ("auto", 8, 8, ("cuda", "nccl", "8 ranks on 8 GPUs with NCCL")),
        ("cpu", 2, 8, ("cpu", "gloo", "2 ranks on the CPU with gloo (as asked)")),
        ("cuda", 1, 1, ("cuda", "nccl", "1 rank on 1 GPU with NCCL")),
    ],
)
def test_nccl_takes_one_gpu_a_rank_and_otherwise_gloo_serves(wanted, world, gpus, chosen):
    """The backend follows the number of GPUs and is said in one line."""
    assert choose_device(wanted, world, gpus) == chosen


def test_more_ranks_than_gpus_are_refused_when_cuda_is_asked_for():
    """Insisting on CUDA without a GPU a rank is an error with a reason, not a silent fallback."""
    with pytest.raises(ScenarioError, match="one GPU a rank"):
        choose_device("cuda", 4, 2)


@given(st.lists(st.sampled_from(["", "a", "b\n", "c"]), min_size=1, max_size=9))
def test_folding_loses_no_rank_and_no_text(texts):
    """Whatever ranks print, each is in exactly one group, with its own text."""
    groups = folded(texts)
    assert sorted(rank for ranks, _ in groups for rank in ranks) == list(range(len(texts)))
    assert all(texts[rank] == text for ranks, text in groups for rank in ranks)
    assert [ranks[0] for ranks, _ in groups] == sorted(ranks[0] for ranks, _ in groups)


def test_ranks_are_named_as_people_write_them():
    """Three in a row become a range, two do not."""
    assert rank_names([0, 1, 2, 3]) == "ranks 0-3"
    assert rank_names([0, 1, 5]) == "ranks 0, 1, 5"


SIZE = 3


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        ("", {}, "Python text or a function"),
        (7, {}, "Python text or a function"),
        (print, {}, "a plain `def`"),
        (lambda rank: rank, {}, "a plain `def`"),
        ("x = 1", {"inputs": {"rank": 3}}, "set by each rank itself"),
        ("x = 1", {"inputs": {"open": open(__file__)}}, "pickle"),  # noqa: SIM115, PTH123
        ("x = 1", {"outputs": ("not a name",)}, "names of Python variables"),
    ],
)
def test_programs_that_cannot_travel_are_refused_with_a_reason(program, options, words):
    """Anything that is not source text with plain inputs is said to be so beforehand."""
    with pytest.raises(ScenarioError, match=words):
        program_of(program, **options)
    if "inputs" in options and "open" in options["inputs"]:
        options["inputs"]["open"].close()


def test_functions_that_lean_on_their_surroundings_are_refused_by_name():
    """A global or an enclosing variable a rank would not have is named before anything starts."""
    steps = 4

    def encloses(rank):
        return rank * steps

    def reads_global(rank):
        return rank * SIZE

    with pytest.raises(ScenarioError, match="'steps' from around it"):
        program_of(encloses)
    with pytest.raises(ScenarioError, match="'SIZE' from outside"):
        program_of(reads_global)


def test_a_missing_argument_is_named_before_any_rank_starts():
    """The arguments of the function are listed when one is missing or unknown."""

    def needs(rank, width, depth=2):
        return rank + width + depth

    with pytest.raises(ScenarioError, match="rank, width, depth"):
        program_of(needs)
    with pytest.raises(ScenarioError, match="rank, width, depth"):
        program_of(needs, inputs={"width": 1, "heigth": 2})


def test_a_syntax_error_shows_the_line_of_the_cell():
    """Text that is not Python never reaches a rank."""
    with pytest.raises(SyntaxError) as caught:
        run("x = 1\ny = = 2", 2)
    assert caught.value.lineno == 2


def test_values_that_cannot_come_back_name_the_variable():
    """An output that is missing, a DTensor or unpicklable fails with its name."""
    missing = run("x = 1", 1, outputs=("y",), allow_failure=True)
    assert "'y' is to be returned" in missing.cause.sentence
    odd = run("x = lambda: 1", 1, outputs=("x",), allow_failure=True)
    assert "x cannot be returned" in odd.cause.sentence
    source = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
x = distribute_tensor(torch.ones(2), init_device_mesh(device.type, (world,)), [Replicate()])
"""
    sharded = run(source, 1, outputs=("x",), allow_failure=True)
    assert "return .to_local() or .full_tensor()" in sharded.cause.sentence


def test_an_unknown_name_of_a_result_lists_what_there_is():
    """Asking a result for a name it was not told to return says which it has."""
    with pytest.raises(KeyError, match="this run returned: x"):
        run("x = 1", 1, outputs=("x",))["loss"]
