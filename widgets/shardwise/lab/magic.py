"""`%%ranks 4 -o losses`: the cell runs on four fresh ranks, their outputs appear rank by rank."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import Any, NoReturn

from IPython.core.magic import Magics, cell_magic, magics_class

from shardwise.core.errors import ScenarioError
from shardwise.lab.ranks import run
from shardwise.lab.result import RunResult


class Refused(ValueError):
    """What a cell asks cannot be done; shown as its sentence alone.

    Not IPython's UsageError: that one is printed without an error message, so a test that runs the
    notebook would take the cell for a good one.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class _Words(argparse.ArgumentParser):
    """Raises instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"%%ranks: {message}. For example: %%ranks 4 -o losses --timeout 30")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.replace(",", " ").split() if name)


def words() -> argparse.ArgumentParser:
    """The options of the magic."""
    parser = _Words(prog="%%ranks", add_help=False)
    parser.add_argument("world", type=int, nargs="?", default=4, help="how many ranks")
    parser.add_argument("-o", "--outputs", type=_names, default=(), help="names to bring back")
    parser.add_argument("-i", "--inputs", type=_names, default=(), help="names to hand in")
    parser.add_argument("-r", "--result", default="", help="name for the whole RunResult")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for the whole cell")
    parser.add_argument("--collective-timeout", type=float, default=20.0, help="seconds a wait")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--allow-failure", action="store_true", help="show a failure, not raise it")
    return parser


@magics_class
class RanksMagic(Magics):
    """Holds the cell magic; the notebook's names are read and set through its shell."""

    @cell_magic
    def ranks(self, line: str, cell: str) -> None:
        """Run the cell on real ranks: `%%ranks 4 -i width -o losses -r result`.

        Each rank has `rank`, `world`, `device` and an initialized process group. `losses` becomes
        a tuple with one value a rank.
        """
        asked = words().parse_args(shlex.split(line))
        space: dict[str, Any] = self.shell.user_ns
        try:
            result = _ran(asked, cell, space)
        except ScenarioError as problem:
            raise Refused(f"%%ranks: {problem}") from None
        if asked.result:
            space[asked.result] = result
        if asked.allow_failure or result.ok:
            space.update({name: result[name] for name in asked.outputs})
            print(result.text())
        else:
            print(replace(result, cause=None).text())  # the failure itself is raised below
            result.raise_for_status()


def _ran(asked: argparse.Namespace, cell: str, space: dict[str, Any]) -> RunResult:
    for name in asked.inputs:
        if name not in space:
            raise ScenarioError("inputs", name, "names this notebook has defined")
    # One empty line in the place of the magic's, so lines count as the notebook shows them.
    return run(
        "\n" + cell,
        asked.world,
        timeout=asked.timeout,
        collective_timeout=asked.collective_timeout,
        inputs={name: space[name] for name in asked.inputs},
        outputs=asked.outputs,
        device=asked.device,
        allow_failure=True,
    )
