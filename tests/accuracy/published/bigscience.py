"""BigScience's layouts of BLOOM prototypes on A100-80GB: Megatron-DeepSpeed with ZeRO-1.

Source: bigscience, train/tr11-176B-ml/chronicles-prequel.md. Meter: what nvidia-smi showed, whole
GB, the highest of all nodes, mostly the ranks with an embedding. nvidia-smi counts MiB, and a GB is
1000 of them here: the chronicle has runs at 80 GB on a card of 81,251 MiB (79.3 GiB), and calls
76 GB too close to OOM, which it is not where a GB is 1e9 bytes (the card has 85.2e9).
Settings (chronicle, README and slurm script of tr11-176B-ml): every layer checkpointed, fused
softmax before FlashAttention, Megatron's dropouts of 0.1, fp16 but where bf16 is said, pipelines of
1F1B without interleaving, vocabulary 250,880, ALiBi, a norm after the embedding, an untied copy of
the embedding on the last stage. CUDA's context with its kernels: 1573 MiB, which the chronicle
measured with torch of that time (CUDA 11 loads all kernels at once; later ones as they are used).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from published.row import Published, left_out_rows, rows_of
from shardwise.core.memory.reserve import CONTEXT_BYTES
from shardwise.core.scenario import Scenario

MIB = 2**20
GB = 1000 * MIB
CONTEXT = 1573 * MIB
SOURCE = "BigScience, Megatron-DeepSpeed"

AMBIGUOUS = ("looks like a typo", "two readings")


def inexpressible(row: Mapping[str, str]) -> str:
    """Why a row is not compared; empty where it is."""
    if any(words in row["note"] for words in AMBIGUOUS):
        return "the chronicle itself contradicts the reading"
    return ""


def layers_per_stage(row: Mapping[str, str]) -> list[int] | None:
    """`pp-partition type:transformer|embedding`: the two embeddings count as a layer each."""
    if "pp-partition" not in row["strategy"]:
        return None
    stages = int(row["pipeline_parallel"])
    each, rest = divmod(int(row["layers"]) + 2, stages)
    assert not rest
    return [each - 1, *[each] * (stages - 2), each - 1]


def scenario(row: Mapping[str, str]) -> Scenario:
    """The scenario of one row; where the heads are not restated, the fewer are taken."""
    model = {
        "model_type": "bloom",
        "architectures": ["BloomForCausalLM"],
        "n_layer": int(row["layers"]),
        "hidden_size": int(row["hidden"]),
        "n_head": int(row["heads"].split("|")[0]),
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "vocab_size": int(row["vocabulary"]),
    }
    training: dict[str, Any] = {
        "sequence_length": int(row["sequence_length"]),
        "micro_batch": int(row["micro_batch"]),
        "global_batch": int(row["global_batch"]),
        "precision": "mixed-20" if "fp32 grad" in row["precision"] else "mixed-16",
        "activation_checkpointing": "full",
        "attention": "eager",
        "model_code": "megatron",
        "optimizer_implementation": "fused",
    }
    layout: dict[str, Any] = {
        "engine": "deepspeed",
        "zero_stage": 0 if "ZeRO-0" in row["strategy"] else 1,
        "tensor_parallel": int(row["tensor_parallel"]),
        "pipeline_parallel": int(row["pipeline_parallel"]),
        "layers_per_stage": layers_per_stage(row),
    }
    gpus = int(row["gpus"])
    cluster = {"gpu": "a100-sxm-80gb", "gpus_per_node": 8, "nodes": gpus // 8}
    return Scenario.from_dict(
        {"model": model, "cluster": cluster, "training": training, "layout": layout}
    )


def compared() -> list[Published]:
    """Every row that a scenario describes."""
    return [
        Published(
            id=row["id"],
            source=SOURCE,
            what=f"{row['model']} TP {row['tensor_parallel']} PP {row['pipeline_parallel']} "
            f"DP {row['data_parallel']} mb {row['micro_batch']} {row['precision'][:4]}",
            metric=row["metric"],
            measured_bytes=float(row["gb"] or "nan") * GB,
            scenario=scenario(row),
            outside_bytes=CONTEXT - CONTEXT_BYTES,
        )
        for row in rows_of("bigscience")
        if not inexpressible(row)
    ]


def left_out() -> dict[str, str]:
    """The rest, with the reason."""
    return left_out_rows("bigscience", inexpressible)
