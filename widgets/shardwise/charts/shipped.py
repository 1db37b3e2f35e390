"""Specs that Altair wrote ahead of time, so that opening a page need not import it (2 s, 50 MB).

`python -m shardwise.charts.shipped` writes them again; a test holds them against Altair's output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any

NAMES = (
    "rule", "bars", "path", "phases", "stages", "changes", "peers", "scaling", "layers",
)  # fmt: skip


def written(name: str) -> dict[str, Any]:
    """The spec of one chart, made by Altair now.

    The version in `$schema` goes: the page's own Vega-Lite reads it, and a patch release of Altair
    must not change the file.
    """
    chart = import_module(f"shardwise.charts.{name}").spec()
    spec: dict[str, Any] = chart.to_dict()
    spec.pop("$schema", None)
    return spec


@cache
def _all() -> Mapping[str, dict[str, Any]]:
    text = (resources.files("shardwise") / "static" / "specs.json").read_text(encoding="utf-8")
    specs: dict[str, dict[str, Any]] = json.loads(text)
    return specs


def spec(name: str) -> dict[str, Any]:
    """The shipped spec of one chart: a key of `NAMES`."""
    return _all()[name]


def main() -> None:
    """Write `static/specs.json` anew."""
    target = Path(__file__).parents[1] / "static" / "specs.json"
    specs = {name: written(name) for name in NAMES}
    target.write_text(json.dumps(specs, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
