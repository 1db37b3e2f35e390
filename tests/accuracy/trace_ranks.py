"""Traces the same step on a first, a middle and a last rank: `data/traces/ranks.json`.

    python tests/accuracy/trace_ranks.py                 # what is not in the file yet

Cases whose shards are uneven: rows that do not divide, fewer experts than ranks, more ranks than
rows, replicas of shards; and one where all ranks are alike.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from trace_cases import TARGET, config_of

from shardwise.lab.trace import trace

FILE = TARGET / "ranks.json"
# (model, layers, settings, ranks traced)
CASES: tuple[tuple[str, int, dict[str, Any], tuple[int, ...]], ...] = (
    ("gpt2", 2, {"world": 8}, (0, 4, 7)),
    ("gpt2", 2, {"world": 1024}, (0, 800, 1005, 1023)),
    ("gpt2", 2, {"world": 64, "replicate": 4}, (0, 33, 63)),
    ("mixtral-8x7b", 1, {"world": 64}, (0, 8, 63)),
    ("qwen3-30b-a3b", 2, {"world": 256}, (0, 128, 255)),
    ("olmoe-1b-7b", 2, {"world": 48, "precision": "bf16"}, (0, 32, 47)),
    ("deepseek-v2-lite", 2, {"world": 48}, (0, 24, 47)),
    ("llama-3.2-1b", 2, {"world": 24}, (0, 12, 23)),
    ("llama-3-8b", 2, {"world": 96}, (0, 48, 95)),
    ("qwen2.5-0.5b", 2, {"world": 6, "precision": "bf16"}, (0, 3, 5)),
    ("bert-base", 2, {"world": 104, "optimizer": "sgd-momentum"}, (0, 52, 103)),
    ("phi-2", 2, {"world": 40, "optimizer_implementation": "fused"}, (0, 20, 39)),
    (
        "opt-125m",
        2,
        {"world": 200, "precision": "fp32", "optimizer_implementation": "for-loop"},
        (0, 100, 199),
    ),
    ("smollm2-135m", 2, {"engine": "ddp", "world": 8, "precision": "bf16"}, (0, 4, 7)),
)


def name_of(model: str, layers: int, settings: dict[str, Any], rank: int) -> str:
    """What a traced rank is called."""
    words = [f"{key}={value}" for key, value in settings.items()]
    return " ".join([model, f"layers={layers}", *words, f"rank={rank}"])


def main() -> None:
    """Trace and write, rank by rank."""
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    records = {record["case"]: record for record in known}
    for model, layers, settings, ranks in CASES:
        for rank in ranks:
            name = name_of(model, layers, settings, rank)
            if name in records:
                continue
            report = trace(config_of(model, layers), sequence_length=512, rank=rank, **settings)
            records[name] = {
                "case": name, "model": model, "layers": layers, **asdict(report.settings),
                "parameters": report.parameters, "peak_bytes": report.peak_bytes,
                "peak_phase": report.peak_phase, "steady_bytes": report.steady_bytes,
                "phases": report.phases, "seconds": round(report.seconds, 1),
            }  # fmt: skip
            text = json.dumps(list(records.values()), indent=0)
            FILE.write_text(text + "\n", encoding="utf-8")
            print(f"{report.seconds:6.1f} s  {name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
