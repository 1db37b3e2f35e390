"""litgpt's published finetuning runs on one to four GPUs.

Meter: `torch.cuda.max_memory_allocated` / 1e9, so allocated and in GB; rows without a number died.
Settings: bf16-true, AdamW, nothing recomputed; the peak is set by the micro-batch with the longest
sample, whose length the tables of 2023 name (Alpaca: 1044 to 1304 tokens). litgpt's Llama has one
projection for q, k and v, glues rotated parts by `cat` and writes RMSNorm out in fp32
(litgpt/model.py): what transformers' Phi-3 does, so its shapes stand for it. Its Phi has one
projection too and a GELU that is one operator, as transformers' GPT-NeoX has (but one norm a block
and not two). LoRA drops 5 % of its inputs (litgpt/finetune/lora.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Any

from shardwise.core.catalogue import load_model
from shardwise.core.scenario import Scenario

from .row import Published, compared_rows, left_out_rows

SOURCE = "litgpt"
GB = 10**9


def model_of(row: Mapping[str, str]) -> object:
    """The catalogue's model, a Llama and a Phi written as litgpt writes them."""
    model = load_model(row["model"])
    if row["model"].startswith("phi-1"):
        shape = model.block_groups[0][0]
        return {
            "model_type": "gpt_neox", "hidden_size": shape.hidden,
            "num_hidden_layers": model.layers, "num_attention_heads": shape.heads,
            "intermediate_size": shape.intermediate, "vocab_size": model.vocabulary,
            "rotary_pct": 0.5, "hidden_act": "gelu_pytorch_tanh",
        }  # fmt: skip
    if not row["model"].startswith("llama"):
        return row["model"]
    shape = model.block_groups[0][0]
    return {
        "model_type": "phi3", "hidden_size": shape.hidden, "num_hidden_layers": model.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.intermediate, "vocab_size": model.vocabulary,
        "tie_word_embeddings": False, "max_position_embeddings": 8192,
        "original_max_position_embeddings": 8192, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    }  # fmt: skip


def scenario_of(row: Mapping[str, str]) -> Scenario:
    """The scenario of one row."""
    gpus = int(row["gpus"])
    training: dict[str, Any] = {
        "sequence_length": int(row["sequence_length"]),
        "micro_batch": int(row["microbatch"]),
        "global_batch": int(row["global_batch"]) * gpus,
        "precision": "bf16",
        "activation_checkpointing": "full" if gpus > 1 else "none",
    }
    if row["rank"]:
        lora: dict[str, Any] = {"rank": int(row["rank"]), "dropout": 0.05}
        if row["base"]:
            lora |= {"base": "nf4", "double_quantized": row["base"].endswith("dq")}
        training["trainable"] = {"lora": lora}
    return Scenario.from_dict(
        {
            "model": model_of(row),
            "cluster": {"gpu": row["card"], "gpus_per_node": gpus},
            "training": training,
            "layout": {"engine": "fsdp1" if gpus > 1 else "ddp"},
        }
    )


def compared() -> list[Published]:
    """Every row that a scenario describes."""
    return [
        Published(
            id=row["id"],
            source=SOURCE,
            what=row["what"],
            metric="peak_allocated" if row["value_gb"] else "oom",
            measured_bytes=float(row["value_gb"]) * GB if row["value_gb"] else nan,
            scenario=scenario_of(row),
        )
        for row in compared_rows("litgpt")
    ]


def left_out() -> dict[str, str]:
    """Rows that are not compared, with the reason."""
    return left_out_rows("litgpt")
