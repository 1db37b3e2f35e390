"""Holds `training.trainable` against the traced peft steps of `data/traces/adapters.json`.

python tests/accuracy/compare_adapters.py            # one line a case
python tests/accuracy/compare_adapters.py --phases   # and its phases beside the traced ones
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trace_adapters import FILE, config_for

from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.scenario import Scenario


@dataclass(frozen=True)
class Compared:
    """One case: relative errors of the peak and of the steady bytes (estimate / trace - 1)."""

    case: Mapping[str, Any]
    report: MemoryReport
    peak_error: float
    steady_error: float


def scenario_of(case: Mapping[str, Any]) -> Scenario:
    """The scenario that describes a traced case."""
    given, lora = case["arguments"], dict(case["lora"])
    layout: dict[str, Any] = {"engine": given["engine"]}
    if given["engine"] == "fsdp2":
        layout["reshard_after_forward"] = given.get("reshard_after_forward", True)
    world, micro_batches = given["world"], given.get("micro_batches", 1)
    training = {
        "sequence_length": given["sequence_length"],
        "global_batch": micro_batches * world,
        "precision": given["precision"],
        "activation_checkpointing": given.get("activation_checkpointing", "none"),
        "trainable": {"lora": lora},
    }
    cluster = {"gpu": "h100-sxm-80gb", "gpus_per_node": min(8, world), "nodes": max(1, world // 8)}
    return Scenario.from_dict(
        {"model": config_for(case), "cluster": cluster, "training": training, "layout": layout}
    )


def compare() -> list[Compared]:
    """Every traced case."""
    found = []
    for case in json.loads(FILE.read_text(encoding="utf-8")):
        report = estimate(scenario_of(case))
        found.append(
            Compared(
                case,
                report,
                report.peak_bytes / case["peak_bytes"] - 1,
                report.steady_bytes / case["steady_bytes"] - 1,
            )
        )
    return found


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phases", action="store_true")
    phases = parser.parse_args().phases
    for each in compare():
        report, case = each.report, each.case
        print(
            f"{each.peak_error:+8.2%} {each.steady_error:+8.2%}  {report.binding_phase:18} "
            f"{case['peak_phase']:10} {case['case']}"
        )
        if phases:
            for phase, parts in case["phases"].items():
                shown = {name: round(size / 2**20) for name, size in parts.items() if size}
                print(f"      traced {phase:12} {sum(parts.values()) / 2**20:9,.1f} {shown}")
            for phase, sizes in report.phases.items():
                own = {name: round(size / 2**20) for name, size in sizes.items() if size}
                print(f"      here {phase:18} {sum(sizes.values()) / 2**20:9,.1f} {own}")


if __name__ == "__main__":
    main()
