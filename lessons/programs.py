"""Write each lesson's parallel program for a real cluster: `python lessons/programs.py FOLDER`.

The cell's text stands in the script unchanged; beside it lie a shell script for one node and one
for Slurm. `--nodes 2` spreads the ranks over two nodes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from build import SOURCE
from lesson import Cell, Lesson, read

from shardwise.lab import torchrun_files
from shardwise.lab.program import program_of

# What a notebook hands in, as a script finds it in its own folder.
INPUTS = {"path": Path("ds_config.json")}
HANG_SECONDS = 2.0  # lesson 13 hangs on purpose


@dataclass(frozen=True)
class Parallel:
    """A parallel cell: its text, its ranks, names in and out, and whether it is made to fail."""

    source: str
    world: int
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    fails: bool = False


def parallel_of(cell: Cell) -> Parallel | None:
    """The program of a `%%ranks` cell, or of a cell that holds one as text; None for others."""
    if cell.text.startswith("program = ") and "outputs = " in cell.text:
        names: dict[str, object] = {}
        exec(cell.text.split("\none, two = ")[0], names)
        return Parallel(str(names["program"]), 2, tuple(names["outputs"]))  # type: ignore[arg-type]
    if not cell.text.startswith("%%ranks"):
        return None
    line, source = cell.text.split("\n", 1)
    words = line.split()
    named = dict(zip(words, [*words[1:], ""], strict=True))
    told = (tuple(filter(None, named.get(key, "").split(","))) for key in ("-o", "-i"))
    return Parallel(source, int(words[1]), *told, fails="--allow-failure" in words)


def main_program(lesson: Lesson) -> Parallel:
    """The last one that proves parity with one process, or where there is none the last one."""
    cells = [cell for cell in lesson.cells if not (cell.exercise or cell.solution)]
    every = [found for cell in cells if (found := parallel_of(cell)) is not None]
    proving = [each for each in every if any("error" in name for name in each.outputs)]
    return (proving or every)[-1]


def files(lesson: Lesson, nodes: int = 1) -> dict[str, str]:
    """{file name: text}: the script, its starters, and the file that it reads if it reads one."""
    main = main_program(lesson)
    inputs = {name: INPUTS[name] for name in main.inputs}
    task = program_of(main.source, inputs=inputs, outputs=main.outputs)
    patience = HANG_SECONDS if main.fails else 600.0
    written = torchrun_files(
        task, main.world, name=lesson.name, nodes=nodes, collective_timeout=patience
    )
    for path in inputs.values():
        cell = next(cell for cell in lesson.cells if "write_text(" in cell.text)
        written[path.name] = cell.text.split('"""')[1]
    return written


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=1)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(SOURCE.glob("*.md")):
        lesson = read(path)
        nodes = asked.nodes if main_program(lesson).world % asked.nodes == 0 else 1
        for name, text in files(lesson, nodes).items():
            (asked.folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
