"""Whole tensors dealt out to ranks, and 512-byte blocks: against torch's own optimizer object."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from shardwise.core.memory import estimate
from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.greedy import dealt_out
from shardwise.core.memory.rounding import over
from shardwise.core.memory.stages import stages_of
from shardwise.core.scenario import Scenario

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1030, "tie_word_embeddings": False,
}  # fmt: skip


def scenario(model: object, gpus: int, nodes: int = 1, **layout: Any) -> Scenario:
    """AdamW in fp32."""
    return Scenario.from_dict(
        {
            "model": model,
            "cluster": {"gpus_per_node": gpus, "nodes": nodes},
            "training": {"precision": "fp32"},
            "layout": layout,
        }
    )


def real_shares(config: dict[str, Any], ranks: int) -> list[int]:
    """Elements that each rank's local optimizer gets from torch's ZeroRedundancyOptimizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit's, as that module is imported
        from torch.distributed.optim import ZeroRedundancyOptimizer

    own = {key: value for key, value in config.items() if key != "architectures"}
    made = transformers.AutoConfig.for_model(own.pop("model_type"), **own)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        return [
            sum(parameter.numel() for group in groups for parameter in group["params"])
            for groups in optimizer._partition_parameters()
        ]
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 40])
def test_shares_are_those_of_torchs_zero_redundancy_optimizer(ranks: int) -> None:
    """Rank by rank, with more ranks than tensors too (some have nothing to update)."""
    laid = scenario(TINY, ranks, engine="zero-redundancy") if ranks > 1 else scenario(TINY, 1)
    (stage,) = stages_of(laid.model, laid.layout)
    counted = [share.elements for share in dealt_out(stage.tensors, ranks, "adamw", 4)]
    assert counted == real_shares(TINY, ranks)


def test_the_fullest_rank_decides() -> None:
    """Llama-3-8B over 64 ranks: two of them have a vocabulary table each, 4.2 times the mean."""
    laid = scenario("llama-3-8b", 8, 8, engine="zero-redundancy")
    state = estimate(laid).phases["between steps"]["optimizer state"]
    assert state == 8 * 128_256 * 4096
    assert state > 4 * 8 * laid.model.parameters / 64


def test_tiny_shards_take_whole_blocks() -> None:
    """GPT-2 over 1024 ranks: 612,352 bytes of parameters as traced, 562,740 asked for."""
    laid = Scenario.from_dict(
        {
            "model": "gpt2",
            "cluster": {"gpus_per_node": 8, "nodes": 128},
            "training": {"precision": "fsdp-mixed"},
        }
    )
    frame = frame_of(laid, 0)
    assert frame.on_gpu.parameters + frame.rounding.parameters == 612_352
    moments = frame.on_gpu.optimizer_state + frame.rounding.state
    assert moments == 1_300_480 - 148 * 512  # the trace has 148 step counters on its device


def test_rounding_is_up_to_the_next_block() -> None:
    """c10/cuda/CUDACachingAllocator.cpp, `round_size`: multiples of 512."""
    assert [over(size) for size in (0, 1, 512, 513, 1023)] == [0, 511, 0, 511, 1]


@pytest.mark.parametrize("engine", ["fsdp1", "deepspeed"])
def test_flat_buffers_are_not_rounded_tensor_by_tensor(engine: str) -> None:
    """One large tensor instead of hundreds."""
    laid = scenario("gpt2", 8, 16, engine=engine)
    assert sum(frame_of(laid, 0).rounding) == 0


def test_offloaded_states_take_no_blocks_of_the_gpu() -> None:
    """FSDP's offload takes parameters and states along."""
    laid = scenario("gpt2", 8, 16, engine="fsdp2", offload={"optimizer": "cpu"})
    assert sum(frame_of(laid, 0).rounding) == 0
