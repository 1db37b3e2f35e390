"""The continuous check does what the README tells people to do, and nothing that it should not."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README, CI = ROOT / "README.md", ROOT / ".ci" / "run"
COMMANDS = re.findall(r"^(python3 -m venv .+)$", README.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def script() -> str:
    """The script without pip's and timeout's own options, which change nothing of what runs."""
    text = CI.read_text(encoding="utf-8")
    return text.replace("pip install -q ", "pip install ")


def test_the_readme_has_one_command_for_each() -> None:
    """One that opens the explorer, one that runs the tests, each from a bare Python."""
    ends = [command.rpartition("&& ")[2] for command in COMMANDS]
    assert ends == [".venv/bin/python -m shardwise", ".venv/bin/python -m pytest"]


def test_every_step_of_the_readmes_test_command_is_what_ci_runs(script: str) -> None:
    """Environment, installation and pytest stand there verbatim."""
    for step in COMMANDS[1].split(" && "):
        assert re.search(rf"(^|&& | ){re.escape(step)}($| &&)", script, re.MULTILINE), step


def test_the_two_commands_differ_in_extra_and_program_only() -> None:
    """What CI proves about installing with `[test]` holds for `[app]`: it is a part of it."""
    explorer, tests = (command.split(" && ") for command in COMMANDS)
    assert explorer[0] == tests[0]
    assert explorer[1].replace("[app]", "[test]") == tests[1]
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert any(need.startswith("shardwise[") and "app" in need for need in extras["test"])


def test_ci_is_executable_strict_and_sound() -> None:
    """Bash accepts it, an error anywhere ends it, and its time is bounded."""
    assert os.access(CI, os.X_OK)
    text = CI.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    assert re.search(r"timeout \S+ 40m \.venv/bin/python -m pytest$", text, re.MULTILINE)
    done = subprocess.run(["bash", "-n", str(CI)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_registry_is_named() -> None:
    """Which index packages come from is the machine's business."""
    for path in (CI, ROOT / "constraints.txt", *(ROOT / "binder").iterdir()):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--hash", text), path


def test_constraints_pin_every_direct_dependency() -> None:
    """Each package named in pyproject.toml has one exact version."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9A-Za-z.]+", pin) for pin in pins)
    names = [_normal(pin.partition("==")[0]) for pin in pins]
    assert len(names) == len(set(names))
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(need for extra in extras for need in extra)]
    needed = {_normal(re.split(r"[\[<>=~! ]", need)[0]) for need in wanted} - {"shardwise"}
    assert needed <= set(names), needed - set(names)


def _normal(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_two_test_modules_have_one_name() -> None:
    """Test folders are no packages, so pytest collects a name once."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
