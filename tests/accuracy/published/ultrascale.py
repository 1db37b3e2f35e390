"""The sweep of Hugging Face's Ultra-Scale Playbook: nanotron on up to 512 H100s.

Meter: what nanotron's benchmark logs on rank 0 alone (src/nanotron/helpers.py, `log_throughput`),
which is the first pipeline stage, in GiB with one decimal. The log has both the allocated and the
reserved peak and the chart does not say which of them it shows.
Settings: nanotron's scripts/scaling_benchmarks.py and examples/config_tiny_llama_bench.yaml: bf16
with fp32 accumulation, AdamW fused, sequence parallelism (`REDUCE_SCATTER`) with asynchronous
communication, 1F1B, sequence 4096, vocabulary 131072, flash attention, nothing recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from shardwise.core.scenario import Scenario

from .row import Published, compared_rows, left_out_rows

GIB = 2**30
SOURCE = "Ultra-Scale Playbook (nanotron)"
CONFIGS = {
    "llama-1B": (16, 2048, 32, 8192, True),
    "llama-3B": (28, 3072, 32, 8192, True),
    "llama-8B": (32, 4096, 32, 14336, False),
    "llama-80B": (80, 8192, 64, 28672, False),
}
VOCABULARY = 131072


def layers_per_stage(layers: int, hidden: int, intermediate: int, stages: int) -> list[int]:
    """Blocks a stage as nanotron balances them (src/nanotron/models/base.py, `build_model`).

    A block goes to the stage at hand, and the next stage begins once the cost so far is over its
    share; blocks cost their matrices, the head V x h, all else nothing.
    """
    block = 4 * hidden * hidden + 3 * hidden * intermediate
    costs = [0, *([block] * layers), 0, VOCABULARY * hidden, 0]
    total, stage, counts = sum(costs), 0, [0] * stages
    for index, cost in enumerate(accumulate(costs)):
        if 1 <= index <= layers:
            counts[stage] += 1
        if cost > total * ((stage + 1) / stages):
            stage += 1
    return counts


def config_of(name: str) -> dict[str, object]:
    """The model as a config.json."""
    layers, hidden, heads, intermediate, tied = CONFIGS[name]
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": heads,
        "intermediate_size": intermediate, "vocab_size": VOCABULARY,
        "tie_word_embeddings": tied, "max_position_embeddings": 4096,
    }  # fmt: skip


def scenario_of(row: Mapping[str, str]) -> Scenario:
    """The scenario of one row."""
    data, tensor, stages = int(row["dp"]), int(row["tp"]), int(row["pp"])
    name = row["model"]
    layers, hidden, _, intermediate, _ = CONFIGS[name]
    world = data * tensor * stages
    micro = int(row["microbatch"])
    split = layers_per_stage(layers, hidden, intermediate, stages)
    return Scenario.from_dict(
        {
            "model": config_of(name),
            "cluster": {
                "gpu": "h100-sxm-80gb",
                "gpus_per_node": min(8, world),
                "nodes": max(1, world // 8),
            },
            "training": {
                "sequence_length": 4096,
                "micro_batch": micro,
                "global_batch": micro * int(row["grad_accum"]) * data,
                "precision": "mixed-fp32-grads",
                "optimizer_implementation": "fused",
                "model_code": "nanotron",
            },
            "layout": {
                "engine": "nanotron",
                "zero_stage": int(row["zero_stage"]),
                "tensor_parallel": tensor,
                "sequence_parallel": tensor > 1,
                "pipeline_parallel": stages,
                "layers_per_stage": split if stages > 1 else None,
                "regather_inputs": row["regather_inputs"] == "yes",
            },
        }
    )


def _reason(row: Mapping[str, str]) -> str:
    if int(row["grad_accum"]) < int(row["pp"]):
        return "fewer micro-batches than stages: nanotron runs that, a 1F1B scenario does not"
    return ""


def compared() -> list[Published]:
    """Every row that a scenario describes."""
    return [
        Published(
            id=row["id"],
            source=SOURCE,
            what=f"{row['model']} dp{row['dp']} tp{row['tp']} pp{row['pp']} "
            f"mbs{row['microbatch']} acc{row['grad_accum']} zero{row['zero_stage']}",
            metric="peak_reserved",
            measured_bytes=float(row["value_gib"]) * GIB,
            scenario=scenario_of(row),
            stage=0,
        )
        for row in compared_rows("ultrascale", _reason)
    ]


def left_out() -> dict[str, str]:
    """Rows that are not compared, with the reason."""
    return left_out_rows("ultrascale", _reason)
