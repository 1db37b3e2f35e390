"""The lessons: built from their sources, within their limits, solved for real."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "lessons"
SOURCES = sorted((LESSONS / "source").glob("*.md"))

pytest.importorskip("nbclient")


def builder():
    """The module `lessons/build.py`."""
    spec = importlib.util.spec_from_file_location("lessons_build", LESSONS / "build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["lessons_build"] = module
    spec.loader.exec_module(module)
    return module


build = builder()
by_name = pytest.mark.parametrize("path", SOURCES, ids=[path.stem for path in SOURCES])


@by_name
def test_the_committed_notebook_is_what_its_source_gives(path):
    """Nobody edited the notebook, or the source without building."""
    notebook = LESSONS / f"{path.stem}.ipynb"
    assert notebook.read_text(encoding="utf-8") == build.text_of(build.read(path))


def test_the_index_is_current():
    """`lessons/README.md` is what the front matter gives."""
    lessons = [build.read(path) for path in SOURCES]
    assert (LESSONS / "README.md").read_text(encoding="utf-8") == build.index(lessons)


@by_name
def test_no_output_no_answer_and_few_cells_in_the_learners_notebook(path):
    """At most twelve code cells, none with output, and no solution anywhere in the file."""
    lesson = build.read(path)
    notebook = build.notebook(lesson)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert 4 <= len(code) <= 12
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    text = json.dumps(notebook)
    for cell in lesson.cells:
        if cell.solution:
            assert json.dumps(cell.text)[1:-1] not in text
    assert notebook["metadata"]["shardwise"]["ranks"] >= 1


@by_name
def test_every_part_of_a_lesson_is_there(path):
    """Question, concept check with its answer, prediction, reconciliation, exercise, key points."""
    text = path.read_text(encoding="utf-8")
    for part in ("**What runs here:**", "**The question:**", "**Concept check.**", "## Predict",
                 "## Reconcile", "## Exercise", "## Key points", "- **Concept check:**",
                 "predict(", "reconcile(", "check("):  # fmt: skip
        assert part in text, part


def executed(path: Path, solved: bool):
    """The notebook after running it in a kernel: (cells, seconds)."""
    if "deepspeed" in path.stem:
        pytest.importorskip("deepspeed")
    import nbclient
    import nbformat

    notebook = nbformat.reads(build.text_of(build.read(path), solved=solved), 4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": "."}})
    started = time.monotonic()
    client.execute()
    return notebook.cells, time.monotonic() - started


def texts(cells) -> str:
    """All outputs as text."""
    found = []
    for cell in cells:
        for output in cell.get("outputs", ()):
            found.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(found)


@by_name
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # nbclient leaves its sockets to the end
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_solved_lesson_passes_its_checks_within_a_minute(path, monkeypatch):
    """With the solutions in, every check holds (a failed one would raise), and parity is said."""
    monkeypatch.setenv("SHARDWISE_CHECK", "raise")
    cells, seconds = executed(path, solved=True)
    said = texts(cells)
    assert re.search(r"^L\d\d\.\w+: passed$", said, re.MULTILINE)
    assert "False" not in said.replace("'7 and 1': False", "")
    assert seconds < 60


@by_name
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_unsolved_exercise_is_not_taken_for_a_solved_one(path, monkeypatch):
    """The stub as shipped runs without a crash and its check says not yet."""
    monkeypatch.delenv("SHARDWISE_CHECK", raising=False)
    cells, _ = executed(path, solved=False)
    assert re.search(r"^L\d\d\.\w+: not yet$", texts(cells), re.MULTILINE)


def test_a_broken_source_is_refused(tmp_path):
    """Missing front matter, a stub without a solution and too many cells are errors."""
    head = "---\n" + "".join(f"{key}: 1\n" for key in build.KEYS) + "---\n"
    cell = "```python{}\nx = 1\n```\n"
    for text, words in [
        ("---\ntitle: x\n---\n", "front matter must be"),
        (head + cell.format(" exercise=L1.x"), "differ"),
        (head + cell.format("") * 13, "at most 12"),
    ]:
        source = tmp_path / "01-x.md"
        source.write_text(text)
        with pytest.raises(ValueError, match=words):
            build.read(source)


@pytest.mark.parametrize(
    "name", ["04-ddp", "08-tensor-parallel", "09-pipeline-and-the-bubble", "10-schedules"]
)
def test_a_lessons_program_runs_under_torchrun(name, tmp_path):
    """The parallel cell of a lesson, written as a script, ends well on as many ranks."""
    from shardwise.lab import torchrun_files

    lesson = build.read(LESSONS / "source" / f"{name}.md")
    cell = next(c for c in lesson.cells if c.text.startswith("%%ranks"))
    line, program = cell.text.split("\n", 1)
    world = int(re.match(r"%%ranks (\d+)", line)[1])
    outputs = tuple(re.search(r"-o (\S+)", line)[1].split(","))
    for file, text in torchrun_files(program, world, outputs=outputs).items():
        (tmp_path / file).write_text(text)
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    done = subprocess.run(
        [sys.executable, *words, "lesson.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(world):
        results = json.loads((tmp_path / "results" / f"rank{rank}.json").read_text())
        assert results["error"] <= 1e-5
