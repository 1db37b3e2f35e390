"""Pictures of a run: bars and a pipeline's timeline, as SVG with the same in words.

Drawn without a chart library, so a cell's output is the same text every time, shows wherever HTML
does, and reads aloud.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.lab.measuring.figures import PipelineTimes
from shardwise.lab.predictions import format_value

# Okabe and Ito's colors: told apart with any kind of color vision, and lettered besides.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_DARK_LETTERS = ("#E69F00", "#56B4E9", "#CC79A7")
_KINDS = {
    "F": "forward",
    "BW": "backward",
    "B": "input gradient",
    "W": "weight gradient",
}
_WIDTH, _LEFT, _ROW = 640, 130, 26


@dataclass(frozen=True)
class Picture:
    """An SVG and what it shows in words."""

    svg: str
    words: str

    def __repr__(self) -> str:
        """The words."""
        return self.words

    def _repr_html_(self) -> str:
        lines = "<br>".join(html.escape(line) for line in self.words.splitlines())
        return f"<figure>{self.svg}<figcaption>{lines}</figcaption></figure>"


def bars(title: str, rows: Mapping[str, Mapping[str, float]], unit: str = "B") -> Picture:
    """One stacked bar a row: `{"rank 0": {"parameters": 10, ...}, ...}`, on one scale.

    >>> print(bars("State", {"rank 0": {"parameters": 4, "gradients": 4}}))
    State
    rank 0: parameters 4 B, gradients 4 B; together 8 B
    """
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    longest = max((sum(parts.values()) for parts in rows.values()), default=0) or 1
    scale = (_WIDTH - _LEFT - 10) / longest
    legend, first = _legend(names)
    marks = [legend]
    for number, (label, parts) in enumerate(rows.items()):
        top = first + number * _ROW
        marks.append(_label(label, top))
        at = float(_LEFT)
        for name, size in parts.items():
            index = names.index(name)
            marks.append(_box(at, top, size * scale, index, name[0].upper(), name, size, unit))
            at += size * scale
    lines = [title]
    for label, parts in rows.items():
        said = ", ".join(f"{name} {format_value(size, unit)}" for name, size in parts.items())
        together = f"; together {format_value(sum(parts.values()), unit)}" if len(parts) > 1 else ""
        lines.append(f"{label}: {said}{together}")
    return Picture(_drawing(title, "".join(marks), first + 6 + len(rows) * _ROW), "\n".join(lines))


def timeline(title: str, times: PipelineTimes) -> Picture:
    """Ranks down, time across: every forward and backward with the number of its micro-batch."""
    start = min(event.start for events in times.events for event in events)
    scale = (_WIDTH - _LEFT - 10) / times.span_seconds
    used = [kind for kind in _KINDS if any(e.kind == kind for es in times.events for e in es)]
    legend, first = _legend([_KINDS[kind] for kind in used])
    marks = [legend]
    lines = [title]
    for rank, events in enumerate(times.events):
        top = first + rank * _ROW
        marks.append(_label(f"rank {rank}", top))
        for event in events:
            index = used.index(event.kind)
            at = _LEFT + (event.start - start) * scale
            name = f"{_KINDS[event.kind]} of micro-batch {event.micro_batch}"
            wide = event.seconds * scale
            letter = f"{event.kind}{event.micro_batch}"
            if wide < 9 * len(letter):  # no room for F0: the number alone
                letter = str(event.micro_batch)
            marks.append(_box(at, top, wide, index, letter, name, event.seconds, "s"))
        order = " ".join(f"{event.kind}{event.micro_batch}" for event in events)
        idle = 1 - times.busy_seconds[rank] / times.span_seconds
        lines.append(f"rank {rank}: {order}; idle {100 * idle:.0f} % of the step")
    height = first + 6 + len(times.events) * _ROW
    return Picture(_drawing(title, "".join(marks), height), "\n".join(lines))


def _drawing(title: str, marks: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img" '
        f'style="max-width:{_WIDTH}px;width:100%" font-family="sans-serif" font-size="12">'
        f"<title>{html.escape(title)}</title>{marks}</svg>"
    )


def _label(text: str, top: float) -> str:
    place = f'x="{_LEFT - 8}" y="{top + 16:g}" text-anchor="end"'
    return f'<text {place} fill="currentColor">{html.escape(text)}</text>'


def _box(
    at: float, top: float, wide: float, index: int, letter: str, name: str, size: float, unit: str
) -> str:
    color = _COLORS[index % len(_COLORS)]
    ink = "#000" if color in _DARK_LETTERS else "#fff"
    tip = html.escape(f"{name}: {format_value(size, unit)}")
    text = ""
    if wide >= 9 * len(letter):
        text = (
            f'<text x="{at + wide / 2:.1f}" y="{top + 16:g}" text-anchor="middle" '
            f'fill="{ink}">{html.escape(letter)}</text>'
        )
    return (
        f'<g><title>{tip}</title><rect x="{at:.1f}" y="{top:g}" width="{max(wide, 0.5):.1f}" '
        f'height="22" fill="{color}" stroke="#fff" stroke-width="0.6"/>{text}</g>'
    )


def _legend(names: Sequence[str]) -> tuple[str, float]:
    """Colors and names, in as many lines as they need, and where the first row begins below."""
    marks, at, y = [], float(_LEFT), 6
    for index, name in enumerate(names):
        wide = 34 + 7 * len(name)
        if at + wide > _WIDTH and at > _LEFT:
            at, y = float(_LEFT), y + 18
        color = _COLORS[index % len(_COLORS)]
        marks.append(
            f'<rect x="{at:.0f}" y="{y}" width="12" height="12" fill="{color}"/>'
            f'<text x="{at + 16:.0f}" y="{y + 11}" fill="currentColor">{html.escape(name)}</text>'
        )
        at += wide
    return "".join(marks), y + 24.0
