"""The wheel built through the sdist, installed elsewhere, gives what the checkout gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest

from shardwise.core import catalogue

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("binder", "data", "lessons", "notebooks", "tests", "widgets")
TOP_FILES = {
    "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt", "pyproject.toml",
}  # fmt: skip
ADDED_BY_BUILD = {"PKG-INFO", ".gitignore"}
NOT_SHIPPED = {"__pycache__", ".ipynb_checkpoints", "artifacts", ".hypothesis", "build", "dist"}
PROBE = """
import json, shardwise
from shardwise.core import catalogue
print(json.dumps({
    "file": shardwise.__file__,
    "root": str(catalogue.data_root()),
    "gpus": {key: repr(gpu) for key, gpu in catalogue.gpus().items()},
    "links": {key: repr(link) for key, link in catalogue.links().items()},
    "models": {n: [catalogue.load_model(n).parameters, hash_of(catalogue.load_model(n))]
               for n in catalogue.model_names()},
}))
"""
HASH = """
import hashlib
def hash_of(model):
    text = repr([(t.name, t.shape, t.part, t.tensor_parallel) for t in model.tensors])
    return hashlib.sha256(text.encode()).hexdigest()
"""


@dataclass(frozen=True)
class Built:
    """The two files of one build."""

    sdist: Path
    wheel: Path


def _run(arguments: list[str], **options: object) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An sdist, and a wheel built from it; no isolation, so nothing is downloaded."""
    out = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)])
    return Built(next(out.glob("*.tar.gz")), next(out.glob("*.whl")))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and this environment's NumPy, nothing else."""
    home = tmp_path_factory.mktemp("home")
    venv.create(home / "env", with_pip=False, symlinks=True)
    python = home / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    _run([*pip, "install", "--no-deps", "--no-index", "--no-compile", str(built.wheel)])
    site = Path(
        _run([str(python), "-c", "import sysconfig as s; print(s.get_path('purelib'))"]).strip()
    )
    package = Path(numpy.__file__).parent
    for folder in (package, package.parent / "numpy.libs"):
        if folder.exists():
            (site / folder.name).symlink_to(folder)
    return python


def _probe(python: str | Path, environment: dict[str, str]) -> dict[str, object]:
    text = _run([str(python), "-W", "error", "-c", HASH + PROBE], cwd="/", env=environment)
    return json.loads(text)


def _own_files(folder: str) -> set[str]:
    """Files of a folder of the checkout that belong to the project."""
    files = (file for file in (ROOT / folder).rglob("*") if file.is_file())
    own = (file.relative_to(ROOT) for file in files)
    return {
        path.as_posix()
        for path in own
        if not NOT_SHIPPED.intersection(path.parts) and path.suffix != ".pyc"
    }


def test_the_installed_wheel_equals_the_checkout(installed: Path) -> None:
    """From `/`, the wheel finds its own data: same cards, links, models and parameter counts."""
    away = _probe(installed, {"PATH": os.environ["PATH"]})
    here = _probe(sys.executable, os.environ | {"PYTHONPATH": str(ROOT / "widgets")})
    assert str(away["file"]).startswith(str(installed.parents[1]))
    assert str(away["root"]).startswith(str(installed.parents[1]))
    assert here["root"] == str(ROOT / "data")
    for part in ("gpus", "links", "models"):
        assert away[part] == here[part]
    assert len(here["gpus"]) == len(catalogue.gpus())
    assert list(here["models"]) == list(catalogue.model_names())


def test_the_wheel_holds_the_package_its_data_and_its_notebooks(built: Built) -> None:
    """Every file of widgets/shardwise, data and notebooks; beside them Voila's page template.

    What only tests compare with, traces and published measurements, stays out.
    """
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    shared = {name for name in names if ".data/data/" in name}
    inside = {name for name in names - shared if ".dist-info/" not in name}
    expected = {name.removeprefix("widgets/") for name in _own_files("widgets")}
    for_tests = _own_files("data/traces") | _own_files("data/measured")
    carried = (_own_files("data") - for_tests) | _own_files("notebooks")
    expected |= {f"shardwise/{name}" for name in carried}
    assert inside == expected
    templates = {name for name in expected if name.startswith("shardwise/jupyter/")}
    assert {name.partition(".data/data/share/jupyter/")[2] for name in shared} == {
        name.removeprefix("shardwise/jupyter/") for name in templates
    }
    assert "shardwise/py.typed" in inside
    assert "shardwise/data/gpus.csv" in inside


def test_the_sdist_holds_the_project_and_nothing_stray(built: Built) -> None:
    """Sources, data, tests, notebooks, lessons and binder, whole; no file from elsewhere."""
    with tarfile.open(built.sdist) as sdist:
        members = [
            member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()
        ]
    top = {name for name in members if "/" not in name}
    assert top <= TOP_FILES | ADDED_BY_BUILD
    assert {"README.md", "LICENSE", "pyproject.toml", "PKG-INFO"} <= top
    assert {name.partition("/")[0] for name in members if "/" in name} <= set(SHIPPED)
    for folder in SHIPPED:
        assert {name for name in members if name.startswith(folder + "/")} == _own_files(folder)


def test_the_wheel_requires_numpy_only(built: Built) -> None:
    """Widgets and torch are extras; a bare install brings NumPy."""
    with zipfile.ZipFile(built.wheel) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        lines = wheel.read(name).decode().splitlines()
    needs = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert [need.split()[1].partition(">")[0] for need in needs] == ["numpy"]
