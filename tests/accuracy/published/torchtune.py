"""torchtune's published single-node runs.

Meter: the README's table of optimizations reports peak *active* memory (`torch.cuda.memory_stats`,
`active_bytes.all.peak`), in GiB: what tensors take. Rows of other tables do not say which peak they
are; they are read as reserved, which `torchtune.training.get_memory_stats` prints last.
Settings: everything in bf16, AdamW's states too, one process. torchtune's modules save what
transformers' do (its RMSNorm is written out in fp32 too: torchtune/modules/rms_norm.py); packed
samples bring a mask, so that SDPA's memory-efficient kernel runs, which is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.core.scenario import Scenario

from .row import Published, compared_rows, left_out_rows

SOURCE = "torchtune"
UNITS = {"GiB": 2**30, "GB": 10**9}


def scenario_of(row: Mapping[str, str]) -> Scenario:
    """The scenario of one row."""
    training: dict[str, Any] = {
        "sequence_length": int(row["sequence_length"]),
        "micro_batch": int(row["microbatch"]),
        "global_batch": int(row["microbatch"]) * int(row["gpus"]),
        "precision": "bf16",
        "optimizer_implementation": row["optimizer"],
        "activation_checkpointing": row["checkpointing"],
        "loss": row["loss"],
        "model_code": row["code"],
    }
    if row["rank"]:
        training["trainable"] = {
            "lora": {"rank": int(row["rank"]), "targets": row["targets"].split()}
        }
    gpus = int(row["gpus"])
    return Scenario.from_dict(
        {
            "model": row["model"],
            "cluster": {"gpu": row["card"], "gpus_per_node": gpus},
            "training": training,
            "layout": {"engine": "fsdp2" if gpus > 1 else "ddp"},
        }
    )


def compared() -> list[Published]:
    """Every row that a scenario describes."""
    return [
        Published(
            id=row["id"],
            source=SOURCE,
            what=row["what"],
            metric=row["metric"],
            measured_bytes=float(row["value"]) * UNITS[row["unit"]],
            scenario=scenario_of(row),
        )
        for row in compared_rows("torchtune")
    ]


def left_out() -> dict[str, str]:
    """Rows that are not compared, with the reason."""
    return left_out_rows("torchtune")
