"""The page's own code and the one file of other people's code."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

from shardwise.panels.assets import asset, script

STATIC = Path(str(resources.files("shardwise") / "static"))


def test_the_bundle_is_what_its_source_builds() -> None:
    """Building again gives the committed bytes."""
    spec = importlib.util.spec_from_file_location("static_build", STATIC / "build.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    assert build.bundle().encode() == (STATIC / "vega.js").read_bytes()


def test_the_notices_name_the_builder_that_was_used() -> None:
    """The licence file says which vl-convert built the bundle, and it is the one installed."""
    used = importlib.metadata.version("vl-convert-python")
    assert f"vl-convert {used}" in asset("THIRD-PARTY.txt")


def test_no_script_names_another_machine() -> None:
    """Our scripts and styles ask no host for anything."""
    for path in STATIC.iterdir():
        if path.suffix in {".js", ".css"} and path.name != "vega.js":
            assert not re.search(r"https?://|//cdn", path.read_text(encoding="utf-8")), path.name


def test_no_script_can_set_markup() -> None:
    """Input reaches the page as text only: nothing of ours parses markup or code."""
    forbidden = re.compile(r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\b")
    for path in STATIC.glob("*.js"):
        if path.name != "vega.js":
            assert not forbidden.search(path.read_text(encoding="utf-8")), path.name


def test_scripts_are_joined_in_order() -> None:
    """What a module needs stands before it."""
    joined = script("elements.js", "download.js")
    assert joined.index("function make(") < joined.index("export default")


def test_panels_import_no_heavy_library() -> None:
    """The building blocks load neither Altair nor pandas nor torch."""
    modules = ["feed", "live_chart", "live_text", "number_field", "permalink", "download"]
    code = "; ".join(f"import shardwise.panels.{name}" for name in modules)
    check = "import sys; print(sorted({'altair', 'pandas', 'torch', 'numpy'} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}; {check}"], capture_output=True, text=True, timeout=60
    )
    assert run.stdout.strip() == "[]", run.stderr
