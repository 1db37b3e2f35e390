"""Ten cases that people really had, as scenarios: what lesson 14 walks through.

Each is retold from a public thread or, where it says so, only takes its model and cards from one;
what the thread leaves open (sequence length, precision) is stated in the scenario.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """What was asked, the scenario of it, where it was asked and what became of it there."""

    asked: str
    source: str
    known: str
    scenario: dict[str, Any]


def _case(
    asked: str,
    source: str,
    known: str,
    model: Any,
    cluster: tuple[str, int, int],
    training: dict[str, Any],
    **layout: Any,
) -> Case:
    gpu, gpus_per_node, nodes = cluster
    machine = {"gpu": gpu, "gpus_per_node": gpus_per_node, "nodes": nodes}
    scenario = {"model": model, "cluster": machine, "training": training, "layout": layout}
    return Case(asked, source, known, scenario)


def _tokens(length: int, micro_batch: int = 1) -> dict[str, Any]:
    return {"sequence_length": length, "micro_batch": micro_batch}


CASES: dict[str, Case] = {
    "one billion": _case(
        "OLMo 1B on one node of 4 A100 80 GB, 2 samples of 2,048 tokens: FSDP or something else?",
        "allenai/OLMo#762",
        "measured there: DDP 8,034 tokens/s a GPU, FSDP about 1,770",
        "olmo-1b", ("a100-sxm-80gb", 4, 1), _tokens(2048, 2),
    ),
    "seven billion": _case(
        "Llama 2 7B on 8 A100 80 GB, 4,096 tokens: what is the least that fits?",
        "model and cards of foundation-model-stack/fms-fsdp#67",
        "there FSDP was used; the thread is about counting parameters",
        "llama-2-7b", ("a100-sxm-80gb", 8, 1), _tokens(4096),
    ),
    "gpt-j": _case(
        "GPT-J 6B on 8 A100 40 GB, 2,048 tokens.",
        "model of deepspeedai/DeepSpeed#1883",
        "the thread is about its 6.05 billion parameters, often counted as 5.84",
        "gpt-j-6b", ("a100-sxm-40gb", 8, 1), _tokens(2048),
    ),
    "it should fit": _case(
        "Qwen2.5 3B on 4 RTX 3090, 512 tokens, DeepSpeed ZeRO-2: by theory it should fit.",
        "hiyouga/LlamaFactory#6752",
        "out of memory there; the advice was ZeRO-3",
        "qwen2.5-3b", ("rtx-3090", 4, 1), _tokens(512), engine="deepspeed", zero_stage=2,
    ),
    "batch of one": _case(
        "Llama 3 8B on 8 RTX 3090, 1,024 tokens, DeepSpeed ZeRO-3: out of memory at batch 1.",
        "hiyouga/LlamaFactory#5977",
        "with offload it ran there, at 13 GB a card",
        "llama-3-8b", ("rtx-3090", 8, 1), _tokens(1024), engine="deepspeed", zero_stage=3,
    ),
    "dies in AdamW": _case(
        "Llama 2 7B on 8 V100 16 GB, 1,024 tokens, FSDP: it dies in the optimizer's step.",
        "meta-llama/llama-cookbook#234",
        "13.76 GiB of 15.77 were allocated when AdamW asked for its temporaries",
        "llama-2-7b", ("v100-sxm-16gb", 8, 1), _tokens(1024),
    ),
    "forty billion": _case(
        "40B parameters on 8 V100 32 GB, the model split over all 8: why does ZeRO save nothing?",
        "deepspeedai/DeepSpeed#237",
        "the maintainer: 8 such cards hold 8 to 10 billion parameters",
        {"parameters": 40e9}, ("v100-sxm-32gb", 8, 1), _tokens(1024),
    ),
    "forty on more": _case(
        "The same 40B on 64 V100 32 GB.",
        "deepspeedai/DeepSpeed#237",
        "the maintainer: about 48 such cards are needed",
        {"parameters": 40e9}, ("v100-sxm-32gb", 8, 8), _tokens(1024),
    ),
    "three active": _case(
        "Qwen3 30B-A3B, 3.3 of 30.5 billion parameters active, on 8 A100 80 GB: as small as a 3B?",
        "model of eullm/eullm#410",
        "memory follows the total, arithmetic the active parameters",
        "qwen3-30b-a3b", ("a100-sxm-80gb", 8, 1), _tokens(2048),
    ),
    "long context": _case(
        "Llama 3.1 70B on 64 H100 with 131,072 tokens a sample.",
        "pytorch/torchtitan#678",
        "tensor parallel 8 inside the node there, full checkpointing, context parallel besides",
        "llama-3.1-70b", ("h100-sxm-80gb", 8, 8), _tokens(131_072),
    ),
}  # fmt: skip
