"""What surrounds the lessons: plans, guide and inventory fit the lessons there are."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

LESSONS = Path(__file__).resolve().parents[2] / "lessons"
sys.path.insert(0, str(LESSONS))

import course  # noqa: E402
import lesson  # noqa: E402

lessons = {x.number: x for x in map(lesson.read, sorted((LESSONS / "source").glob("*.md")))}


@pytest.mark.parametrize("plan", course.PLANS)
def test_a_plan_teaches_what_its_lessons_ask_for_first(plan):
    """Each lesson comes after those its front matter names."""
    seen: set[int] = set()
    for number in (number for day in course.PLANS[plan] for number in day):
        asked = lessons[number].front["prerequisites"]
        if asked.startswith("lesson"):
            needed = {int(each) for each in re.findall(r"\d+", asked.split(";")[0])}
            assert needed <= seen, f"{plan}: lesson {number}"
        seen.add(number)


@pytest.mark.parametrize("plan", course.PLANS)
def test_a_day_ends_in_time_and_nobody_sits_for_two_hours(plan):
    """Half a day ends by 13:00, a day by 17:30; a pause at the latest after 105 minutes."""
    for numbers in course.PLANS[plan]:
        table = course.timetable([lessons[number] for number in numbers])
        assert table[-1][0] <= (13 * 60 if plan == "Half a day" else 17 * 60 + 30)
        pauses = [at for at, words in table if words in ("break", "lunch", "end")]
        starts = [course.START]
        for (at, words), (after, _) in pairwise(table):
            if words in ("break", "lunch"):
                assert after > at
                starts.append(after)
        assert all(end - start <= 105 for start, end in zip(starts, pauses, strict=True))


def test_two_days_have_every_lesson():
    """The longest plan leaves nothing out and teaches nothing twice."""
    numbers = [number for day in course.PLANS["Two days"] for number in day]
    assert numbers == sorted(lessons)


def test_the_inventory_asks_and_answers_one_question_a_lesson():
    """Three choices each; every answer is one of them; none stands among the questions."""
    text = (LESSONS / "inventory.md").read_text(encoding="utf-8")
    questions, answers = text.split("## Answers")
    asked = [int(each) for each in re.findall(r"^\*\*(\d+)\.\*\*", questions, re.MULTILINE)]
    given = re.findall(r"^\| (\d+) \| ([abc]) \|", answers, re.MULTILINE)
    assert asked == sorted(lessons) == [int(number) for number, _ in given]
    assert len(re.findall(r"^- [abc]\) ", questions, re.MULTILINE)) == 3 * len(asked)
    assert {letter for _, letter in given} == {"a", "b", "c"}


def test_the_guide_and_the_index_link_to_what_is_there():
    """No link of the lessons' pages leads nowhere."""
    for page in ("README.md", "guide.md", "inventory.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", (LESSONS / page).read_text(encoding="utf-8")):
            assert (LESSONS / target).exists(), f"{page}: {target}"


def test_the_record_says_that_it_is_one_and_has_every_lesson():
    """Recorded results are marked as recorded, with machine and day, lesson by lesson; no path."""
    text = (LESSONS / "recorded.md").read_text(encoding="utf-8")
    head = text.split("\n## ")[0]
    assert "Recorded, not measured on your machine" in head
    assert re.search(r"torch \d+\.\d+.*\d{4}-\d\d-\d\d", head, re.DOTALL)
    titles = re.findall(r"^## (\d+) · (.+)$", text, re.MULTILINE)
    assert titles == [(str(n), lesson.front["title"]) for n, lesson in sorted(lessons.items())]
    assert not re.search(r'File "/', text)
