"""The README is true: its code runs, prints what it shows, and what it points at exists."""

from __future__ import annotations

import contextlib
import io
import json
import re
import urllib.parse
from pathlib import Path

import pytest

from shardwise.core.memory.rule_of_sixteen import rule_of_sixteen
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gb

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "lessons/README.md", "data/README.md")


def test_the_code_prints_what_is_shown() -> None:
    """The Python blocks run one after another, each followed by its output as it really is."""
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == README.count("```python") == 2
    names: dict[str, object] = {}
    for code, shown in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), names)
        assert out.getvalue() == shown


def test_the_rule_of_16_is_the_programs() -> None:
    """112 GB and 14 GB for a 7B are what the memory model gives."""
    scenario = Scenario.from_dict({"model": {"parameters": 7e9}})
    model, training = scenario.model, scenario.training
    states = rule_of_sixteen(model, training.precision, training.optimizer)
    assert format_gb(states) == "112 GB"
    weights = model.parameters * training.precision.parameter_bytes
    assert format_gb(weights) == "14 GB"
    assert "needs 112 GB, though its weights are only 14 GB" in README


@pytest.mark.parametrize("page", PAGES)
def test_links_within_the_project_lead_somewhere(page: str) -> None:
    """Every relative link and picture is a file or a folder."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith(("http:", "https:")):
            assert ((ROOT / page).parent / target).exists(), target


def test_binder_links_open_notebooks_that_exist() -> None:
    """One opens the explorer in Voila, one the lessons in JupyterLab."""
    links = re.findall(r"https://mybinder\.org/v2/gh/\S+?/HEAD\?urlpath=([^)\s]+)", README)
    paths = [urllib.parse.unquote(link) for link in links]
    assert [path.split("/")[0] for path in paths] == ["voila", "lab"]
    for path in paths:
        assert (ROOT / path.removeprefix("voila/render/").removeprefix("lab/tree/")).exists()


def test_the_notebooks_that_the_command_opens_exist() -> None:
    """`python -m shardwise memory` names a real notebook, as does the default."""
    named = re.findall(r"`python -m shardwise (\w+)`", README)
    assert named
    for name in (*named, "explorer"):
        notebook = ROOT / "notebooks" / f"{name}.ipynb"
        assert json.loads(notebook.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "constraints.txt"]
)
def test_the_pages_speak_of_the_project_alone(page: str) -> None:
    """No absolute path of some machine is in them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w./])/(work|tmp|home|root|opt|usr)/", text)
