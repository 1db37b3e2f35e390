"""Python stacks as faulthandler writes them: where in the program a rank was."""

from __future__ import annotations

import re

from shardwise.lab.program import CELL_FILE

_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>\S+)')
_WRAPPERS = ("call", "wrapper", "_fn", "wait", "noted")


def position(trace: str) -> tuple[int, str]:
    """The program's innermost line in a faulthandler dump, and the function it was inside.

    >>> position('Thread 1:\\n File "x/c10d.py", line 9 in barrier\\n File "<ranks>", line 3 in f')
    (3, 'barrier')
    """
    for block in reversed(re.split(r"\n(?=Thread |Current thread )", trace)):
        above = ""
        for frame in _FRAME.finditer(block):
            if frame["file"] == CELL_FILE:
                return int(frame["line"]), above
            if frame["function"] not in _WRAPPERS:
                above = frame["function"]
    return 0, ""


def stack_of_program(trace: str) -> str:
    """Of a faulthandler dump the stack that runs the program, without the launcher's frames."""
    for block in reversed(re.split(r"\n(?=Thread |Current thread )", trace)):
        frames = [f for f in _FRAME.finditer(block) if f["function"] not in _WRAPPERS]
        inner = [i for i, frame in enumerate(frames) if frame["file"] == CELL_FILE]
        if inner:
            shown = [f"  {frame[0]}" for frame in frames[: inner[-1] + 1]]
            return "\n".join(["Stack (most recent call first):", *shown])
    return ""
