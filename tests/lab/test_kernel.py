"""The magic in a real Jupyter kernel: results, interrupts, and a killed kernel."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel
from processes import runs, still_running

SLEEPING = """%%ranks 2 --timeout 120
import os, time
open(f"{folder}/rank{rank}", "w").write(f"{os.getpid()} {os.getppid()}")
time.sleep(120)
"""


@pytest.fixture
def kernel():
    """A fresh ipykernel with the extension loaded, ended by its own id afterwards."""
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        execute(client, "%load_ext shardwise.lab")
        yield manager, client
    finally:
        client.stop_channels()
        if manager.is_alive():
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def execute(client, code, timeout=60):
    """Run a cell to its end: (text of its streams, name and value of its error or None)."""
    streams, errors = [], []

    def hear(message):
        if message["msg_type"] == "stream":
            streams.append(message["content"]["text"])
        elif message["msg_type"] == "error":
            errors.append((message["content"]["ename"], "\n".join(message["content"]["traceback"])))

    client.execute_interactive(code, timeout=timeout, output_hook=hear)
    return "".join(streams), errors[0] if errors else None


def started(folder: Path, world: int) -> tuple[list[int], int]:
    """Wait for the ranks of a cell to write their ids: (ranks, server)."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        texts = [path.read_text().split() for path in folder.glob("rank*")]
        if len(texts) == world and all(len(words) == 2 for words in texts):
            return [int(words[0]) for words in texts], int(texts[0][1])
        time.sleep(0.05)
    raise AssertionError("the ranks did not start")


def test_a_cell_runs_on_ranks_and_returns_names_to_the_notebook(kernel):
    """Names go in with -i and come out with -o; the outputs stand rank by rank."""
    _, client = kernel
    execute(client, "width = 3")
    cell = "%%ranks 2 -i width -o product -r result\nproduct = rank * width\nprint(product)"
    text, error = execute(client, cell)
    assert error is None
    assert "[rank 0] 0\n[rank 1] 3" in text
    text, _ = execute(client, "print(product, result.ok, len(result.ranks))")
    assert text.strip() == "(0, 3) True 2"


def test_a_failing_cell_shows_the_root_cause_with_the_notebooks_line_number(kernel):
    """Lines count from the magic's own; the launcher's frames do not show."""
    _, client = kernel
    cell = "%%ranks 2\nimport torch.distributed as dist\nif rank:\n    1 / 0\ndist.barrier()"
    _, error = execute(client, cell)
    assert error is not None and error[0] == "RanksFailed"
    assert "Rank 1 raised ZeroDivisionError at line 4 (`1 / 0`)" in error[1]
    assert "ranks.py" not in error[1]


def test_options_that_make_no_sense_are_explained(kernel):
    """A wrong option, an unknown name and too many ranks each give one sentence."""
    _, client = kernel
    for line, words in [
        ("%%ranks four", "For example: %%ranks 4"),
        ("%%ranks 2 -i nothing", "names this notebook has defined"),
        ("%%ranks 5000", "a whole number from 1 to"),
    ]:
        text, error = execute(client, f"{line}\nx = 1")
        assert error is not None
        assert words in text + error[1]


def test_an_interrupted_kernel_leaves_no_rank_and_goes_on_working(kernel, tmp_path):
    """The stop button (SIGINT) ends the ranks before the cell ends; the next cell works."""
    manager, client = kernel
    execute(client, f"folder = {str(tmp_path)!r}")
    message = client.execute(SLEEPING.replace("--timeout", "-i folder --timeout"))
    pids, server = started(tmp_path, 2)
    assert all(map(runs, [*pids, server]))
    manager.interrupt_kernel()
    limit = time.monotonic() + 30
    reply = {}
    while reply.get("parent_header", {}).get("msg_id") != message and time.monotonic() < limit:
        reply = client.get_shell_msg(timeout=30)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert still_running(pids, 0) == []
    # An error also drops what is already queued behind it; a person's next click comes later.
    while client.execute_interactive("1", timeout=30)["content"]["status"] == "aborted":
        assert time.monotonic() < limit
    text, error = execute(client, "%%ranks 2\nprint('again')")
    assert error is None and "[ranks 0, 1] again" in text
    assert runs(server)  # the interrupt did not cost the loaded server


def test_a_killed_kernel_leaves_no_process(kernel, tmp_path):
    """SIGKILL of the kernel in the middle of a cell ends its server and ranks within seconds."""
    manager, client = kernel
    execute(client, f"folder = {str(tmp_path)!r}")
    client.execute(SLEEPING.replace("--timeout", "-i folder --timeout"))
    pids, server = started(tmp_path, 2)
    os.kill(manager.provisioner.pid, signal.SIGKILL)
    assert still_running([*pids, server], 10) == []


def test_a_killed_idle_kernel_leaves_no_server(kernel):
    """The server of a kernel that dies between cells ends too."""
    manager, client = kernel
    cell = "%%ranks 1 -o parent\nimport os\nparent = os.getppid()"
    execute(client, cell)
    text, _ = execute(client, "print(parent[0])")
    server = int(text)
    assert runs(server)
    os.kill(manager.provisioner.pid, signal.SIGKILL)
    assert still_running([server], 10) == []
