"""Record what the lessons print: `python lessons/record.py`, on the CPU.

Runs every lesson, the learner's build and the solved one, and writes `lessons/recorded.md` for a
room where they cannot run (text, tables and the words of each picture of the learner's build, under
a line that says where and when) and `lessons/checked.json`, the outputs that nbval compares.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import build
import nbclient
import nbformat
from lesson import Lesson, read

HERE = Path(__file__).resolve().parent
CELL_SECONDS = 120
INSTALLED = re.compile(r'File "/[^"]*/(?=(?:site-packages|shardwise)/)')  # where is nobody's matter
HEADER = """# Recorded results

**Recorded, not measured on your machine.** What the lessons printed on {where}, on {day}. The
exercises are unsolved and the predictions are those of the notebooks as they come. Show this page
when a room's machines or network cannot run a lesson, and say that it is a record. Pictures appear
in words. `python lessons/record.py` makes it anew.
"""


def where() -> str:
    """The machine, as far as it matters for the figures."""
    return f"{os.cpu_count()} cores ({platform.machine()}), torch {version('torch')}"


def outputs(notebook: Any) -> list[str]:
    """The text of every output, in order; progress lines and widgets left out."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if output.get("name") == "stderr" or any("widget-view" in kind for kind in data):
                continue
            text = output.get("text") or data.get("text/plain", "")
            if text.strip():
                found.append(INSTALLED.sub('File "', text.rstrip()))
    return found


def executed(lesson: Lesson, *, solved: bool) -> Any:
    """The notebook with its outputs, from a fresh kernel."""
    notebook = nbformat.reads(build.text_of(lesson, solved=solved), 4)
    nbclient.NotebookClient(notebook, timeout=CELL_SECONDS).execute()
    return notebook


def section(lesson: Lesson, notebook: Any) -> str:
    """One lesson's part of the page."""
    blocks = "\n\n".join(f"```text\n{text}\n```" for text in outputs(notebook))
    return f"## {lesson.number} · {lesson.front['title']}\n\n{blocks}\n"


def checked_outputs(notebook: Any) -> dict[str, Any]:
    """{cell id: outputs} of the cells that are compared."""
    cells = (c for c in notebook.cells if build.CHECK_TAG in c.metadata.get("tags", ()))
    return {cell.id: [_unnumbered(output) for output in cell.outputs] for cell in cells}


def _unnumbered(output: Any) -> dict[str, Any]:
    """As the notebook file has it, without the count of cells run before."""
    plain = json.loads(json.dumps(output))
    return plain | ({"execution_count": 1} if "execution_count" in plain else {})


def main() -> None:
    """Write the record and the checked outputs of all lessons."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    parts, checked = [HEADER.format(where=where(), day=day)], {}
    for lesson in (read(path) for path in sorted(build.SOURCE.glob("*.md"))):
        learner, solved = (executed(lesson, solved=solved) for solved in (False, True))
        parts.append(section(lesson, learner))
        checked[lesson.name] = {
            "learner": checked_outputs(learner),
            "solved": checked_outputs(solved),
        }
        print(lesson.name, flush=True)
    (HERE / "recorded.md").write_text("\n".join(parts), encoding="utf-8")
    text = json.dumps(checked, indent=1, ensure_ascii=False) + "\n"
    build.CHECKED.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
