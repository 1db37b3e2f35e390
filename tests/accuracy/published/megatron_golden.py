"""Golden values of Megatron-LM's functional tests on A100, H100 and GB200, in exact bytes.

Source: NVIDIA/Megatron-LM @d98e8a64d, tests/functional_tests/test_cases. Meter:
`mem-allocated-bytes` (between steps) and `mem-max-allocated-bytes` of torch.cuda on the last global
rank alone, which is the last pipeline stage. Arguments that are not given have Megatron-LM's
defaults: LayerNorm, biases, learned positions, GELU, tied embeddings, dropout 0.1, 18 bytes a
parameter in bf16.

What no scenario says is in `outside_bytes`: most cases set CUBLAS_WORKSPACE_CONFIG=:4096:8, 32 MiB
for each of two threads, where an A100's default is 8.125 MiB; without `--moe-grouped-gemm` experts
run one after another and need no workspaces of their own; and Megatron-LM's own modules (`local`)
need none of TransformerEngine's. The column `settings` has what the case's model_config.yaml says
besides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from published.megatron_case import padded, scenario_of
from published.megatron_hybrid import hybrid
from published.megatron_layout import accounted_layers, listed_layers, pattern_layers
from published.megatron_model import Sizes, bert, gpt, t5
from published.row import Published, left_out_rows, rows_of
from shardwise.core.model import Model
from shardwise.core.scenario import Scenario
from shardwise.core.state_space import StateSpace

SOURCE = "Megatron-LM golden values"
GPUS = {"A100": "a100-sxm-80gb", "H100": "h100-sxm-80gb", "GB200": "gb200-186gb"}
# Entries of BERT's lower-case vocabulary; of its cased one with T5's 100 extra ids and two marks.
WORDPIECE, CASED = 30522, 28996 + 100 + 2
ENCODER, DECODER = 512, 128
MIB = 2**20
DETERMINISTIC_WORKSPACES = 2 * (4096 * 8 - 4096 * 2 - 16 * 8) * 1024

# (what the arguments or the case's name contain, why no scenario describes it)
INEXPRESSIBLE = (
    ("flextron", "elastic widths: masks over every layer and a router of their own"),
    ("use-megatron-fsdp", "Megatron-FSDP is another engine, with buffers of its own"),
)


def inexpressible(row: Mapping[str, str]) -> str:
    """Why a row is not compared; empty where it is."""
    text = f"{row['case']} {row['strategy']}"
    for word, why in INEXPRESSIBLE:
        if word in text:
            return why
    if not row["gpus"]:
        return "the number of GPUs is not public, and optimizer states are sharded over them"
    if row["optimizer"] != "adam":
        return "Muon's states and buffers in Megatron-LM's layer-wise distributed optimizer"
    if row["metric"] == "peak_allocated" and "activation-offloading" in text:
        return "activations offloaded to the host module by module"
    return ""


def _number(row: Mapping[str, str], key: str, default: int) -> int:
    found = re.search(rf"\b{key}=(\d+)", f"{row['strategy']}; {row['settings']}")
    return int(found[1]) if found else default


def _pattern(row: Mapping[str, str]) -> str:
    """A hybrid's layers, one letter each; empty for other models."""
    text = f"{row['strategy']}; {row['settings']}"
    found = re.search(r"hybrid-(?:override|layer)-pattern=([^;]+)", text)
    return found[1].strip() if found else ""


def _mixer(row: Mapping[str, str]) -> StateSpace:
    """Mamba-2 with the defaults of arguments.py and of MambaMixer: twice the hidden size."""
    width = _number(row, "mamba-head-dim", 64)
    heads = _number(row, "mamba-num-heads", 2 * int(row["hidden"]) // width)
    return StateSpace(
        "mamba2",
        inner=heads * width,
        state=_number(row, "mamba-state-dim", 128),
        heads=heads,
        groups=_number(row, "mamba-num-groups", 8),
        chunk=128,
    )


def _sizes(row: Mapping[str, str]) -> Sizes:
    strategy = f"{row['strategy']}; {row['settings']}"
    layers = int(row["layers"] or len(_pattern(row).replace("|", "")))
    words = [word.strip() for word in strategy.split(";")]
    encoder = row["case"].startswith("t5")
    rows = CASED if encoder else WORDPIECE
    if row["vocabulary"].isdigit():
        rows = int(row["vocabulary"])
    positions = ENCODER if encoder else int(row["sequence_length"])
    experts = _number(row, "num-experts", 0)
    ffn = int(row["ffn"])
    return Sizes(
        layers=layers,
        hidden=int(row["hidden"]),
        heads=int(row["heads"]),
        kv_heads=int(row["kv_heads"]),
        ffn=ffn,
        vocabulary=padded(rows, int(row["tensor_parallel"]), _number(row, "divisible-by", 128)),
        positions=positions if _learned(words) else 0,
        tied="untie-embeddings-and-output-weights" not in words,
        bias="disable-bias-linear" not in words,
        gated="swiglu" in words,
        norm="rmsnorm" if "normalization=RMSNorm" in words else "layernorm",
        dropout=0.0 if "no dropout" in words else 0.1,
        qk_norm="qk-layernorm" in words,
        causal=not row["case"].startswith("bert"),
        experts=experts,
        experts_per_token=_number(row, "moe-router-topk", 2) if experts else 0,
        expert_ffn=_number(row, "moe-ffn-hidden-size", ffn) if experts else 0,
        shared_ffn=_number(row, "moe-shared-expert-intermediate-size", 0),
        channels=_number(row, "kv-channels", 0),
        sparse=_sparse(row, layers) if experts else (),
        latents=_latents(row),
    )


def _sparse(row: Mapping[str, str], layers: int) -> tuple[bool, ...]:
    """Which layers have experts: all, or as `--moe-layer-freq` lists them."""
    found = re.search(r"moe-layer-freq=\(\[0\]\*(\d+)\+\[1\]\*(\d+)\)", row["strategy"])
    return (False,) * int(found[1]) + (True,) * int(found[2]) if found else (True,) * layers


def _latents(row: Mapping[str, str]) -> tuple[int, int, int, int, int]:
    """Ranks and widths of latent attention, with the defaults of arguments.py; zeros without."""
    if "multi-latent-attention" not in row["strategy"]:
        return (0, 0, 0, 0, 0)
    defaults = (("q-lora-rank", 0), ("kv-lora-rank", 32), ("qk-head-dim", 128))
    widths = (("qk-pos-emb-head-dim", 64), ("v-head-dim", 128))
    query, latent, plain = (_number(row, key, usual) for key, usual in defaults)
    rotary, value = (_number(row, key, usual) for key, usual in widths)
    return (query, latent, plain, rotary, value)


def _learned(words: list[str]) -> bool:
    """Whether positions are a table: arguments.py's default."""
    return not any(f"position-embedding-type={kind}" in words for kind in ("rope", "none"))


def _model(row: Mapping[str, str]) -> Model:
    sizes, name, pattern = _sizes(row), row["case"], _pattern(row)
    if pattern:
        return hybrid(sizes, name, pattern, _mixer(row))
    if name.startswith("t5"):
        return t5(sizes, name, ENCODER)
    return bert(sizes, name) if name.startswith("bert") else gpt(sizes, name)


def _virtual_layers(row: Mapping[str, str]) -> list[int] | None:
    """Layers of each stage or virtual stage where the arguments say them."""
    found = re.search(r"pipeline-model-parallel-layout=([^;]+)", row["settings"])
    if found:
        return listed_layers(found[1].strip())
    return pattern_layers(_pattern(row)) or accounted_layers(row)


def _layout(row: Mapping[str, str]) -> dict[str, Any]:
    strategy, virtual = row["strategy"], int(row["virtual_stages"] or 1)
    sharded = "dist-optimizer" in strategy
    layout: dict[str, Any] = {
        key: int(row[key])
        for key in ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
    }
    layout |= {
        "zero_stage": 1 if sharded else 0,
        "sequence_parallel": "sequence-parallel" in strategy,
        "virtual_stages": virtual,
        "schedule": "interleaved" if virtual > 1 else "1f1b",
        "gradient_accumulation_fusion": "no-gradient-accumulation-fusion" not in strategy,
        "expert_tensor_parallel": _number(row, "expert-tensor-parallel-size", 0) or None,
    }
    stages = _virtual_layers(row)
    if stages:
        layout["layers_per_stage"] = stages
    instances = _number(row, "num-distributed-optimizer-instances", 1)
    if sharded and instances > 1:
        layout["shard"] = int(row["data_parallel"]) * layout["context_parallel"] // instances
    return layout


def local_modules(row: Mapping[str, str]) -> bool:
    """Whether Megatron-LM's own modules run, without TransformerEngine."""
    return "transformer-impl=local" in row["strategy"] or "spec=local" in row["strategy"]


def _modules(row: Mapping[str, str]) -> list[str]:
    """Modules that are recomputed; core attention where none is named."""
    found = re.search(r"\[([^]]+)\]", row["recomputation"])
    return found[1].split() if found else ["core_attn"]


def _training(row: Mapping[str, str]) -> dict[str, Any]:
    attention = "math" if row["attention"] == "unfused" else "flash"
    return {
        "sequence_length": DECODER if row["case"].startswith("t5") else int(row["sequence_length"]),
        "micro_batch": int(row["micro_batch"]),
        "global_batch": int(row["global_batch"]),
        "attention": "eager" if local_modules(row) else attention,
        "activation_checkpointing": row["recomputation"].split()[0],
        "recompute_modules": _modules(row),
        "mtp_layers": _number(row, "mtp-num-layers", 0),
    }


def outside_bytes(row: Mapping[str, str]) -> float:
    """Workspaces that the run has or lacks against what a scenario counts."""
    one = (4 if row["gpu"] == "A100" else 32) * MIB
    size = 0.0
    if row["gpu"] == "A100" and "default workspaces" not in row["settings"]:
        size += DETERMINISTIC_WORKSPACES
    experts = "num-experts" in row["strategy"]
    if experts and "moe-grouped-gemm" not in row["strategy"]:
        size -= 4 * one
    return size - (one if local_modules(row) and not experts else 0)


def torch_softmax_bytes(row: Mapping[str, str]) -> float:
    """What attention saves more at the peak where torch's own softmax runs, in fp32.

    `--no-masked-softmax-fusion`, and fp32 because `--apply-query-key-layer-scaling` asks for it
    (megatron/core/fusions/fused_softmax.py, `forward_torch_softmax`): the softmax keeps its fp32
    result for backward, where the fused kernel keeps its 16-bit one. No scenario has that switch.
    The last stage has one micro-batch in flight.
    """
    words = row["settings"]
    if "no-masked-softmax-fusion" not in words or row["metric"] != "peak_allocated":
        return 0.0
    if "apply-query-key-layer-scaling" not in words and "softmax-in-fp32" not in row["strategy"]:
        return 0.0
    heads = int(row["heads"]) / int(row["tensor_parallel"])
    cells = heads * int(row["micro_batch"]) * int(row["sequence_length"]) ** 2
    return 2 * cells * int(row["layers"]) / int(row["pipeline_parallel"])


def scenario(row: Mapping[str, str]) -> Scenario:
    """The scenario of one row; fp16 gradients are kept in 16 bits, bf16's in fp32."""
    precision = "mixed-16" if row["precision"] == "fp16" else "mixed-fp32-grads"
    return scenario_of(
        _model(row), GPUS[row["gpu"]], int(row["gpus"]), _training(row), _layout(row), precision
    )


def compared() -> list[Published]:
    """Every row that a scenario describes."""
    return [
        Published(
            id=row["id"],
            source=SOURCE,
            what=f"{row['case']} {row['gpu']}",
            metric=row["metric"],
            measured_bytes=float(row["bytes"]),
            scenario=scenario(row),
            stage=int(row["pipeline_parallel"]) - 1,
            outside_bytes=outside_bytes(row) + torch_softmax_bytes(row),
        )
        for row in rows_of("megatron_golden")
        if not inexpressible(row)
    ]


def left_out() -> dict[str, str]:
    """The rest, with the reason."""
    return left_out_rows("megatron_golden", inexpressible)
