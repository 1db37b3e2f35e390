"""The door: which targets there are and what a wrong name is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shardwise.core.errors import ScenarioError
from shardwise.core.scenario import Scenario
from shardwise.export import TARGETS, export

SCENARIO = Scenario.from_dict({"layout": {"engine": "deepspeed"}})


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_gives_text_by_file_name(target: str) -> None:
    """Plain file names without folders, each with text that ends in a newline."""
    files = export(SCENARIO, target)
    assert files
    for name, text in files.items():
        assert "/" not in name
        assert text.endswith("\n")


@pytest.mark.parametrize(("typed", "nearest"), [("fsdp", "fsdp2"), ("DeepSpeed", "deepspeed")])
def test_an_unknown_target_names_the_nearest(typed: str, nearest: str) -> None:
    """The error says which target was probably meant."""
    with pytest.raises(ScenarioError) as error:
        export(SCENARIO, typed)
    assert error.value.field == "target"
    assert repr(nearest) in error.value.hint


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_scenario_gives_the_same_text(target: str) -> None:
    """No time, path or random name gets in."""
    again = Scenario.from_dict(SCENARIO.to_dict())
    assert export(SCENARIO, target) == export(again, target)


@pytest.mark.parametrize(
    "first", ["", "import shardwise.export", "import shardwise.panels.explorer"]
)
def test_the_public_name_is_callable_whatever_was_imported_first(first: str) -> None:
    """`sw.export(...)` works although a package of that name lies beside it."""
    code = f"""
{first}
import shardwise as sw
for target in ("deepspeed", "fsdp2"):
    print(*sw.export(sw.Scenario.from_dict({{}}), target))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["ds_config.json", "train.py"], done.stderr
