"""Record what the lessons print, for a room where they cannot run: `python lessons/record.py`.

Runs every learner's notebook (no solutions) and writes `lessons/recorded.md`: text, tables and the
words of each picture, under a line that says where and when it was recorded.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbclient
import nbformat

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


def recorded(path: Path) -> str:
    """One lesson's section."""
    notebook = nbformat.read(path, 4)
    nbclient.NotebookClient(notebook, timeout=CELL_SECONDS).execute()
    title = notebook.metadata["shardwise"]["title"]
    blocks = "\n\n".join(f"```text\n{text}\n```" for text in outputs(notebook))
    return f"## {int(path.name[:2])} · {title}\n\n{blocks}\n"


def main() -> None:
    """Write the record of all lessons."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    parts = [HEADER.format(where=where(), day=day)]
    parts += [recorded(path) for path in sorted(HERE.glob("[0-9][0-9]-*.ipynb"))]
    (HERE / "recorded.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
