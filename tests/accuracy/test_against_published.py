"""The analytic memory model against measurements that others published, at what it reached.

Nothing is fitted to these rows. What a bound says is what `compare_published.py` prints, rounded
up; data/measured/README.md says why a source is no nearer.
"""

from __future__ import annotations

from statistics import median
from types import ModuleType

import pytest
from compare_published import TOO_LOW, deaths, report_lines, sources
from published.row import Published, rows_of

# source, metric: median error, worst error, share of rows more than 5 % too low
BOUNDS = {
    ("simumax", "peak_allocated"): (0.002, 0.006, 0.0),
    ("simumax", "peak_reserved"): (0.04, 0.06, 0.17),
    ("megatron_golden", "steady_allocated"): (0.008, 0.045, 0.0),
    ("megatron_golden", "peak_allocated"): (0.012, 0.045, 0.0),
    ("torchtitan_runs", "peak_reserved"): (0.015, 0.1, 0.1),
    ("torchtune", "peak_allocated"): (0.04, 0.1, 0.0),
    ("litgpt", "peak_allocated"): (0.02, 0.045, 0.0),
    ("ultrascale", "peak_reserved"): (0.08, 1.5, 0.17),
    ("bigscience", "device"): (0.045, 0.17, 0.05),
}
FILES = {
    "simumax": "simumax",
    "megatron_golden": "megatron_golden",
    "bigscience": "bigscience",
    "torchtitan_runs": "torchtitan",
    "torchtune": "torchtune",
    "litgpt": "litgpt",
    "ultrascale": "ultrascale",
}


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    """The modules of the sources that this file pins."""
    return {name: module for name, module in sources().items() if name in FILES}


def compared(module: ModuleType, metric: str) -> list[Published]:
    """One source's rows of one metric."""
    return [row for row in module.compared() if row.metric == metric]


@pytest.mark.parametrize(("source", "metric"), BOUNDS)
def test_a_source_is_met_within_its_bounds(
    modules: dict[str, ModuleType], source: str, metric: str
) -> None:
    """Median and worst error and the share that is too low are at most what was reached."""
    errors = [row.error for row in compared(modules[source], metric)]
    middle, worst, low = BOUNDS[source, metric]
    assert median(abs(error) for error in errors) <= middle
    assert max(abs(error) for error in errors) <= worst
    assert sum(error < TOO_LOW for error in errors) / len(errors) <= low


def test_steady_bytes_of_megatrons_tests_are_within_150_megabytes(
    modules: dict[str, ModuleType],
) -> None:
    """Models of 0.06 to 11 billion parameters: never off by more than workspaces could be."""
    rows = compared(modules["megatron_golden"], "steady_allocated")
    assert max(abs(row.estimated_bytes - row.measured_bytes) for row in rows) < 150e6


def test_no_run_that_died_is_said_to_fit(modules: dict[str, ModuleType]) -> None:
    """Out-of-memory rows get any verdict but `fits`."""
    assert sum("fits" in deaths(module.compared()) for module in modules.values()) == 0
    assert deaths(modules["bigscience"].compared()) == {"does not fit": 1}


@pytest.mark.parametrize("source", FILES)
def test_every_row_is_compared_or_left_out_with_a_reason(
    modules: dict[str, ModuleType], source: str
) -> None:
    """Compared and left out together are the rows of the file, each once."""
    done = [row.id for row in modules[source].compared()]
    reasons = modules[source].left_out()
    assert sorted([*done, *reasons]) == sorted(row["id"] for row in rows_of(FILES[source]))
    assert all(len(reason.split()) > 5 for reason in reasons.values())


def test_the_report_names_sources_and_what_is_left_out(modules: dict[str, ModuleType]) -> None:
    """The printed report has a line for each source and metric, and one for each reason."""
    text = "\n".join(report_lines(modules, 5))
    for source, metric in BOUNDS:
        assert f"{source:18} {metric:17}" in text
    for module in modules.values():
        assert all(reason in text for reason in module.left_out().values())
