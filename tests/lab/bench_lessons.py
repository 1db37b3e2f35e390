"""How long each lesson takes and what it weighs: `python tests/lab/bench_lessons.py`.

Runs every notebook in a kernel and samples the proportional set size (PSS: a shared page counts
once) of the kernel with all its descendants. The front matter's `peak_mb` is this, rounded up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import nbclient
import nbformat

LESSONS = Path(__file__).resolve().parents[2] / "lessons"


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += tree(int(child))
    return found


def weight_bytes(pids: list[int]) -> int:
    """Their PSS together."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def measured(path: Path) -> tuple[float, int]:
    """(seconds, most bytes) of one run of a notebook."""
    notebook = nbformat.read(path, 4)
    client = nbclient.NotebookClient(notebook, timeout=120)
    most, done = [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            provisioner = getattr(client.km, "provisioner", None)
            if provisioner is not None and getattr(provisioner, "pid", None):
                most[0] = max(most[0], weight_bytes(tree(provisioner.pid)))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    try:
        client.execute()
    finally:
        done.set()
        watcher.join()
    return time.monotonic() - started, most[0]


def main() -> None:
    """One line a lesson."""
    for path in sorted(LESSONS.glob("*.ipynb")):
        seconds, size = measured(path)
        print(f"{path.stem:32} {seconds:6.1f} s {size / 2**20:6.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
