"""One lesson's source: front matter and cells, read and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MOST_CODE_CELLS = 12
KEYS = ("title", "teaching", "exercises", "ranks", "peak_mb", "objectives", "prerequisites",
        "misconception")  # fmt: skip

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
