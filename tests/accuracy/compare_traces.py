"""Holds the analytic memory model against the traced steps of `data/traces/cases.json`.

    python tests/accuracy/compare_traces.py              # by engine, by model, the worst cases
    python tests/accuracy/compare_traces.py --all        # every case

Nothing is fitted to the traces; cases that a scenario cannot express are listed with the reason.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from strange_cases import shallow, strangers

from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.outside import table_bytes
from shardwise.core.memory.report import MemoryReport
from shardwise.core.model import Model
from shardwise.core.scenario import Scenario

ROOT = Path(__file__).parents[2]
CASES = ROOT / "data" / "traces" / "cases.json"


@dataclass(frozen=True)
class Compared:
    """One case: relative errors of the peak and of the steady bytes (estimate / trace - 1)."""

    case: str
    model: str
    engine: str
    peak_error: float
    steady_error: float
    phase: str
    traced_phase: str


def load_cases() -> list[dict[str, Any]]:
    """The traced cases as the file holds them."""
    cases: list[dict[str, Any]] = json.loads(CASES.read_text(encoding="utf-8"))
    return cases


def inexpressible(case: Mapping[str, Any]) -> str:
    """Why no scenario describes this case; empty where one does."""
    if case["engine"] == "ddp" and case["world"] == 1:
        return "a scenario on one GPU has no DDP wrapper, and so none of its buckets"
    if case["hold_output"]:
        return "no scenario says that the loop keeps the logits alive"
    if _is_guessed(case["model"], case["layers"]):
        return "its architecture is not known: an estimate is a guess, and no verdict says fits"
    return ""


def scenario_of(case: Mapping[str, Any]) -> Scenario:
    """The scenario that describes a traced case."""
    every = case["activation_checkpointing"]
    if every == "selective":  # the tracer's name for torchtitan's kind by operator
        every = "per-op"
    engine, world = case["engine"], case["world"]
    layout: dict[str, Any] = {"engine": "ddp" if engine == "none" else engine}
    if engine == "fsdp2":
        layout["reshard_after_forward"] = case["reshard_after_forward"]
    tensor = case["tensor_parallel"]
    replicas = world // tensor
    if tensor > 1:
        layout["tensor_parallel"] = tensor
        layout["vocabulary_parallel"] = case.get("vocabulary_parallel", False)
        layout["sequence_parallel"] = case.get("sequence_parallel", False)
    if case.get("replicate", 1) > 1:
        layout["shard"] = replicas // case["replicate"]
    training = {
        "sequence_length": case["sequence_length"],
        "micro_batch": case["micro_batch"],
        "global_batch": case["micro_batch"] * case["micro_batches"] * replicas,
        "precision": case["precision"],
        "optimizer": case["optimizer"],
        "optimizer_implementation": case["optimizer_implementation"],
        "activation_checkpointing": {"every": every[1]} if isinstance(every, list) else every,
        "attention": case["attention"],
    }
    cluster = {
        "gpu": "h100-sxm-80gb",
        "gpus_per_node": min(8, world),
        "nodes": max(1, world // 8),
    }
    return Scenario.from_dict(
        {
            "model": _config(case["model"], case["layers"]),
            "cluster": cluster,
            "training": training,
            "layout": layout,
        }
    )


def _config(model: str, layers: int | str) -> dict[str, Any]:
    """The model's config.json with the layers that were traced."""
    path = ROOT / "data" / "models" / f"{model}.json"
    known = strangers().get(model)
    config = known or json.loads(path.read_text(encoding="utf-8"))
    return shallow(config, layers if isinstance(layers, int) else None)


@cache
def _is_guessed(model: str, layers: int | str) -> bool:
    """Whether this model's family is not known: no sizes, or those of a LLaMA-like decoder."""
    try:
        return not Model.from_config(_config(model, layers)).known
    except ScenarioError:
        return True


def compare(cases: Iterable[Mapping[str, Any]]) -> list[Compared]:
    """Every case that a scenario describes."""
    found = []
    for case in cases:
        if inexpressible(case):
            continue
        report = estimate(scenario_of(case))
        found.append(
            Compared(
                case["case"],
                case["model"],
                f"{case['engine']}, {case['precision']}",
                report.peak_bytes / case["peak_bytes"] - 1,
                report.steady_bytes / (case["steady_bytes"] - uncounted(case, report)) - 1,
                report.binding_phase,
                case["peak_phase"],
            )
        )
    return found


def uncounted(case: Mapping[str, Any], report: MemoryReport) -> float:
    """Bytes of a trace's batch and of those buffers that the model does not count.

    StarCoder's causal mask is a buffer too, and the estimate has it.
    """
    others: float = case["phases"]["init"]["buffers and inputs"]
    return others - table_bytes(report.scenario, frame_of(report.scenario, 0).stage)


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def summary(compared: Iterable[Compared]) -> str:
    """Median, 95 % and worst error of the peak, and the share that is too low."""
    errors = [each.peak_error for each in compared]
    sizes = [abs(error) for error in errors]
    low = sum(error < -0.01 for error in errors) / len(errors)
    return (
        f"{len(errors):4} cases  median {median(sizes):6.2%}  95 % {quantile(sizes, 0.95):6.2%}  "
        f"worst {max(sizes):6.2%}  too low by over 1 %: {low:4.0%}"
    )


def _set_of(each: Compared) -> str:
    """The set that a case was drawn in: `blind 7`, or `chosen`."""
    first, _, rest = each.case.partition(" ")
    return f"{first} {rest.partition('-')[0]}" if first in ("blind", "strange") else "chosen"


def _grouped(compared: list[Compared], key: Callable[[Compared], str]) -> dict[str, list[Compared]]:
    groups: dict[str, list[Compared]] = defaultdict(list)
    for each in compared:
        groups[key(each)].append(each)
    return dict(sorted(groups.items()))


def report_lines(cases: list[dict[str, Any]], shown: int) -> list[str]:
    """The whole report, as lines."""
    compared = compare(cases)
    lines = [f"{'peak, all':28} {summary(compared)}", ""]
    for key in (_set_of, lambda each: each.engine, lambda each: each.model):
        lines += [f"{k:28} {summary(group)}" for k, group in _grouped(compared, key).items()]
        lines.append("")
    steady = [abs(each.steady_error) for each in compared]
    lines += [f"steady bytes: median {median(steady):.3%}, worst {max(steady):.3%}", ""]
    lines.append("worst cases (estimate / trace - 1, phase estimated, phase traced):")
    worst = sorted(compared, key=lambda each: -abs(each.peak_error))[:shown]
    lines += [
        f"{each.peak_error:+8.2%}  {each.case:66} {each.phase:18} {each.traced_phase}"
        for each in worst
    ]
    lines += ["", "not compared:"]
    lines += [f"  {case['case']}: {why}" for case in cases if (why := inexpressible(case))]
    return lines


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every case, not the twenty worst")
    cases = load_cases()
    print("\n".join(report_lines(cases, len(cases) if parser.parse_args().all else 20)))


if __name__ == "__main__":
    main()
