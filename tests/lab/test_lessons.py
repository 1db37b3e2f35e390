"""The lessons: built from their sources, within their limits, solved for real."""

from __future__ import annotations

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


sys.path.insert(0, str(LESSONS))

import build  # noqa: E402
import programs  # noqa: E402
import record  # noqa: E402
from course import index  # noqa: E402
from lesson import KEYS, read  # noqa: E402

PARITY = 1e-5
by_name = pytest.mark.parametrize("path", SOURCES, ids=[path.stem for path in SOURCES])


@by_name
def test_the_committed_notebook_is_what_its_source_gives(path):
    """Nobody edited the notebook, or the source without building."""
    notebook = LESSONS / f"{path.stem}.ipynb"
    assert notebook.read_text(encoding="utf-8") == build.text_of(read(path))


def test_the_index_is_current():
    """`lessons/README.md` is what the front matter gives."""
    lessons = [read(path) for path in SOURCES]
    assert (LESSONS / "README.md").read_text(encoding="utf-8") == index(lessons)


@by_name
def test_no_output_no_answer_and_few_cells_in_the_learners_notebook(path):
    """At most twelve code cells, none with output, and no solution anywhere in the file."""
    lesson = read(path)
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
                 "## Reconcile", "## Exercise", "## Vary it", "## Key points",
                 "- **Concept check:**", "predict(", "reconcile(", "check("):  # fmt: skip
        assert part in text, part


@by_name
def test_it_can_be_varied_in_the_explorer(path):
    """What stands under "Vary it" ends with a panel that opens with the lesson's scenario."""
    _, after = path.read_text(encoding="utf-8").split("## Vary it")
    cells = re.findall(
        r"^```python[^\n]*\n(.*?)^```$", after.split("## ")[0], re.DOTALL | re.MULTILINE
    )
    assert re.search(r"^sw\.(Explorer|\w+Panel)\([^)]", cells[-1], re.MULTILINE)


@by_name
def test_the_answer_of_the_concept_check_names_the_misconception(path):
    """The belief of the front matter stands beside the answer, in the last lines."""
    lesson = read(path)
    (line,) = [
        line
        for cell in lesson.cells
        for line in cell.text.splitlines()
        if line.startswith("- **Concept check:**")
    ]
    assert f"“{lesson.front['misconception']}”" in line


@by_name
def test_every_lesson_has_results_that_nbval_checks(path):
    """The recorded outputs are those of its checked cells, and its exercise is among them."""
    lesson = read(path)
    recorded = json.loads(build.CHECKED.read_text(encoding="utf-8"))[lesson.name]
    for solved in (False, True):
        cells = build.notebook(lesson, solved=solved)["cells"]
        tagged = [c for c in cells if build.CHECK_TAG in c["metadata"].get("tags", ())]
        outputs = recorded["solved" if solved else "learner"]
        assert set(outputs) == {cell["id"] for cell in tagged}
        assert all(outputs.values())
        exercises = ["".join(cell["source"]).startswith("check(") for cell in tagged]
        assert any(exercises) if solved else exercises


def executed(path: Path, solved: bool):
    """The notebook after running it in a kernel: (cells, seconds)."""
    if "deepspeed" in path.stem:
        pytest.importorskip("deepspeed")
    import nbclient
    import nbformat

    notebook = nbformat.reads(build.text_of(read(path), solved=solved), 4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": "."}})
    started = time.monotonic()
    client.execute()
    seconds = time.monotonic() - started
    recorded = json.loads(build.CHECKED.read_text(encoding="utf-8"))[path.stem]
    found = record.checked_outputs(notebook)
    assert found == recorded["solved" if solved else "learner"]
    return notebook.cells, seconds


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
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
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
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cells, _ = executed(path, solved=False)
    assert re.search(r"^L\d\d\.\w+: not yet$", texts(cells), re.MULTILINE)


def test_a_broken_source_is_refused(tmp_path):
    """Missing front matter, a stub without a solution and too many cells are errors."""
    head = "---\n" + "".join(f"{key}: 1\n" for key in KEYS) + "---\n"
    cell = "```python{}\nx = 1\n```\n"
    for text, words in [
        ("---\ntitle: x\n---\n", "front matter must be"),
        (head + cell.format(" exercise=L1.x"), "differ"),
        (head + cell.format("") * 13, "at most 12"),
    ]:
        source = tmp_path / "01-x.md"
        source.write_text(text)
        with pytest.raises(ValueError, match=words):
            read(source)


@by_name
def test_a_lessons_program_runs_under_torchrun(path, tmp_path):
    """Its script ends well on as many ranks, with parity; the one made to hang ends, failed."""
    if "deepspeed" in path.stem:
        pytest.importorskip("deepspeed")
    lesson = read(path)
    main = programs.main_program(lesson)
    for file, text in programs.files(lesson).items():
        (tmp_path / file).write_text(text)
    assert main.source.strip("\n") in (tmp_path / f"{lesson.name}.py").read_text()
    environment = dict(
        os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", CUDA_VISIBLE_DEVICES=""
    )
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(main.world)]
    done = subprocess.run(
        [sys.executable, *words, f"{lesson.name}.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    if main.fails:
        assert done.returncode != 0
        assert "through backward 1" in done.stdout and "through backward 2" not in done.stdout
        return
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(main.world):
        results = json.loads((tmp_path / "results" / f"rank{rank}.json").read_text())
        assert set(results) == set(main.outputs)
        for name in {"error", "zero_2_error"} & set(results):
            assert (
                results[name] <= PARITY
                if isinstance(results[name], float)
                else max(results[name].values()) <= PARITY
            )
