"""Binder: repo2docker detects and renders the tree as meant, and its scripts run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import warnings
from pathlib import Path

import pytest
import yaml

with warnings.catch_warnings():
    # repo2docker imports python-json-logger by the name it had before 3.0.
    warnings.filterwarnings("ignore", "pythonjsonlogger.jsonlogger", DeprecationWarning)
    from repo2docker.app import Repo2Docker

ROOT = Path(__file__).resolve().parents[2]
BINDER = ROOT / "binder"


@pytest.fixture(scope="module")
def rendered() -> tuple[object, str]:
    """The build pack that repo2docker chooses for this tree, and the Dockerfile that it writes."""
    here = Path.cwd()
    os.chdir(ROOT)
    try:
        app = Repo2Docker()
        for kind in app.buildpacks:
            pack = kind(app.base_image)
            if pack.detect():
                pack.platform = "linux/amd64"
                return pack, pack.render()
    finally:
        os.chdir(here)
    raise AssertionError("repo2docker knows nothing to do with this tree")


def test_repo2docker_takes_the_environment_and_its_python(rendered: tuple[object, str]) -> None:
    """binder/environment.yml decides, with Python pinned to 3.12."""
    pack, _ = rendered
    here = Path.cwd()
    os.chdir(ROOT)
    try:
        assert type(pack).__name__ == "CondaBuildPack"
        assert pack.binder_dir == "binder"
        assert pack.python_version == "3.12"
    finally:
        os.chdir(here)


def test_a_commit_leaves_the_dependency_layer_alone(rendered: tuple[object, str]) -> None:
    """environment.yml alone is copied before the environment is made; the tree comes after."""
    _, dockerfile = rendered
    made = dockerfile.index("env update")
    copied = [match.start() for match in re.finditer(r"^COPY .* src/ ", dockerfile, re.MULTILINE)]
    before = re.findall(r"^COPY .*src/(binder/\S+)", dockerfile[:made], re.MULTILINE)
    assert before == ["binder/environment.yml"]
    assert copied and min(copied) > made
    assert dockerfile.index("./binder/postBuild") > max(copied)


def test_the_start_script_is_the_entry(rendered: tuple[object, str]) -> None:
    """repo2docker runs binder/start before the server."""
    _, dockerfile = rendered
    assert re.search(r'ENV R2D_ENTRYPOINT=?\s*"?.*binder/start', dockerfile)


def test_the_environment_is_pinned_and_small() -> None:
    """CPU PyTorch, Python 3.12, a version for everything, nothing of the tree itself."""
    text = (BINDER / "environment.yml").read_text(encoding="utf-8")
    environment = yaml.safe_load(text)
    assert environment["channels"][0] == "conda-forge"
    needs = environment["dependencies"]
    assert all(isinstance(need, str) for need in needs)
    assert "python=3.12" in needs
    assert any(need.startswith("pytorch-cpu=") for need in needs)
    assert all("=" in need for need in needs if need != "pip")


def test_the_environment_has_what_the_package_needs() -> None:
    """Everything of the app and lab extras, in the minor version of the constraints."""
    pins = dict(
        line.lower().split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
    environment = yaml.safe_load((BINDER / "environment.yml").read_text(encoding="utf-8"))
    given = dict(re.split(r"[>=]+", n, maxsplit=1) for n in environment["dependencies"] if "=" in n)
    given["torch"] = given.pop("pytorch-cpu")
    for name in ("torch", "altair", "anywidget", "ipywidgets", "jupyterlab", "numpy", "pandas",
                 "psutil", "voila"):  # fmt: skip
        assert pins[name].startswith(given[name].removesuffix("*")), name


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment after postBuild, run in a copy of the tree as Binder runs it."""
    home = tmp_path_factory.mktemp("binder")
    tree, prefix = home / "tree", home / "env"
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
            target.chmod((ROOT / name).stat().st_mode)
    venv.create(prefix, with_pip=False, symlinks=True)
    # The environment's dependencies are there already on Binder: here they are this one's.
    site = next((prefix / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(
        next(path for path in sys.path if path.endswith("site-packages")) + "\n", encoding="utf-8"
    )
    path = f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["./binder/postBuild"],
        cwd=tree,
        env={"PATH": path, "HOME": str(home), "NB_PYTHON_PREFIX": str(prefix)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return prefix


def test_post_build_installs_the_package_with_its_data(built: Path) -> None:
    """Outside the tree the installed package decides a case."""
    code = (
        "import shardwise as sw; print(sw.__file__); "
        "print(sw.decide(sw.Scenario.from_dict({'model': 'llama-3-8b'})).strategy)"
    )
    done = subprocess.run(
        [str(built / "bin" / "python"), "-c", code],
        cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    file, strategy = done.stdout.split()
    assert file.startswith(str(built))
    assert strategy


def test_post_build_configures_jupyter(built: Path) -> None:
    """Voila's and the server's settings lie where a Jupyter of this environment looks."""
    settings = built / "etc" / "jupyter"
    voila = json.loads((settings / "voila.json").read_text(encoding="utf-8"))
    assert voila == json.loads((ROOT / "notebooks" / "voila.json").read_text(encoding="utf-8"))
    code = (
        "from traitlets.config import Config\n"
        "from jupyter_server.config_manager import recursive_update\n"
        "from jupyter_server.serverapp import ServerApp\n"
        "from jupyter_core.paths import jupyter_config_path\n"
        "app = ServerApp(); app.config_file_paths\n"
        "app.load_config_file(suppress_errors=False)\n"
        "print(app.config.ServerApp.kernel_websocket_connection_class)\n"
        "print(app.config.MappingKernelManager.cull_idle_timeout)\n"
        "from voila.paths import collect_template_paths\n"
        "print(collect_template_paths(['voila', 'nbconvert'], 'shardwise')[0])\n"
    )
    done = subprocess.run(
        [str(built / "bin" / "python"), "-c", code],
        cwd="/", env={"PATH": os.environ["PATH"], "HOME": str(built)}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    connection, timeout, template = done.stdout.splitlines()[-3:]
    assert connection == "shardwise.server.PromptKernelConnection"
    assert int(timeout) > 0
    assert template.startswith(str(built))


def test_start_hands_over_with_echoes_off() -> None:
    """The last thing that start does is to become the server's command."""
    done = subprocess.run(
        [str(BINDER / "start"), "sh", "-c", "echo $JUPYTER_WIDGETS_ECHO $1", "sh", "two words"],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout == "0 two words\n"


@pytest.mark.parametrize("name", ["postBuild", "start"])
def test_the_scripts_are_executable_and_sound(name: str) -> None:
    """Bash accepts them and the executable bit is set."""
    assert os.access(BINDER / name, os.X_OK)
    assert subprocess.run(["bash", "-n", str(BINDER / name)], check=False).returncode == 0
