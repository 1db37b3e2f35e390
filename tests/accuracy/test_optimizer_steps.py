"""Optimizers' own temporaries against steps of the real optimizers on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.optimizer_step import newton_schulz_bytes
from shardwise.core.memory.tensor_classes import TensorClass
from shardwise.core.precision import precision_from
from shardwise.core.scenario import Scenario

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1536,
    "tie_word_embeddings": False,
}


def traced(**settings: Any) -> Any:
    """The temporaries of the last traced step's optimizer, in bytes."""
    from shardwise.lab.trace import trace

    parts = trace(sequence_length=128, **settings).phases["optimizer"]
    return parts["temporaries"] + parts["collective buffers"]


def counted(vocabulary: int, precision: str, optimizer: str) -> float:
    """The estimate's temporary for one rank that holds everything."""
    scenario = Scenario.from_dict(
        {
            "model": {**SMALL, "vocab_size": vocabulary},
            "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": 1, "nodes": 1},
            "training": {"precision": precision, "optimizer": optimizer, "global_batch": 1},
            "layout": {"engine": "ddp"},
        }
    )
    return frame_of(scenario, 0).buffers.extra_step


@pytest.mark.parametrize("optimizer", ["adafactor", "muon"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("vocabulary", [512, 6400])
def test_a_step_makes_what_was_traced(optimizer: str, precision: str, vocabulary: int) -> None:
    """The largest matrix inside the blocks decides, or with a large vocabulary the embedding."""
    real = traced(
        model={**SMALL, "vocab_size": vocabulary},
        engine="none",
        world=1,
        precision=precision,
        optimizer=optimizer,
    )
    assert counted(vocabulary, precision, optimizer) == pytest.approx(real, rel=0.01)


@pytest.mark.parametrize(("rows", "columns"), [(4096, 1024), (2048, 2048), (1024, 4096)])
@pytest.mark.parametrize(("world", "within"), [(1, 0.001), (8, 0.1), (16, 0.06)])
def test_muon_over_shards_gathers_the_small_matrices(
    rows: int, columns: int, world: int, within: float
) -> None:
    """torch.optim.Muon on FSDP2's DTensors; the polynomial's matrices are whole on every rank."""
    real = traced(
        model=lambda: torch.nn.Linear(columns, rows, bias=False),
        batch=lambda: torch.zeros(1, columns),
        engine="fsdp2",
        world=world,
        precision="fsdp-mixed",
        optimizer="muon",
    )
    own = TensorClass((rows, columns), "mlp", False, 1)
    made = newton_schulz_bytes(own, precision_from("fsdp-mixed"), world)
    assert made == pytest.approx(real, rel=within)
