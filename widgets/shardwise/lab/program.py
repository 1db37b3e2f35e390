"""What the ranks execute: one piece of source text, from a notebook cell or from a function.

Source travels instead of pickled objects because a function defined in a notebook lives in
`__main__`, which no other process can import.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import pickle
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.core.errors import ScenarioError, shown

CELL_FILE = "<ranks>"
GIVEN_NAMES = ("rank", "world", "device")
RETURN_NAME = "returned"


@dataclass(frozen=True)
class Program:
    """Source text, the names it receives and the names it hands back."""

    source: str
    outputs: tuple[str, ...] = ()
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    title: str = "cell"

    def line(self, number: int) -> str:
        """The text of one line, stripped; empty where there is no such line."""
        lines = self.source.splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def program_of(
    code: str | Callable[..., Any],
    *,
    inputs: Mapping[str, Any] | None = None,
    outputs: tuple[str, ...] = (),
) -> Program:
    """The program of a cell's text or of a function, checked for syntax before any rank starts.

    A function's parameters named `rank`, `world` and `device` are filled in on each rank; the
    others come from `inputs`. It runs alone: what it needs, it imports itself.

    Raises:
        SyntaxError: the text is not Python, with the line of the cell.
        ScenarioError: a name or value that cannot travel to another process.

    >>> program_of("total = rank + 1", outputs=("total",)).outputs
    ('total',)
    """
    inputs = dict(inputs or {})
    for name in (*outputs, *inputs):
        if not (isinstance(name, str) and name.isidentifier()):
            raise ScenarioError("outputs", name, "names of Python variables")
    for name in GIVEN_NAMES:
        if name in inputs:
            raise ScenarioError("inputs", name, "other names", f"{name} is set by each rank itself")
    packed = {name: _packed(name, value) for name, value in inputs.items()}
    if callable(code):
        return _of_function(code, packed, outputs)
    if not isinstance(code, str) or not code.strip():
        raise ScenarioError("program", code, "Python text or a function")
    compile(code, CELL_FILE, "exec")
    return Program(code, outputs, packed)


def _packed(name: str, value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as problem:
        raise ScenarioError(
            f"inputs[{name!r}]", value, "a value that pickle can carry", str(problem)[:200]
        ) from None


def _of_function(
    function: Callable[..., Any], inputs: Mapping[str, bytes], outputs: tuple[str, ...]
) -> Program:
    """The function's own text, followed by a call with the arguments it names."""
    if outputs:
        raise ScenarioError("outputs", outputs, "none for a function", "return the values instead")
    try:
        text = textwrap.dedent(inspect.getsource(function))
        parameters = inspect.signature(function).parameters
        definition = ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError, ValueError):
        definition, text, parameters = None, "", {}
    changed = isinstance(definition, ast.FunctionDef) and definition.name != function.__name__
    if changed or not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        raise ScenarioError(
            "program",
            function,
            "a plain `def` whose source can be read (and has not changed since)",
            "or pass the text itself",
        )
    _refuse_outside_names(function, definition.name)
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in (*GIVEN_NAMES, *inputs)
    ]
    unknown = [name for name in inputs if name not in parameters]
    if missing or unknown:
        raise ScenarioError(
            "inputs", sorted(inputs), f"the arguments of {definition.name}: {', '.join(parameters)}"
        )
    given = [n for n in parameters if n in GIVEN_NAMES or n in inputs]
    call = ", ".join(f"{name}={name}" for name in given)
    source = f"{text.rstrip()}\n\n{RETURN_NAME} = {definition.name}({call})\n"
    return Program(source, (RETURN_NAME,), inputs, definition.name)


def _refuse_outside_names(function: Callable[..., Any], name: str) -> None:
    """Names the function takes from around it do not exist on a rank: say so before starting."""
    code = inspect.unwrap(function).__code__
    if code.co_freevars:
        raise ScenarioError(
            "program",
            name,
            "a function that stands alone",
            f"it uses {shown(code.co_freevars[0])} from around it; pass that through inputs",
        )
    taken = sorted(_globals_read(code) - set(dir(builtins)) - {name, *GIVEN_NAMES})
    if taken:
        raise ScenarioError(
            "program",
            name,
            "a function that stands alone",
            f"it uses {shown(taken[0])} from outside; import it inside or pass it through inputs",
        )


def _globals_read(code: Any) -> set[str]:
    """Global names that this code and the code nested in it read."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= _globals_read(constant)
    return names
