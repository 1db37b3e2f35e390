"""Every kind of failure: the root cause is named and no process stays."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from processes import runs, still_running

from shardwise.core.errors import ScenarioError
from shardwise.core.units import MIB
from shardwise.lab import RanksFailed, forkserver, run
from shardwise.lab.limits import available_bytes, most_ranks, refuse_too_much

IMPORTS = """import ctypes, os, signal, sys, time
import torch
import torch.distributed as dist
x = torch.ones(4)
"""
FIRST = IMPORTS.count("\n") + 1  # the line number of what follows


def failed(source, world=4, timeout=20.0, collective_timeout=2.0):
    """The result of a program that must fail, with nothing left behind."""
    result = run(
        IMPORTS + source,
        world,
        timeout=timeout,
        collective_timeout=collective_timeout,
        allow_failure=True,
        device="cpu",
    )
    pids = [rank.pid for rank in result.ranks]
    assert all(pids) and still_running(pids, 0) == []
    assert result.cause is not None
    return result


def test_an_exception_is_the_cause_and_not_the_closed_connections_it_left():
    """The rank that raised is named with line and message; the others' errors are set aside."""
    result = failed("if rank == 2:\n    raise ValueError('wrong shape')\ndist.all_reduce(x)")
    cause = result.cause
    assert (cause.kind, cause.ranks, cause.line) == ("exception", (2,), FIRST + 1)
    assert "Rank 2 raised ValueError" in cause.sentence and "wrong shape" in cause.sentence
    assert "ranks 0, 1, 3 waited in all_reduce of float32[4]" in cause.sentence
    assert "onnection" not in cause.sentence
    assert [rank.status for rank in result.ranks] == ["error"] * 4


def test_the_traceback_shows_the_program_and_not_the_launcher():
    """What people read begins at their own line."""
    result = failed("def inner():\n    return {}['missing']\ninner()", 1)
    assert result.cause.line == FIRST + 1
    assert '"<ranks>"' in result.cause.detail and "return {}['missing']" in result.cause.detail
    assert "worker.py" not in result.cause.detail


@pytest.mark.parametrize(
    ("call", "code"), [("os._exit(5)", 5), ("sys.exit(3)", 3), ("sys.exit('no data')", 1)]
)
def test_an_exit_code_is_named_with_its_line(call, code):
    """Leaving the process early is a failure of that rank, at that line, with that code."""
    result = failed(f"if rank == 1:\n    {call}\ndist.barrier()", 2)
    cause = result.cause
    assert (cause.kind, cause.ranks, cause.line) == ("exit", (1,), FIRST + 1)
    assert f"Rank 1 ended with exit code {code}" in cause.sentence
    assert "rank 0 waited in barrier" in cause.sentence


def test_leaving_with_code_zero_in_the_middle_is_a_failure_too():
    """os._exit(0) skips the rest of the cell, so the rank has not finished."""
    result = failed("if rank == 1:\n    os._exit(0)\ndist.barrier()", 2)
    assert (result.cause.kind, result.cause.ranks) == ("exit", (1,))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM"),
        ("ctypes.string_at(0)", "SIGSEGV"),
        ("os.abort()", "SIGABRT"),
    ],
)
def test_a_signal_is_named_with_the_rank_it_ended(call, name):
    """Death by signal is told apart from an exit and from the errors it causes elsewhere."""
    result = failed(f"if rank == 1:\n    {call}\ndist.all_reduce(x)", 2)
    cause = result.cause
    assert (cause.kind, cause.ranks) == ("signal", (1,))
    assert f"killed by {name}" in cause.sentence
    if name in ("SIGSEGV", "SIGABRT"):  # the interpreter could still note where it was
        assert cause.line == FIRST + 1


def test_a_hang_in_a_collective_names_who_never_called_it_and_where_it_was():
    """The waiting ranks time out; the absent one is named with its own line."""
    result = failed("if rank == 1:\n    time.sleep(600)\ndist.all_reduce(x)")
    cause = result.cause
    assert (cause.kind, cause.ranks, cause.collective) == ("hang", (1,), "all_reduce")
    assert cause.line == FIRST + 1
    assert "Rank 1 never called all_reduce" in cause.sentence
    assert f"ranks 0, 2, 3 wait at line {FIRST + 2}" in cause.sentence
    assert result.seconds < 20


def test_a_rank_that_finished_without_the_others_collective_is_named():
    """An `if rank` around a collective leaves the others waiting for a finished rank."""
    result = failed("if rank != 3:\n    dist.broadcast(x, 0)")
    cause = result.cause
    assert (cause.kind, cause.ranks, cause.collective) == ("hang", (3,), "broadcast")
    assert "rank 3 had finished" in cause.sentence


def test_an_endless_loop_is_bounded_by_the_deadline():
    """A rank that never ends is ended, with the line it was at; it holds the GIL all the time."""
    began = time.monotonic()
    result = failed("if rank == 1:\n    while True:\n        pass", 2, timeout=2.0)
    assert (result.cause.kind, result.cause.ranks) == ("hang", (1,))
    assert result.cause.line in (FIRST + 1, FIRST + 2)
    assert result.ranks[0].status == "ok" and result.ranks[1].status == "hung"
    assert time.monotonic() - began < 30


def test_a_hang_that_ignores_signals_is_ended_all_the_same():
    """Handlers a program sets for polite signals do not save it from the deadline."""
    source = """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
time.sleep(600)
"""
    result = failed(source, 2, timeout=1.0)
    assert result.cause.kind == "hang" and result.cause.ranks == (0, 1)


def test_receives_on_both_sides_are_a_deadlock():
    """Everybody waits for everybody: both receives are named."""
    result = failed("dist.recv(x, 1 - rank)", 2)
    cause = result.cause
    assert (cause.kind, cause.collective, cause.line) == ("hang", "recv", FIRST)
    assert "rank 0 waited in recv of float32[4] from rank 1" in cause.sentence
    assert "rank 1 waited in recv of float32[4] from rank 0" in cause.sentence


def test_uneven_loaders_under_ddp_name_the_rank_that_ran_out():
    """DDP's all-reduce is made in C++: the line of backward stands for it."""
    source = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for batch in range(2 + rank):
    model(x).sum().backward()
"""
    result = failed(source, 2)
    assert (result.cause.kind, result.cause.ranks) == ("hang", (0,))
    assert "Rank 0 finished while rank 1 waited" in result.cause.sentence
    assert "model(x).sum().backward()" in result.cause.sentence
    assert any("all_reduce" in entry["profiling_name"] for entry in result.ranks[1].flight)


def test_a_collective_that_dtensor_makes_names_who_did_not_come():
    """Tensor parallelism's collectives, in a mesh's own group, wait no longer than others do."""
    source = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))["tensor"]
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
net = parallelize_module(net, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
if rank == 3:
    time.sleep(600)
net(x).sum().item()
"""
    result = failed(source, timeout=50.0)
    cause = result.cause
    assert (cause.kind, cause.ranks, cause.line) == ("hang", (3,), FIRST + 7)
    assert "Rank 3 never came to where rank 2 waited" in cause.sentence
    assert "net(x).sum()" in cause.sentence and "time.sleep(600)" in cause.sentence
    assert result.seconds < 40


@pytest.mark.parametrize("odd", [0, 1])
def test_different_sizes_are_a_mismatch_though_gloo_aborts(odd):
    """gloo ends the process in C++ without a Python error; the sizes and lines are told anyway."""
    result = failed(f"if rank == {odd}:\n    x = torch.ones(8)\ndist.all_reduce(x)", 2)
    cause = result.cause
    assert (cause.kind, cause.collective, cause.line) == ("mismatch", "all_reduce", FIRST + 2)
    assert f"rank {odd} called all_reduce of float32[8]" in cause.sentence
    assert f"rank {1 - odd} called all_reduce of float32[4]" in cause.sentence


def test_different_collectives_are_a_mismatch_and_the_odd_rank_is_named():
    """One rank in a barrier, three in an all-reduce: the one is named first."""
    source = "if rank == 1:\n    dist.barrier()\nelse:\n    dist.all_reduce(x)"
    cause = failed(source).cause
    assert (cause.kind, cause.ranks, cause.line) == ("mismatch", (1,), FIRST + 1)
    assert "rank 1 called barrier" in cause.sentence


def test_a_mismatch_in_a_subgroup_is_found_among_its_own_ranks():
    """Collectives are counted group by group, so other groups' calls do not confuse it."""
    source = """
low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
mine = low if rank < 2 else high
if rank == 0:
    dist.all_reduce(x)
dist.barrier(group=mine)
if rank == 3:
    dist.broadcast(x, 2, group=mine)
else:
    dist.all_reduce(x, group=mine)
"""
    cause = failed(source).cause
    assert cause.kind == "mismatch" and cause.ranks[0] in (2, 3)
    assert "broadcast" in cause.sentence and "all_reduce" in cause.sentence


def test_endless_output_is_cut_and_the_rank_named():
    """A print in an endless loop fills neither the disk nor the notebook."""
    result = failed("while rank == 1:\n    print('x' * 10_000)", 2)
    assert (result.cause.kind, result.cause.ranks) == ("output", (1,))
    assert len(result.ranks[1].output) < 100_000 and "bytes not shown" in result.ranks[1].output


def test_children_and_daemons_of_a_rank_end_with_it(tmp_path):
    """A rank's subprocess and one in its own session, orphaned, both end with the cell."""
    source = """
import subprocess
child = subprocess.Popen(["sleep", "600"])
shell = subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"],
                       capture_output=True, text=True)
pids = (child.pid, int(shell.stdout))
"""
    result = run(IMPORTS + source, 2, outputs=("pids",), device="cpu")
    pids = [pid for pair in result["pids"] for pid in pair]
    assert len(pids) == 4 and still_running(pids, 5) == []


def test_a_run_that_fails_raises_with_the_result_unless_told_otherwise():
    """By default failure is an exception that carries the cause and every rank."""
    with pytest.raises(RanksFailed, match="Rank 0 raised ZeroDivisionError") as caught:
        run("1 / 0", 1)
    assert caught.value.cause.kind == "exception" and len(caught.value.result.ranks) == 1
    shown = "\n".join(caught.value._render_traceback_())
    assert "ZeroDivisionError" in shown and "ranks.py" not in shown


def test_the_next_run_works_after_every_failure():
    """A failed run costs nothing: the server serves the next order as if nothing had been."""
    failed("os.kill(os.getpid(), signal.SIGKILL)", 2)
    assert run("y = rank", 2, outputs=("y",))["y"] == (0, 1)


def test_a_killed_server_takes_its_ranks_along_and_is_replaced():
    """Ranks die with the server by the kernel's hand; the caller is told; the next run works."""
    run("x = 1", 1)
    server = forkserver.running()
    assert server is not None

    def kill_soon():
        time.sleep(1.0)
        os.kill(server.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_soon)
    killer.start()
    result = run("import time\ntime.sleep(60)", 2, timeout=30, allow_failure=True)
    killer.join()
    pids = [rank.pid for rank in result.ranks]
    assert "fork server" in result.cause.sentence
    assert still_running(pids, 5) == []
    assert run("y = rank", 2, outputs=("y",))["y"] == (0, 1)


def test_shutting_down_ends_the_server():
    """After shut_down no server runs, and the next run starts one."""
    run("x = 1", 1)
    pid = forkserver.running().pid
    forkserver.shut_down()
    assert not runs(pid) and forkserver.running() is None
    assert run("y = rank", 1, outputs=("y",))["y"] == (0,)


@pytest.mark.parametrize("world", [0, -1, 10_000, 2.5, "two", None, True])
def test_impossible_numbers_of_ranks_are_refused_with_the_allowed_range(world):
    """Not a number, too few or too many: one sentence, before anything starts."""
    with pytest.raises(ScenarioError, match="allowed: a whole number from 1 to"):
        run("x = 1", world)


def test_too_little_memory_is_refused_beforehand_with_both_figures():
    """Ranks that would not fit are not started; the sentence has needed and free memory."""
    with pytest.raises(ScenarioError, match=r"100 MiB of free memory.*8 ranks need about 880 MiB"):
        refuse_too_much(8, available_bytes=100 * MIB, server_running=False)
    refuse_too_much(8, available_bytes=500 * MIB, server_running=True)


def test_free_memory_is_read_from_this_machine():
    """What limits say is a positive number of bytes no larger than the machine's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_bytes() <= total


def test_eight_ranks_are_allowed_on_the_smallest_machine():
    """3D parallelism needs eight; more than four a core outlast the timeouts."""
    assert most_ranks(1) == 8 and most_ranks(64) == 256


@pytest.mark.parametrize("name", ["timeout", "collective_timeout"])
@pytest.mark.parametrize("value", [0, -3, float("nan"), "soon", 1e9])
def test_timeouts_are_finite_and_positive(name, value):
    """A wait without a bound cannot be asked for."""
    with pytest.raises(ScenarioError, match=name):
        run("x = 1", 1, **{name: value})
