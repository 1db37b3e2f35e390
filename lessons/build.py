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
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "source"
CHECKED = HERE / "checked.json"
CHECK_TAG = "nbval-check-output"
CHECK_SOLVED_TAG = "check-solved"  # becomes the former, in the solved build alone
MOST_CODE_CELLS = 12
KEYS = ("title", "teaching", "exercises", "ranks", "peak_mb", "objectives", "prerequisites",
        "misconception")  # fmt: skip
PLANS = {  # lessons of each day; what a lesson asks for comes before it
    "Half a day": ((0, 1, 2, 4),),
    "One day": ((0, 1, 2, 4, 5, 6, 14),),
    "Two days": ((0, 1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12, 13, 14)),
}
START, LUNCH = 9 * 60, 11 * 60 + 45  # minutes after midnight; lunch once a lesson ends after it
BREAK_MINUTES, LUNCH_MINUTES, MOST_WITHOUT_BREAK = 10, 50, 105

_ANSWER = re.compile(r"^- \*\*Concept check:\*\* .*$", re.MULTILINE)
_FENCE = re.compile(r"^```python(?P<words>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A Markdown or code cell of a lesson."""

    kind: str  # markdown | code
    text: str
    tags: tuple[str, ...] = ()
    exercise: str = ""
    solution: str = ""


@dataclass(frozen=True)
class Lesson:
    """A lesson's front matter and cells."""

    name: str
    front: dict[str, str]
    cells: tuple[Cell, ...]

    @property
    def number(self) -> int:
        """Its place in the course."""
        return int(self.name[:2])

    @property
    def minutes(self) -> int:
        """Teaching and exercises together."""
        return int(self.front["teaching"]) + int(self.front["exercises"])

    def listed(self, key: str) -> list[str]:
        """A front-matter entry that is a list."""
        return [part.strip() for part in self.front[key].split(";") if part.strip()]


def read(path: Path) -> Lesson:
    """Parse a source file; anything malformed is an error that names the file."""
    _, head, body = path.read_text(encoding="utf-8").split("---\n", 2)
    front = dict(line.split(": ", 1) for line in head.strip().splitlines())
    if tuple(front) != KEYS:
        raise ValueError(f"{path.name}: front matter must be {', '.join(KEYS)}, is {list(front)}")
    belief = f" The belief that it tests: “{front['misconception']}”."
    body = _ANSWER.sub(lambda answer: answer[0] + belief, body)
    cells: list[Cell] = []
    at = 0
    for fence in _FENCE.finditer(body):
        cells += _markdown(body[at : fence.start()])
        words = dict(word.split("=", 1) for word in fence["words"].split())
        tags = tuple(filter(None, words.pop("tags", "").split(",")))
        cells.append(Cell("code", fence["code"].rstrip("\n"), tags, **words))
        at = fence.end()
    cells += _markdown(body[at:])
    lesson = Lesson(path.stem, front, tuple(cells))
    _checked(lesson)
    return lesson


def _markdown(text: str) -> list[Cell]:
    return [Cell("markdown", text.strip())] if text.strip() else []


def _checked(lesson: Lesson) -> None:
    exercises = [cell.exercise for cell in lesson.cells if cell.exercise]
    solutions = [cell.solution for cell in lesson.cells if cell.solution]
    if exercises != solutions:
        raise ValueError(f"{lesson.name}: exercises {exercises} and solutions {solutions} differ")
    count = sum(cell.kind == "code" and not cell.solution for cell in lesson.cells)
    if count > MOST_CODE_CELLS:
        raise ValueError(f"{lesson.name}: {count} code cells, at most {MOST_CODE_CELLS}")


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


def index(lessons: list[Lesson]) -> str:
    """`lessons/README.md`, from front matter alone."""
    lines = [
        "# Lessons",
        "",
        "Real ranks in a notebook: predict, run the real thing, reconcile. Every lesson runs in at",
        "most a minute on two cores, with or without a GPU. This page comes from `build.py`.",
        "",
        "| | lesson | minutes | ranks | peak memory | you will be able to | cures the belief |",
        "|---|---|---|---|---|---|---|",
    ]
    for lesson in lessons:
        front = lesson.front
        minutes = f"{front['teaching']} + {front['exercises']}"
        lines.append(
            f"| {lesson.number} | [{front['title']}]({lesson.name}.ipynb) | {minutes} | "
            f"{front['ranks']} | {front['peak_mb']} MB | {'; '.join(lesson.listed('objectives'))} "
            f"| “{front['misconception']}” |"
        )
    lines += ["", "Minutes are teaching + exercises.", "", "## Plans", ""]
    for plan, days in PLANS.items():
        lines += plan_lines(plan, [[x for x in lessons if x.number in day] for day in days])
    lines += [
        "The [guide](guide.md) says what to expect and what goes wrong; the",
        "[inventory](inventory.md) asks the same questions before and after; the",
        "[record](recorded.md) shows what every lesson printed elsewhere. To check a machine:",
        "`python -m shardwise.lab.classroom`.",
    ]
    lines += [
        "",
        "## Exercises",
        "",
        "Stubs to fill in: `check(...)` says for each property what was expected and what came. A",
        "lesson and its solutions have one source in `source/`; change it there and build again.",
        "",
        "## On a cluster, and under test",
        "",
        "`python lessons/programs.py FOLDER` writes each lesson's parallel program for torchrun:",
        "one node, several (`--nodes 2`), Slurm.",
        "",
        "`python lessons/build.py --checked FOLDER` writes both builds with recorded results in",
        "their cells; then",
        "`CUDA_VISIBLE_DEVICES= pytest --nbval-lax FOLDER/learner/*.ipynb FOLDER/solved/*.ipynb`",
        "runs all of them and compares those.",
        "",
    ]
    return "\n".join(lines)


def plan_lines(plan: str, days: list[list[Lesson]]) -> list[str]:
    """A plan with the times of its lessons, breaks and lunch."""
    hours = sum(lesson.minutes for day in days for lesson in day) / 60
    lines = [f"### {plan} ({hours:.1f} h of lessons)", ""]
    for number, day in enumerate(days, 1):
        if len(days) > 1:
            lines += [f"Day {number}", ""]
        lines += ["| time | |", "|---|---|"]
        lines += [f"| {at // 60}:{at % 60:02} | {words} |" for at, words in timetable(day)]
        lines.append("")
    return lines


def timetable(day: list[Lesson]) -> list[tuple[int, str]]:
    """(minute of the day, what begins then), the end included."""
    entries: list[tuple[int, str]] = []
    at = rested = START
    lunched = False
    for lesson in day:
        if not lunched and at >= LUNCH:
            entries.append((at, "lunch"))
            at = rested = at + LUNCH_MINUTES
            lunched = True
        elif at > rested and at + lesson.minutes - rested > MOST_WITHOUT_BREAK:
            entries.append((at, "break"))
            at = rested = at + BREAK_MINUTES
        entries.append((at, f"{lesson.number} [{lesson.front['title']}]({lesson.name}.ipynb)"))
        at += lesson.minutes
    return [*entries, (at, "end")]


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
