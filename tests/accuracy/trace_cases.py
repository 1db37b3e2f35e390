"""Traces the cases of `data/traces/`: many architectures, engines, lengths and worlds.

    python tests/accuracy/trace_cases.py                 # all cases that aren't in the file yet
    python tests/accuracy/trace_cases.py --again         # all of them
    python tests/accuracy/trace_cases.py --only llama    # cases whose name has `llama`

Writes `cases.csv` (one line a case) and `cases.json` (phases by part too), after every case.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blind_cases import BLIND
from strange_cases import shallow, strange, strangers

from shardwise.lab.trace import TraceReport, trace

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "data" / "models"
TARGET = ROOT / "data" / "traces"
VIT = {"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_labels": 1000}

# Every architecture once on 8 ranks; large ones with fewer layers (they are alike).
BASELINES: dict[str, tuple[int | None, int]] = {
    "llama-3.2-1b": (None, 2048),
    "llama-2-7b": (8, 4096),
    "llama-3-8b": (8, 4096),
    "llama-3-70b": (4, 4096),
    "mistral-7b": (8, 4096),
    "qwen2.5-0.5b": (None, 2048),
    "qwen2.5-7b": (8, 4096),
    "qwen3-0.6b": (None, 2048),
    "qwen3-8b": (8, 4096),
    "phi-2": (8, 2048),
    "phi-3-mini": (8, 2048),
    "gemma-2-2b": (8, 2048),
    "gemma-3-1b": (None, 2048),
    "gpt2": (None, 1024),
    "gpt2-xl": (12, 1024),
    "opt-125m": (None, 2048),
    "opt-1.3b": (12, 2048),
    "pythia-160m": (None, 2048),
    "pythia-1.4b": (12, 2048),
    "gpt-j-6b": (4, 2048),
    "falcon-7b": (8, 2048),
    "bloom-560m": (8, 2048),
    "olmo-1b": (8, 2048),
    "olmo-2-7b": (8, 2048),
    "mixtral-8x7b": (4, 2048),
    "qwen3-30b-a3b": (6, 2048),
    "olmoe-1b-7b": (6, 2048),
    "qwen1.5-moe-a2.7b": (6, 2048),
    "gpt-oss-20b": (4, 2048),
    "deepseek-v2-lite": (4, 2048),
    "bert-base": (None, 512),
    "flan-t5-xl": (4, 1024),
    "vit-base": (None, 1),
}
# Their grouped products take bf16 weights only, so fp32 weights under autocast don't run.
GROUPED_EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b")
DDP = {"engine": "ddp", "precision": "bf16"}
# Changes to a baseline, each a case.
FULL_SET: tuple[dict[str, Any], ...] = (
    *({"world": world} for world in (1, 2, 4, 16, 64, 256)),
    *({"sequence_length": length} for length in (512, 1024, 4096, 8192)),
    {"reshard_after_forward": False},
    {"reshard_after_forward": False, "world": 64},
    {"micro_batch": 2},
    {"micro_batch": 4},
    {"micro_batches": 2},
    {"micro_batches": 3, "reshard_after_forward": False},
    {"activation_checkpointing": "full"},
    {"activation_checkpointing": "full", "sequence_length": 8192},
    {"activation_checkpointing": "selective"},
    {"activation_checkpointing": {"every": 2}},
    {"attention": "math"},
    {"attention": "eager"},
    {"attention": "efficient"},
    {"optimizer_implementation": "fused"},
    {"optimizer_implementation": "for-loop", "sequence_length": 512},
    {"optimizer": "sgd"},
    {"optimizer": "sgd-momentum"},
    {"precision": "bf16"},
    {"precision": "fp32"},
    {"hold_output": True},
    {"world": 64, "rank": 63},
    DDP,
    {**DDP, "precision": "fp32"},
    {**DDP, "precision": "autocast"},
    {**DDP, "precision": "autocast", "activation_checkpointing": "full"},
    {**DDP, "micro_batches": 2},
    {"engine": "none", "world": 1, "precision": "bf16"},
    {"engine": "none", "world": 1, "precision": "autocast"},
)
SHORT_SET: tuple[dict[str, Any], ...] = (
    {"world": 64},
    {"reshard_after_forward": False},
    {"activation_checkpointing": "full"},
    {"sequence_length": 512, "micro_batch": 2},
    {**DDP, "precision": "autocast"},
    DDP,
)
TENSOR_SET: tuple[dict[str, Any], ...] = (
    {"tensor_parallel": 2},
    {"tensor_parallel": 4, "world": 32},
    {"engine": "none", "world": 8, "tensor_parallel": 8, "precision": "bf16"},
)
WHOLE_NODE = {"engine": "none", "precision": "bf16"}
PLANS: tuple[dict[str, Any], ...] = (
    {},
    {"vocabulary_parallel": True},
    {"vocabulary_parallel": True, "sequence_parallel": True},
)
# Tensor parallelism by both published plans: FSDP2 over the rest, or tensor ranks alone.
PLANNED_SET: tuple[dict[str, Any], ...] = (
    *({"world": 16, "tensor_parallel": 2, **plan} for plan in PLANS),
    *({**WHOLE_NODE, "world": 4, "tensor_parallel": 4, **plan} for plan in PLANS),
    *(
        {"world": 64, "tensor_parallel": 4, "activation_checkpointing": "full", **plan}
        for plan in PLANS[1:]
    ),
)
LONG_SET: tuple[dict[str, Any], ...] = (
    {"sequence_length": 16384},
    {"sequence_length": 32768, "activation_checkpointing": "full"},
    {"sequence_length": 131072, "activation_checkpointing": "full", "world": 64},
)
WIDE_SET: tuple[dict[str, Any], ...] = (
    {"world": 512},
    {"world": 1024},
    {"world": 32, "replicate": 4},
    {"world": 1024, "replicate": 16, "activation_checkpointing": "full"},
)
VARIED = {
    "llama-3.2-1b": FULL_SET,
    "llama-3-8b": SHORT_SET + TENSOR_SET,
    **dict.fromkeys(
        (
            "qwen3-0.6b", "qwen2.5-0.5b", "mistral-7b", "gemma-2-2b", "gemma-3-1b",
            "gpt2", "opt-125m", "pythia-160m", "mixtral-8x7b", "qwen3-30b-a3b", "bert-base",
            "phi-3-mini",
        ),
        SHORT_SET,
    ),
}  # fmt: skip

EIGHT_WAYS: tuple[dict[str, Any], ...] = tuple(
    {"world": 64, "tensor_parallel": 8, **plan} for plan in PLANS
)
FURTHER: dict[str, tuple[dict[str, Any], ...]] = {
    "llama-3-8b": PLANNED_SET + EIGHT_WAYS + LONG_SET,
    "qwen2.5-7b": PLANNED_SET + LONG_SET[:2],
    "qwen3-8b": PLANNED_SET + EIGHT_WAYS,
    "mistral-7b": tuple({**change, "sequence_length": 2048} for change in PLANNED_SET),
    "olmo-2-7b": LONG_SET[:2],
    "llama-3.2-1b": (*PLANNED_SET[1:3], *LONG_SET, *WIDE_SET),
    "qwen3-0.6b": (*PLANNED_SET[1:3], *LONG_SET, *WIDE_SET),
    "phi-2": PLANNED_SET[:1] + LONG_SET[:2],
    "gemma-3-1b": LONG_SET[1:] + WIDE_SET[1:3],
    "gpt2": WIDE_SET,
    "mixtral-8x7b": WIDE_SET + LONG_SET[1:],
}


def cases() -> dict[str, dict[str, Any]]:
    """Every case by name: model, layers and the arguments of `trace`."""
    found: dict[str, dict[str, Any]] = {}
    # All architectures first: an interrupted run still covers them.
    wanted: list[tuple[str, dict[str, Any]]] = [(model, {}) for model in BASELINES]
    varied = [*VARIED.items(), *FURTHER.items()]
    wanted += [(model, change) for model, changes in varied for change in changes]
    for model, change in wanted:
        layers, length = BASELINES[model]
        if model in GROUPED_EXPERTS and change.get("precision") == "autocast":
            continue
        arguments = {"engine": "fsdp2", "world": 8, "sequence_length": length} | change
        words = [f"{key}={value}" for key, value in change.items()]
        name = " ".join([model, *words])
        found[name] = {"model": model, "layers": layers, "arguments": arguments}
    return found | BLIND | strange(31)


def config_of(model: str, layers: int | None) -> dict[str, Any]:
    """The model's config.json, with fewer layers if asked."""
    if model == "vit-base":
        return shallow(dict(VIT), layers)
    known = strangers().get(model)
    return shallow(known or json.loads((MODELS / f"{model}.json").read_text()), layers)


def command_of(model: str, layers: int | None, arguments: dict[str, Any]) -> str:
    """Python that repeats the case."""
    options = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"trace(config_of({model!r}, {layers}), {options})"


def line_of(name: str, case: dict[str, Any], report: TraceReport) -> dict[str, Any]:
    """One case as a flat line."""
    settings = asdict(report.settings)
    line = {"case": name, "set": case.get("set", "chosen"), "model": case["model"]}
    line |= {"layers": case["layers"] or "all"} | settings
    line |= {
        "parameters": report.parameters,
        "peak_bytes": report.peak_bytes,
        "peak_phase": report.peak_phase,
        "steady_bytes": report.steady_bytes,
        "saved_bytes": report.saved_bytes,
        "attention_ran": "; ".join(f"{k} {v}" for k, v in report.attention_ran.items()),
    }
    for phase in ("init", "forward", "loss", "backward", "gradients", "optimizer", "steady"):
        line[f"{phase}_peak_bytes"] = sum(report.phases.get(phase, {}).values())
        line[f"{phase}_end_bytes"] = sum(report.phase_ends.get(phase, {}).values())
    for part, number_bytes in report.peak_parts.items():
        line["peak " + part] = number_bytes
    line["seconds"] = round(report.seconds, 1)
    line["command"] = command_of(case["model"], case["layers"], case["arguments"])
    return line


def record_of(line: dict[str, Any], report: TraceReport) -> dict[str, Any]:
    """One case with phases by part and the first storages at the peak."""
    alive = [asdict(row) for row in report.alive_at_peak[:12]]
    return line | {
        "phases": report.phases,
        "phase_ends": report.phase_ends,
        "alive_at_peak": alive,
    }


def write(records: dict[str, dict[str, Any]]) -> None:
    """Both files."""
    TARGET.mkdir(parents=True, exist_ok=True)
    (TARGET / "cases.json").write_text(json.dumps(list(records.values()), indent=0) + "\n")
    deep = ("phases", "phase_ends", "alive_at_peak")
    lines = [{k: v for k, v in one.items() if k not in deep} for one in records.values()]
    fields = list(dict.fromkeys(key for line in lines for key in line))
    with (TARGET / "cases.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def main() -> None:
    """Trace and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    records: dict[str, dict[str, Any]] = {}
    if (TARGET / "cases.json").exists():
        known = json.loads((TARGET / "cases.json").read_text())
        records = {one["case"]: {"set": "chosen"} | one for one in known}
    for name, case in cases().items():
        if options.only not in name or (name in records and not options.again):
            continue
        try:
            report = trace(config_of(case["model"], case["layers"]), **case["arguments"])
        except Exception as error:  # one architecture that fails must not lose the others
            print(f"FAILED {name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            continue
        records[name] = record_of(line_of(name, case, report), report)
        write(records)
        print(f"{report.seconds:6.1f} s  {report.peak_bytes / 2**30:8.3f} GiB  {name}", flush=True)


if __name__ == "__main__":
    main()
