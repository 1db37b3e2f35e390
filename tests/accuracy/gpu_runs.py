"""The estimate against CUDA's allocator on one real GPU: `python tests/accuracy/gpu_runs.py`.

Each case runs three real steps in a process of its own and reads the allocator's peak, so one case
that runs out of memory costs that case alone. `--fake` traces the same cases without a GPU, which
shows that every case runs. Prints a Markdown table; about ten seconds a case.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from statistics import median
from typing import Any

from compare_traces import quantile, scenario_of
from trace_cases import config_of

from shardwise.core.memory import estimate
from shardwise.lab.trace import trace

DENSE = {"engine": "none", "world": 1, "precision": "bf16", "sequence_length": 2048}
FSDP = {"engine": "fsdp2", "world": 1, "precision": "fsdp-mixed", "sequence_length": 2048}
# (model, layers, arguments of trace)
CASES: tuple[tuple[str, int | None, dict[str, Any]], ...] = (
    ("llama-3.2-1b", None, DENSE),
    ("llama-3.2-1b", None, DENSE | {"optimizer_implementation": "fused"}),
    ("llama-3.2-1b", None, DENSE | {"optimizer": "sgd-momentum"}),
    ("llama-3.2-1b", None, DENSE | {"precision": "autocast"}),
    ("llama-3.2-1b", None, DENSE | {"precision": "fp32"}),
    ("llama-3.2-1b", None, DENSE | {"activation_checkpointing": "full"}),
    ("llama-3.2-1b", None, DENSE | {"activation_checkpointing": {"every": 2}}),
    ("llama-3.2-1b", None, DENSE | {"activation_checkpointing": "selective"}),
    ("llama-3.2-1b", None, DENSE | {"sequence_length": 8192}),
    ("llama-3.2-1b", None, DENSE | {"micro_batch": 4, "micro_batches": 2}),
    ("llama-3.2-1b", None, DENSE | {"attention": "eager"}),
    ("llama-3.2-1b", None, DENSE | {"attention": "math"}),
    ("llama-3.2-1b", None, FSDP),
    ("llama-3.2-1b", None, FSDP | {"reshard_after_forward": False}),
    ("llama-3.2-1b", None, FSDP | {"activation_checkpointing": "full", "sequence_length": 8192}),
    ("llama-3-8b", 8, FSDP),
    ("mistral-7b", 8, DENSE),
    ("qwen2.5-0.5b", None, DENSE),
    ("qwen3-0.6b", None, DENSE | {"precision": "autocast"}),
    ("qwen3-30b-a3b", 4, DENSE),
    ("mixtral-8x7b", 2, DENSE | {"sequence_length": 1024}),
    ("gemma-2-2b", 8, DENSE),
    ("gpt2", None, DENSE | {"sequence_length": 1024, "precision": "autocast"}),
    ("opt-1.3b", 12, DENSE),
    ("pythia-1.4b", 12, FSDP),
    ("phi-3-mini", 8, DENSE),
    ("bert-base", None, DENSE | {"sequence_length": 512, "micro_batch": 8}),
    ("deepseek-v2-lite", 4, DENSE),
)


def run(index: int, device: str) -> dict[str, Any]:
    """One case: measured and estimated bytes."""
    model, layers, arguments = CASES[index]
    report = trace(config_of(model, layers), device=device, **arguments)
    settings = asdict(report.settings)
    case = {"model": model, "layers": "all" if layers is None else layers} | settings
    kind = case["activation_checkpointing"]
    case["activation_checkpointing"] = list(kind) if isinstance(kind, tuple) else kind
    estimated = estimate(scenario_of(case))
    return {
        "measured": report.peak_bytes,
        "estimated": estimated.peak_bytes,
        "phase": report.peak_phase,
        "estimated_phase": estimated.binding_phase,
    }


def in_own_process(index: int, device: str) -> dict[str, Any] | str:
    """The case's numbers, or the last line of what went wrong."""
    command = [sys.executable, __file__, "--case", str(index), "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return "no result within 300 s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["died without a word"])[-1]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def changes(arguments: dict[str, Any]) -> str:
    """What a case changes of the plain one."""
    return ", ".join(f"{key} {value}" for key, value in arguments.items() if key != "world")


def main() -> None:
    """The table, and the errors' median, 95 % and worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", action="store_true", help="trace without a GPU")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(run(options.case, options.device)))
        return
    device = "fake" if options.fake else "cuda"
    print(f"| model | settings | {device} peak, GiB | estimate, GiB | error | phase |")
    print("|---|---|---|---|---|---|")
    errors = []
    for index, (model, layers, arguments) in enumerate(CASES):
        found = in_own_process(index, device)
        name = model + (f", {layers} layers" if layers else "")
        if isinstance(found, str):
            print(f"| {name} | {changes(arguments)} | {found} | | | |", flush=True)
            continue
        error = found["estimated"] / found["measured"] - 1
        errors.append(abs(error))
        sizes = " | ".join(f"{found[key] / 2**30:.3f}" for key in ("measured", "estimated"))
        print(f"| {name} | {changes(arguments)} | {sizes} | {error:+.2%} | {found['phase']} |")
    if errors:
        print(
            f"\n{len(errors)} of {len(CASES)} cases: median {median(errors):.2%}, "
            f"95 % {quantile(errors, 0.95):.2%}, worst {max(errors):.2%}"
        )


if __name__ == "__main__":
    main()
