"""The memory model against traced steps of torchtitan's own modules (`trace_torchtitan.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.scenario import Scenario

FILE = Path(__file__).parents[2] / "data" / "traces" / "torchtitan.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


def report_of(case: dict[str, Any]) -> MemoryReport:
    """The estimate of a traced case."""
    hidden, heads, kv_heads, vocabulary, intermediate = case["shape"]
    options = case["options"]
    world, rows = options["world"], options.get("micro_batch", 1)
    kind = options.get("activation_checkpointing", "none")
    layout: dict[str, Any] = {"engine": options["engine"]}
    if options["engine"] == "fsdp2":
        layout["reshard_after_forward"] = options.get("reshard_after_forward", True)
    return estimate(
        Scenario.from_dict(
            {
                "model": {
                    "model_type": "llama", "hidden_size": hidden, "num_attention_heads": heads,
                    "num_key_value_heads": kv_heads, "vocab_size": vocabulary,
                    "intermediate_size": intermediate, "num_hidden_layers": case["layers"],
                    "tie_word_embeddings": False, "max_position_embeddings": 131072,
                },
                "cluster": {
                    "gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": max(1, world // 8),
                },
                "training": {
                    "sequence_length": options["sequence_length"],
                    "micro_batch": rows,
                    "global_batch": rows * options.get("micro_batches", 1) * world,
                    "precision": options.get("precision", "fsdp-mixed"),
                    "optimizer_implementation": options.get("optimizer_implementation", "foreach"),
                    "activation_checkpointing": "per-op" if kind == "selective" else kind,
                    "model_code": "torchtitan",
                },
                "layout": layout,
            }
        )
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_peaks_agree_with_torchtitan(case: dict[str, Any]) -> None:
    """Peaks of torchtitan's Llama agree within 0.01 %; of a toy of 64 tokens a rank within 1 %."""
    tolerance = 0.01 if case["case"] == "small short" else 0.0001
    assert report_of(case).peak_bytes == pytest.approx(case["peak_bytes"], rel=tolerance)


def test_blocks_decide_in_some_cases() -> None:
    """Not every case peaks at its loss: the moments inside a block are tested too."""
    decided = [report_of(case).binding_phase for case in CASES]
    assert decided.count("backward") >= 2


@pytest.mark.parametrize("kind", ["none", "per-op", "full"])
def test_less_is_kept_the_more_is_recomputed(kind: str) -> None:
    """What waits for backward at the end of forward agrees for every kind of checkpointing."""
    name = {"none": "8b", "per-op": "8b per-op", "full": "8b full"}[kind]
    case = next(case for case in CASES if case["case"] == name)
    forward = report_of(case).worst.totals["forward"]
    assert forward == pytest.approx(case["phases"]["forward"], rel=0.0001)
