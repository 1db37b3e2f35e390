"""torchtitan's published runs.

Meter: `torch.cuda.max_memory_reserved` in GiB (torchtitan/components/metrics.py, "memory" is
`max_reserved_gib`), the most over all ranks, stable after the first steps.
Settings of the runs of December 2024 (benchmarks/llama3_h100_202412_torchtitan.md): FSDP2 with
fp32 shards, bf16 compute and fp32 reduction, AdamW fused, each block compiled, the loss not yet
(train.py of that time: "compiling loss function causes CUDA errors, turning off for now"), which
is also why later versions were seen to need much less (pytorch/torchtitan#1344). Float8 linear
layers keep what bf16 ones keep. The tables say "Float8", not whether weights are gathered in it
(`enable_fsdp_float8_all_gather`, off by default): they are taken as gathered in bf16. MXFP8 layers
keep their bf16 input too (torchao/prototype/mx_formats/mx_linear.py, `mx_mm`: `save_for_backward(
input_hp, weight_hp)`), and their `torch.mm` of MXTensors is `aten.mm` to checkpointing by operator.
Runs of 2025 compile the loss (components/loss.py), those of 2026 chunk it; both checkpoint by
operator by default. With pipelines nothing is resharded; the number of micro-batches is not stated:
torchtitan's default is one a stage. Async tensor parallelism gathers inputs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.core.scenario import Scenario

from .row import Published, compared_rows, left_out_rows

GIB = 2**30
SOURCE = "torchtitan"
MODELS = {
    "Llama-3-8B": "llama-3-8b",
    "Llama-3-70B": "llama-3-70b",
    "Llama-3.1-405B": "llama-3.1-405b",
    "Qwen3-8B": "qwen3-8b",
}


def scenario_of(row: Mapping[str, str]) -> Scenario:
    """The scenario of one row."""
    tensor, stages = int(row["tp"]), int(row["pp"])
    world, data = int(row["gpus"]), int(row["dp"])
    micro = int(row["microbatch"])
    layout: dict[str, Any] = {
        "engine": "fsdp2",
        "tensor_parallel": tensor,
        "sequence_parallel": tensor > 1,
        "context_parallel": int(row["cp"]),
        "pipeline_parallel": stages,
        "regather_inputs": row["regather_inputs"] == "yes" or None,
    }
    if stages > 1:
        layout |= {"reshard_after_forward": False, "schedule": row["schedule"]}
        if row["schedule"] == "interleaved":
            layout["virtual_stages"] = 2
    return Scenario.from_dict(
        {
            "model": MODELS[row["model"]],
            "cluster": {
                "gpu": row["card"],
                "gpus_per_node": min(8, world),
                "nodes": world // 8 or 1,
            },
            "training": {
                "sequence_length": int(row["sequence_length"]),
                "micro_batch": micro,
                "global_batch": int(row["local_batch"]) * data,
                "precision": "fsdp-mixed",
                "optimizer_implementation": "fused",
                "activation_checkpointing": row["checkpointing"],
                "loss": row["loss"],
                "model_code": row["code"],
            },
            "layout": layout,
        }
    )


def compared() -> list[Published]:
    """Every row that a scenario describes."""
    return [
        Published(
            id=row["id"],
            source=SOURCE,
            what=f"{row['model']} {row['gpus']} GPUs dp{row['dp']} tp{row['tp']} pp{row['pp']} "
            f"cp{row['cp']} {row['sequence_length']} tokens, {row['checkpointing']}",
            metric="peak_reserved",
            measured_bytes=float(row["value_gib"]) * GIB,
            scenario=scenario_of(row),
        )
        for row in compared_rows("torchtitan")
    ]


def left_out() -> dict[str, str]:
    """Rows that are not compared, with the reason."""
    return left_out_rows("torchtitan")
