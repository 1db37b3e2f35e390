"""Build the lessons: one Markdown source each gives the notebook, the solved one and the index.

    python lessons/build.py              write lessons/*.ipynb and lessons/README.md
    python lessons/build.py --solved D   write the solved notebooks into folder D
    python lessons/build.py --checked D  both builds with the recorded outputs, for nbval:
                                         pytest --nbval-lax D/learner/*.ipynb D/solved/*.ipynb

A source in `lessons/source/` starts with front matter between `---` lines (`key: value`; lists are
separated by `;`). Text becomes Markdown cells, a fence opened with ```python a code cell.
After `python` may stand words: `tags=a,b` gives the cell tags; `exercise=L01.ring` marks a stub
that `solution=L01.ring` replaces in the solved notebook (and only there). The tag
`nbval-check-output` marks cells that print the same everywhere (on the CPU), `check-solved` those
that do so once solved: `record.py` keeps what they printed in `checked.json`. The learner's
notebooks have no outputs: predictions come first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from course import index
from lesson import Lesson, read

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "source"
CHECKED = HERE / "checked.json"
CHECK_TAG = "nbval-check-output"
CHECK_SOLVED_TAG = "check-solved"  # becomes the former, in the solved build alone


def notebook(lesson: Lesson, *, solved: bool = False) -> dict[str, Any]:
    """The notebook as JSON values, without outputs."""
    left_out = "exercise" if solved else "solution"
    cells = []
    for number, cell in enumerate(c for c in lesson.cells if not getattr(c, left_out)):
        swapped = {CHECK_SOLVED_TAG: CHECK_TAG if solved else ""}
        tags = [tag for each in cell.tags if (tag := swapped.get(each, each))]
        metadata: dict[str, Any] = {"tags": tags} if tags else {}
        written: dict[str, Any] = {
            "cell_type": cell.kind,
            "id": f"cell-{number:02}",
            "metadata": metadata,
            "source": cell.text.splitlines(keepends=True),
        }
        if cell.kind == "code":
            written |= {"execution_count": None, "outputs": []}
        cells.append(written)
    about = {key: lesson.front[key] for key in ("title", "misconception")}
    about |= {k: int(lesson.front[k]) for k in ("teaching", "exercises", "ranks", "peak_mb")}
    about |= {k: lesson.listed(k) for k in ("objectives", "prerequisites")}
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "shardwise": about,
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def checked(lesson: Lesson, *, solved: bool = False) -> str:
    """The notebook's file with the recorded outputs in the cells that are checked."""
    written = notebook(lesson, solved=solved)
    recorded = json.loads(CHECKED.read_text(encoding="utf-8"))[lesson.name]
    outputs = recorded["solved" if solved else "learner"]
    for cell in written["cells"]:
        if CHECK_TAG in cell["metadata"].get("tags", ()):
            cell |= {"outputs": outputs[cell["id"]], "execution_count": 1}
    return json.dumps(written, indent=1, ensure_ascii=False) + "\n"


def text_of(lesson: Lesson, *, solved: bool = False) -> str:
    """The notebook's file."""
    return json.dumps(notebook(lesson, solved=solved), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--solved", type=Path, help="a folder for the solved notebooks")
    parser.add_argument("--checked", type=Path, help="a folder for both builds with outputs")
    asked = parser.parse_args()
    lessons = [read(path) for path in sorted(SOURCE.glob("*.md"))]
    for lesson in lessons:
        if asked.solved is not None:
            _write(asked.solved / f"{lesson.name}.ipynb", text_of(lesson, solved=True))
        if asked.checked is not None:
            _write(asked.checked / "learner" / f"{lesson.name}.ipynb", checked(lesson))
            _write(asked.checked / "solved" / f"{lesson.name}.ipynb", checked(lesson, solved=True))
    if asked.solved is asked.checked is None:
        for lesson in lessons:
            _write(HERE / f"{lesson.name}.ipynb", text_of(lesson))
        _write(HERE / "README.md", index(lessons))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
