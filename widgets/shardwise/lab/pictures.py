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

# Okabe and Ito's colors and a gray: told apart with any color vision, and lettered besides.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_DARK_LETTERS = ("#E69F00", "#56B4E9", "#CC79A7", "#F0E442", "#999999")
_KINDS = {
    "F": "forward",
    "BW": "backward",
    "B": "input gradient",
    "W": "weight gradient",
}
_WIDTH, _LEFT, _ROW, _END = 640, 130, 26, 110  # _END: room for the sum behind a bar
_LETTER = 8  # pixels a letter takes
_LONG = 860  # a timeline: room for the micro-batch's number in a box


@dataclass(frozen=True)
class Picture:
    """An SVG and what it shows in words."""

    svg: str
    words: str

    def __repr__(self) -> str:
        """The words."""
        return self.words

    def _repr_html_(self) -> str:
        title, *lines = (html.escape(line) for line in self.words.splitlines())
        caption = f"<figcaption><strong>{title}</strong></figcaption>"
        return f"<figure>{caption}{self.svg}<div>{'<br>'.join(lines)}</div></figure>"


def bars(title: str, rows: Mapping[str, Mapping[str, float]], unit: str = "B") -> Picture:
    """One stacked bar a row: `{"rank 0": {"parameters": 10, ...}, ...}`, on one scale.

    >>> print(bars("State", {"rank 0": {"parameters": 4, "gradients": 4}}))
    State
    rank 0: parameters 4 B, gradients 4 B; together 8 B
    """
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    longest = max((sum(parts.values()) for parts in rows.values()), default=0) or 1
    scale = (_WIDTH - _LEFT - _END) / longest
    letters = letters_of(names)
    legend, first = _legend(names, letters)
    marks = [legend]
    for number, (label, parts) in enumerate(rows.items()):
        top = first + number * _ROW
        marks.append(_label(label, top))
        at = float(_LEFT)
        for name, size in parts.items():
            index = names.index(name)
            marks.append(_box(at, top, size * scale, index, letters[index], name, size, unit))
            at += size * scale
        marks.append(_label(_sum(parts, unit), top, at=at + 6, anchor="start"))
    lines = [title]
    for label, parts in rows.items():
        said = ", ".join(f"{name} {format_value(size, unit)}" for name, size in parts.items())
        together = f"; together {format_value(sum(parts.values()), unit)}" if len(parts) > 1 else ""
        lines.append(f"{label}: {said}{together}")
    return Picture(_drawing(title, "".join(marks), first + 6 + len(rows) * _ROW), "\n".join(lines))


def timeline(title: str, times: PipelineTimes) -> Picture:
    """Ranks down, time across: every forward and backward with the number of its micro-batch."""
    start = min(event.start for events in times.events for event in events)
    scale = (_LONG - _LEFT - 10) / times.span_seconds
    used = [kind for kind in _KINDS if any(e.kind == kind for es in times.events for e in es)]
    legend, first = _legend([_KINDS[kind] for kind in used], used)
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
            if wide < _LETTER * len(letter):  # no room for F0: the number alone
                letter = str(event.micro_batch)
            marks.append(_box(at, top, wide, index, letter, name, event.seconds, "s"))
        order = " ".join(f"{event.kind}{event.micro_batch}" for event in events)
        idle = 1 - times.busy_seconds[rank] / times.span_seconds
        lines.append(f"rank {rank}: {order}; idle {100 * idle:.0f} % of the step")
    height = first + 6 + len(times.events) * _ROW
    return Picture(_drawing(title, "".join(marks), height, _LONG), "\n".join(lines))


def _drawing(title: str, marks: str, height: float, width: int = _WIDTH) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" role="img" '
        f'style="max-width:{width}px;width:100%" font-family="sans-serif" font-size="12">'
        f"<title>{html.escape(title)}</title>{marks}</svg>"
    )


def letters_of(names: Sequence[str]) -> list[str]:
    """A letter for each name, its first that none before it took.

    >>> letters_of(["parameters", "peak", "saved by the layers", "saved by the loss"])
    ['P', 'E', 'S', 'A']
    """
    letters: list[str] = []
    for name in names:
        own = [letter for letter in name.upper() if letter.isalnum()]
        letters.append(next((letter for letter in own if letter not in letters), name[0].upper()))
    return letters


def _sum(parts: Mapping[str, float], unit: str) -> str:
    total = sum(parts.values())
    return format_value(total, unit) if total < 1e11 else f"{total:.3g} {unit}"


def _label(text: str, top: float, at: float = _LEFT - 8, anchor: str = "end") -> str:
    place = f'x="{at:.1f}" y="{top + 16:g}" text-anchor="{anchor}"'
    return f'<text {place} fill="currentColor">{html.escape(text)}</text>'


def _box(
    at: float, top: float, wide: float, index: int, letter: str, name: str, size: float, unit: str
) -> str:
    color = _COLORS[index % len(_COLORS)]
    ink = "#000" if color in _DARK_LETTERS else "#fff"
    tip = html.escape(f"{name}: {format_value(size, unit)}")
    text = ""
    if wide >= _LETTER * len(letter):
        text = (
            f'<text x="{at + wide / 2:.1f}" y="{top + 16:g}" text-anchor="middle" '
            f'fill="{ink}">{html.escape(letter)}</text>'
        )
    return (
        f'<g><title>{tip}</title><rect x="{at:.1f}" y="{top:g}" width="{max(wide, 0.5):.1f}" '
        f'height="22" fill="{color}" stroke="#fff" stroke-width="0.6"/>{text}</g>'
    )


def _legend(names: Sequence[str], letters: Sequence[str]) -> tuple[str, float]:
    """Colors, letters and names in the lines that they need, and where the rows begin below."""
    marks, at, y = [], float(_LEFT), 6
    for index, (name, letter) in enumerate(zip(names, letters, strict=True)):
        swatch = 8 + 8 * len(letter)
        wide = swatch + 22 + 7 * len(name)
        if at + wide > _WIDTH and at > _LEFT:
            at, y = float(_LEFT), y + 20
        color = _COLORS[index % len(_COLORS)]
        ink = "#000" if color in _DARK_LETTERS else "#fff"
        marks.append(
            f'<rect x="{at:.0f}" y="{y}" width="{swatch}" height="16" fill="{color}"/>'
            f'<text x="{at + swatch / 2:.1f}" y="{y + 12}" text-anchor="middle" fill="{ink}">'
            f"{html.escape(letter)}</text>"
            f'<text x="{at + swatch + 4:.0f}" y="{y + 12}" fill="currentColor">'
            f"{html.escape(name)}</text>"
        )
        at += wide
    return "".join(marks), y + 26.0
