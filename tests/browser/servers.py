"""Jupyter servers as people start them: own processes, own ports, bounded waits, ended by id."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
PAGES = Path(__file__).resolve().parent / "pages"
ARTIFACTS = ROOT / "artifacts"


@dataclass(frozen=True)
class Server:
    """A running server: where it answers and which process it is."""

    address: str
    pid: int

    def kernels(self) -> list[psutil.Process]:
        """The kernels of this server that are alive."""
        alive = []
        for child in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "ipykernel_launcher" in " ".join(child.cmdline()):
                    alive.append(child)
        return alive


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Return when the condition holds; fail with a sentence when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.05)


def answers(address: str) -> bool:
    """Whether an HTTP server answers there."""
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def running(
    command: list[str], probe: str, address: str, log: Path, cwd: Path | None = None
) -> Iterator[Server]:
    """Run the command until the block ends; the server must answer at `probe` within a minute."""
    environment = {
        **os.environ,
        "JUPYTERLAB_SETTINGS_DIR": str(log.parent / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(log.parent / "workspaces"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "widgets"), os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environment, cwd=cwd
        )
        try:
            wait_until(lambda: process.poll() is not None or answers(probe), 60, f"{command[2]}")
            if process.poll() is not None:
                raise RuntimeError(f"the server ended at once: {log.read_text(encoding='utf-8')}")
            yield Server(address, process.pid)
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, then make it; its kernels go with it."""
    children = (
        psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    )
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
    for child in psutil.wait_procs(children, timeout=5)[1]:
        child.kill()


def pool_options(notebook: Path, pool: int) -> list[str]:
    """Options that keep `pool` kernels ready for this notebook."""
    config = {notebook.name: {"pool_size": pool}, "default": {"pool_size": 0}}
    return [
        f"--VoilaKernelManager.kernel_pools_config={config!r}",
        "--VoilaKernelManager.fill_delay=0.5",
    ]


@contextlib.contextmanager
def voila(notebook: Path, *options: str, pool: int = 1, name: str = "voila") -> Iterator[Server]:
    """Shardwise's own command on this notebook, with `pool` kernels preheated."""
    port = free_port()
    address = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-m", "shardwise", str(notebook), "--no-browser", f"--port={port}"]
    command += [*pool_options(notebook, pool), *options]
    log = ARTIFACTS / "logs" / f"{name}-{notebook.stem}.log"
    with running(command, f"{address}voila/static/voila.js", address, log) as server:
        if pool:
            wait_until(lambda: len(server.kernels()) >= pool, 60, "the kernel pool")
            wait_until(lambda: settled(server), 60, "an idle kernel pool")
        yield server


def settled(server: Server) -> bool:
    """Whether no kernel has worked for half a second."""
    with contextlib.suppress(psutil.Error):
        before = [kernel.cpu_times().user for kernel in server.kernels()]
        time.sleep(0.5)
        after = [kernel.cpu_times().user for kernel in server.kernels()]
        return (
            len(before) == len(after)
            and all(late - early < 0.03 for early, late in zip(before, after, strict=True))
            and min(after, default=0) > 0.2
        )
    return False


@contextlib.contextmanager
def jupyterlab(folder: Path, *options: str) -> Iterator[Server]:
    """JupyterLab on this folder with the configuration that Shardwise ships."""
    port = free_port()
    address = f"http://127.0.0.1:{port}/"
    config = ROOT / "notebooks" / "jupyter_server_config.json"
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--ip=127.0.0.1",
        f"--config={config}", f"--ServerApp.root_dir={folder}", "--IdentityProvider.token=",
        "--ServerApp.port_retries=0", "--allow-root", *options,
    ]  # fmt: skip
    log = ARTIFACTS / "logs" / "jupyterlab.log"
    with running(command, f"{address}api", address, log, cwd=ROOT) as server:
        yield server
