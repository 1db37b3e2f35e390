"""Who may import whom, and what an import loads: contracts and fresh interpreters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "widgets" / "shardwise"
HEAVY = {
    "altair", "anywidget", "IPython", "ipywidgets", "matplotlib", "numpy", "pandas", "torch",
    "traitlets", "transformers",
}  # fmt: skip
LOADED = """
import importlib, json, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def _modules(*rooms: str) -> list[str]:
    """Every module of these subpackages, as the tree has them now."""
    files = sorted(file for room in rooms for file in (PACKAGE / room).rglob("*.py"))
    parts = (file.relative_to(PACKAGE.parent).with_suffix("").parts for file in files)
    return [".".join(part).removesuffix(".__init__") for part in parts]


def _run(arguments: list[str], tree: Path, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _loaded(*names: str) -> set[str]:
    """Top-level packages that importing these modules loads in a fresh interpreter."""
    done = _run(["-c", LOADED, *names], PACKAGE.parent, Path("/"))
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def _lint(tree: Path, where: Path) -> subprocess.CompletedProcess[str]:
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    return _run(["-c", LINT, *config], tree, where)


def test_the_contracts_are_kept(tmp_path: Path) -> None:
    """panels -> charts -> core, export -> core, lab -> core and charts, torch in the lab only."""
    done = _lint(PACKAGE.parent, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/offence.py", "import torch"),
        ("core/offence.py", "import pandas"),
        ("core/offence.py", "from shardwise.charts import anything"),
        ("charts/offence.py", "import ipywidgets"),
        ("charts/offence.py", "from shardwise.panels import anything"),
        ("export/offence.py", "from shardwise.charts import anything"),
        ("panels/offence.py", "import torch"),
        ("panels/offence.py", "from shardwise.lab import anything"),
        ("lab/offence.py", "from shardwise.export import anything"),
    ],
)
def test_a_broken_contract_is_seen(tmp_path: Path, file: str, line: str) -> None:
    """A copy of the package with one forbidden import fails the contracts."""
    shutil.copytree(PACKAGE, tmp_path / "shardwise", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "shardwise" / file).write_text(line + "\n", encoding="utf-8")
    done = _lint(tmp_path, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "offence" in done.stdout


@pytest.mark.parametrize("name", _modules("core"))
def test_a_core_module_loads_the_standard_library_and_numpy_only(name: str) -> None:
    """Each core module, imported first thing, brings in nothing else."""
    foreign = _loaded(name) - set(sys.stdlib_module_names) - {"numpy", "shardwise"}
    assert not foreign


def test_importing_the_package_loads_nothing_heavy() -> None:
    """`import shardwise` leaves NumPy, pandas, Altair, widgets and torch for later."""
    assert "shardwise" in _loaded("shardwise")
    assert not _loaded("shardwise") & HEAVY


def test_the_heavy_modules_would_be_seen() -> None:
    """The way of looking does see a heavy import."""
    assert "numpy" in _loaded("numpy")


def test_explorer_charts_and_exports_never_load_torch() -> None:
    """All of charts, export and panels imported in one interpreter leave torch unloaded."""
    assert not _loaded(*_modules("charts", "export", "panels")) & {"torch", "transformers"}
