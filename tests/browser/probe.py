"""Drive a slider in a real page and read what the probe in it saw."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

SCRIPT = (Path(__file__).resolve().parent / "probe.js").read_text(encoding="utf-8")
# About 30 moves a second; exactly two frames of 60 a second would always meet the same phase.
INTERVAL = 0.0331
SLIDER = "input[type=range], .noUi-handle"


@dataclass(frozen=True)
class Moves:
    """What a run of key presses cost; latencies in milliseconds after the key went down.

    `frames`: until the browser began the frame that shows the charts of that move; `painted`: until
    that frame was painted; `python`: from busy to idle in the kernel, for one move.
    """

    presses: int
    lost: int
    merged: int
    frames: tuple[float, ...]
    painted: tuple[float, ...]
    python: tuple[float, ...]
    messages_per_move: float
    bytes_per_move: float


def quantile(values: tuple[float, ...], share: float) -> float:
    """The value that this share of them stays under or at.

    >>> quantile((1.0, 2.0, 3.0, 4.0), 0.5)
    3.0
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def press_arrows(page: Page, count: int, interval: float = INTERVAL) -> None:
    """Press arrow keys that often, evenly, on the first slider: to the right, at its end back."""
    slider = page.locator(SLIDER).first
    slider.focus()
    place, last = slider.evaluate("one => [Number(one.value ?? 0), Number(one.max ?? Infinity)]")
    step, due = 1, time.perf_counter()
    for _ in range(count):
        if not 0 <= place + step <= last:
            step = -step
        place += step
        page.keyboard.press("ArrowRight" if step > 0 else "ArrowLeft")
        due += interval
        time.sleep(max(0.0, due - time.perf_counter()))


def timed_moves(page: Page, count: int, interval: float = INTERVAL) -> Moves:
    """Press the arrow and match each press with the picture that shows it."""
    page.evaluate("__probe.start()")
    press_arrows(page, count, interval)
    page.wait_for_timeout(1500)
    return matched(page.evaluate("__probe.stop()"))


def matched(seen: dict[str, Any]) -> Moves:
    """Follow each press to the message it left in, the answer, and the picture of that answer.

    A press belongs to the first message that left after it. A move is lost when a later press left
    in the same message: Python never saw it. It is merged when its rows arrived together with
    later ones and only those were drawn. Latencies count until the first picture not older.
    """
    number = {answer["id"]: answer["number"] for answer in seen["answers"]}
    sent = [one for one in seen["sent"] if one["id"] in number]
    pictures = {picture[0]: picture for picture in seen["drawn"]}
    frames, painted, asked, shown = [], [], set(), set()
    for press in seen["presses"]:
        wanted = next((number[one["id"]] for one in sent if one["when"] >= press), None)
        asked.add(wanted)
        later = [key for key in pictures if wanted is not None and key >= wanted]
        if not later:
            continue
        if min(later) == wanted:
            shown.add(wanted)
        _, _, frame, paint = pictures[min(later)]
        frames.append(frame - press)
        painted.append(paint - press)
    handled = [one for one in seen["handled"] if one["messages"]]
    return Moves(
        presses=len(seen["presses"]),
        lost=len(seen["presses"]) - len(asked - {None}),
        merged=len(asked - {None}) - len(shown),
        frames=tuple(frames),
        painted=tuple(painted),
        python=tuple(one["ms"] for one in handled),
        messages_per_move=sum(one["messages"] for one in handled) / max(1, len(handled)),
        bytes_per_move=sum(one["bytes"] for one in handled) / max(1, len(handled)),
    )
