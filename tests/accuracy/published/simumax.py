"""SimuMax's B200 runs: the real Megatron-LM (23e00ed, TransformerEngine 2.11) on one node of eight.

Source: MooreThreads/SimuMax, docs/b200/b200_release_v1.2_summary.json; arguments from simu_tools/
megatron_scripts/scripts/run_pretrain_llama3.sh. Meter: torch.cuda.max_memory_allocated and
max_memory_reserved after two steps, in GiB, the highest of all ranks unless a stage is named.
Settings: distributed optimizer, fp32 gradient buffers, gradient accumulation fused, sequence
parallelism with tensor parallelism, context parallelism by all-to-all, no recomputation, no
dropout, TransformerEngine's fused cross entropy, vocabulary padded to 128 TP.
"""

from __future__ import annotations

from published.megatron_case import padded, scenario_of
from published.row import Published, rows_of
from shardwise.core.model import Model
from shardwise.core.scenario import Scenario

SOURCE = "SimuMax, Megatron-LM on B200"


def _model(row: dict[str, str]) -> Model:
    return Model.from_config(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": int(row["layers"]),
            "hidden_size": int(row["hidden"]),
            "num_attention_heads": int(row["heads"]),
            "num_key_value_heads": int(row["kv_heads"]),
            "intermediate_size": int(row["ffn"]),
            "vocab_size": padded(int(row["vocabulary"]), int(row["tensor_parallel"])),
            "tie_word_embeddings": False,
        }
    )


def _scenario(row: dict[str, str]) -> Scenario:
    degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel")
    batch = int(row["micro_batch"]) * int(row["micro_batches"]) * int(row["data_parallel"])
    return scenario_of(
        _model(row),
        "b200-sxm-180gb",
        int(row["gpus"]),
        {
            "sequence_length": int(row["sequence_length"]),
            "micro_batch": int(row["micro_batch"]),
            "global_batch": batch,
            "loss": "fused",
        },
        {degree: int(row[degree]) for degree in degrees}
        | {"sequence_parallel": True, "context_exchange": "a2a"},
    )


def compared() -> list[Published]:
    """All rows."""
    return [
        Published(
            id=row["id"],
            source=SOURCE,
            what=row["case"],
            metric=row["metric"],
            measured_bytes=float(row["gib"]) * 2**30,
            scenario=_scenario(row),
            stage=int(row["stage"]) if row["stage"] else None,
        )
        for row in rows_of("simumax")
    ]


def left_out() -> dict[str, str]:
    """None: every memory row is compared."""
    return {}
