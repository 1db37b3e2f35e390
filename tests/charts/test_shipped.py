"""The shipped specs are what Altair writes, and name only fields that the rows have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from shardwise.charts import (
    bars,
    changes,
    layers,
    path,
    peers,
    phases,
    rule,
    scaling,
    shipped,
    stages,
)
from shardwise.charts.theme import PART_COLORS, PART_LABELS, PART_LETTERS
from shardwise.core.decision import decide
from shardwise.core.memory import estimate
from shardwise.core.memory.report import PARTS
from shardwise.core.memory.sensitivity import sensitivity
from shardwise.core.peers.table import disagreement
from shardwise.core.scenario import Scenario


def datasets(name: str) -> dict[str, list[dict[str, object]]]:
    """The rows of one chart for a usual scenario, by dataset."""
    scenario = Scenario.from_dict({"model": {"parameters": 7e9}})
    report = estimate(scenario)
    made: dict[str, object] = {
        "rule": rule.rows(scenario),
        "bars": bars.rows([("DDP", report)]),
        "phases": phases.rows(report),
        "stages": stages.rows(report),
        "changes": changes.rows(report, sensitivity(scenario)),
        "peers": peers.rows(report, disagreement(scenario)),
        "path": path.rows(decide(scenario)),
        "scaling": scaling.rows(scenario),
        "layers": layers.rows(scenario),
    }
    rows = made[name]
    return rows if isinstance(rows, dict) else {"rows": rows}  # type: ignore[dict-item]


def fields(
    spec: object, data: str = "rows", made: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str]]:
    """(dataset, field) of every encoding and expression in a spec, but what it makes itself."""
    if isinstance(spec, dict):
        data = spec.get("data", {}).get("name", data)
        made |= {step["as"] for step in spec.get("transform", []) if "as" in step}
        if isinstance(spec.get("field"), str) and spec["field"] not in made:
            yield data, spec["field"]
        for key, value in spec.items():
            if key != "data":
                yield from fields(value, data, made)
    elif isinstance(spec, list):
        for entry in spec:
            yield from fields(entry, data, made)
    elif isinstance(spec, str):
        yield from ((data, field) for field in re.findall(r"datum\.(\w+)", spec))


@pytest.mark.parametrize("name", shipped.NAMES)
def test_shipped_spec_is_what_altair_writes(name: str) -> None:
    """A changed chart needs `python -m shardwise.charts.shipped`."""
    assert shipped.spec(name) == shipped.written(name)


@pytest.mark.parametrize("name", shipped.NAMES)
def test_spec_names_only_fields_that_rows_have(name: str) -> None:
    """Every field of an encoding is in every row of its dataset."""
    rows = datasets(name)
    for data, field in fields(shipped.spec(name)):
        assert all(field in row for row in rows[data]), (data, field)


@pytest.mark.parametrize("name", shipped.NAMES)
def test_table_columns_are_fields_with_units(name: str) -> None:
    """The table under a chart reads fields of its rows, and memory says GiB or GB."""
    module = import_module(f"shardwise.charts.{name}")
    for field, heading in module.COLUMNS.items():
        assert all(field in row for row in datasets(name)[getattr(module, "TABLE", "rows")])
        if re.search(r"memory|total|gathered|model", heading, re.IGNORECASE):
            assert "GiB" in heading or "GB" in heading


def test_each_part_has_its_own_color_label_and_letter() -> None:
    """No two parts of the memory look alike, and every part of a report is known here."""
    assert set(PARTS) < set(PART_COLORS) == set(PART_LABELS) == set(PART_LETTERS)
    assert len(set(PART_COLORS.values())) == len(PART_COLORS)
    assert len(set(PART_LETTERS.values())) == len(PART_LETTERS)
