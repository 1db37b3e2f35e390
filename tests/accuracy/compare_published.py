"""Holds the analytic memory model against measurements that others published.

    python tests/accuracy/compare_published.py                  # by source, the worst rows
    python tests/accuracy/compare_published.py --all            # every row
    python tests/accuracy/compare_published.py --source simumax # one source

Nothing is fitted to these rows; data/measured/README.md says what each source's meter shows, and
rows that a scenario cannot express are listed with the reason.
"""

from __future__ import annotations

import argparse
import pkgutil
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import import_module
from statistics import median
from types import ModuleType

import published
from published.row import Published

TOO_LOW = -0.05


def sources() -> Mapping[str, ModuleType]:
    """Every module of `published` that compares something, by its name."""
    names = sorted(module.name for module in pkgutil.iter_modules(published.__path__))
    modules = {name: import_module(f"published.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "compared")}


def deaths(rows: Iterable[Published]) -> dict[str, int]:
    """How many runs that died got which verdict."""
    return dict(Counter(row.verdict for row in rows if row.metric == "oom"))


def summary(rows: Iterable[Published]) -> str:
    """Rows, median and worst error, and the share more than 5 % too low."""
    errors = [row.error for row in rows if row.metric != "oom"]
    if not errors:
        return "   0 rows"
    sizes = [abs(error) for error in errors]
    low = sum(error < TOO_LOW for error in errors) / len(errors)
    return (
        f"{len(errors):4} rows  median {median(sizes):6.2%}  worst {max(sizes):7.2%}  "
        f"lowest {min(errors):+7.2%}  too low by over 5 %: {low:4.0%}"
    )


def source_lines(name: str, rows: list[Published]) -> list[str]:
    """One line a metric of one source, and its runs that died."""
    lines = []
    for metric in sorted({row.metric for row in rows} - {"oom"}):
        own = [row for row in rows if row.metric == metric]
        lines.append(f"{name:18} {metric:17} {summary(own)}")
    died = deaths(rows)
    if died:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(died.items()))
        lines.append(f"{name:18} {'out of memory':17} {sum(died.values()):4} runs: {verdicts}")
    return lines


def row_line(row: Published) -> str:
    """One row: error, size, what it is."""
    if row.metric == "oom":
        return f"   {row.verdict:>12}  {row.id:8} died        {row.what}"
    gib = row.measured_bytes / 2**30
    more = (row.estimated_bytes - row.measured_bytes) / 2**30
    return f"{row.error:+8.2%} {more:+7.2f} GiB {row.id:8} {gib:7.2f} GiB {row.metric} {row.what}"


def report_lines(modules: Mapping[str, ModuleType], shown: int) -> list[str]:
    """The whole report, as lines."""
    compared = {name: list(module.compared()) for name, module in modules.items()}
    lines = [line for name, rows in compared.items() for line in source_lines(name, rows)]
    lines += ["", f"worst {shown} rows of each source (estimate / measured - 1, difference):"]
    for rows in compared.values():
        numbers = [row for row in rows if row.metric != "oom"]
        worst = sorted(numbers, key=lambda row: -abs(row.error))[:shown]
        lines += [row_line(row) for row in worst]
    every = [row for rows in compared.values() for row in rows]
    wrong = [row for row in every if row.metric == "oom" and row.verdict == "fits"]
    lines += ["", "runs that died and were said to fit:"]
    lines += [row_line(row) for row in wrong] or ["  none"]
    lines += ["", "not compared:"]
    for name, module in modules.items():
        reasons = Counter(module.left_out().values())
        lines += [f"  {name}: {count} x {reason}" for reason, count in reasons.most_common()]
    return lines


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="not the worst five alone")
    parser.add_argument("--source", help="one module of tests/accuracy/published")
    options = parser.parse_args()
    modules = sources()
    if options.source:
        modules = {options.source: modules[options.source]}
    print("\n".join(report_lines(modules, 10**6 if options.all else 5)))


if __name__ == "__main__":
    main()
