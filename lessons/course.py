"""The course: the index of its lessons, plans of half a day to two days, and their timetables."""

from __future__ import annotations

from lesson import Lesson

PLANS = {  # lessons of each day; what a lesson asks for comes before it
    "Half a day": ((0, 1, 2, 4),),
    "One day": ((0, 1, 2, 4, 5, 6, 14),),
    "Two days": ((0, 1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12, 13, 14)),
}
START, LUNCH = 9 * 60, 11 * 60 + 45  # minutes after midnight; lunch once a lesson ends after it
BREAK_MINUTES, LUNCH_MINUTES, MOST_WITHOUT_BREAK = 10, 50, 105


def index(lessons: list[Lesson]) -> str:
    """`lessons/README.md`, from front matter alone."""
    lines = [*_ABOVE, *(_listed(lesson) for lesson in lessons)]
    lines += ["", "Minutes are teaching + exercises.", "", "## Plans", ""]
    for plan, days in PLANS.items():
        lines += plan_lines(plan, [[x for x in lessons if x.number in day] for day in days])
    return "\n".join([*lines, *_BELOW])


def _listed(lesson: Lesson) -> str:
    """A lesson's row of the table."""
    front = lesson.front
    minutes = f"{front['teaching']} + {front['exercises']}"
    return (
        f"| {lesson.number} | [{front['title']}]({lesson.name}.ipynb) | {minutes} | "
        f"{front['ranks']} | {front['peak_mb']} MB | {'; '.join(lesson.listed('objectives'))} "
        f"| “{front['misconception']}” |"
    )


_ABOVE = (
    "# Lessons",
    "",
    "Real ranks in a notebook: predict, run the real thing, reconcile. Every lesson runs in at",
    "most a minute on two cores, with or without a GPU. This page comes from `build.py`.",
    "",
    "| | lesson | minutes | ranks | peak memory | you will be able to | cures the belief |",
    "|---|---|---|---|---|---|---|",
)
_BELOW = (
    "The [guide](guide.md) says what to expect and what goes wrong; the",
    "[inventory](inventory.md) asks the same questions before and after; the",
    "[record](recorded.md) shows what every lesson printed elsewhere. To check a machine:",
    "`python -m shardwise.lab.classroom`.",
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
)


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
