"""Traces torchtitan's own Llama modules, as `trace_cases.py` traces transformers'.

    pip install --no-deps torchtitan==0.2.2
    python tests/accuracy/trace_torchtitan.py            # writes data/traces/torchtitan.json

Of torchtitan only `models/llama3/model` is imported: its trainer needs Triton and data sets.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional

from shardwise.lab.trace import trace

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "data" / "traces" / "torchtitan.json"
PACKAGES = ("", ".models", ".models.llama3", ".models.llama3.model", ".protocols", ".components")
NOT_NEEDED = (
    ".components.tokenizer", ".protocols.train_spec", ".protocols.model", ".models.utils",
    ".models.attention", ".config", ".tools", ".tools.logging", ".tools.utils",
)  # fmt: skip

# Shapes in the config.json spelling; torchtitan derives the MLP's width from the last two.
LLAMA_8B = (4096, 32, 8, 128256, 14336)
LLAMA_7B = (4096, 32, 32, 32000, 11008)
SMALL = (1024, 16, 8, 8192, 4096)
WIDTHS = {14336: (1024, 1.3), 11008: (256, None), 4096: (1024, 1.5)}

CASES: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "8b": (LLAMA_8B, 6, {}),
    "8b full": (LLAMA_8B, 6, {"activation_checkpointing": "full"}),
    "8b per-op": (LLAMA_8B, 6, {"activation_checkpointing": "selective"}),
    "8b 16k": (LLAMA_8B, 4, {"sequence_length": 16384}),
    "8b 64 ranks": (LLAMA_8B, 6, {"world": 64}),
    "8b no reshard": (LLAMA_8B, 6, {"reshard_after_forward": False}),
    "8b fused": (LLAMA_8B, 6, {"optimizer_implementation": "fused"}),
    "8b 3 micro-batches": (LLAMA_8B, 6, {"micro_batches": 3}),
    "8b ddp bf16": (LLAMA_8B, 2, {"engine": "ddp", "precision": "bf16"}),
    "7b": (LLAMA_7B, 6, {}),
    "7b per-op": (LLAMA_7B, 6, {"activation_checkpointing": "selective"}),
    "7b full, 8k": (LLAMA_7B, 6, {"activation_checkpointing": "full", "sequence_length": 8192}),
    "small 8k": (SMALL, 8, {"sequence_length": 8192, "micro_batch": 2}),
    "small per-op": (SMALL, 8, {"sequence_length": 8192, "activation_checkpointing": "selective"}),
    "small full": (SMALL, 8, {"sequence_length": 8192, "activation_checkpointing": "full"}),
    "small every 2nd": (
        SMALL, 8, {"sequence_length": 8192, "activation_checkpointing": {"every": 2}},
    ),
    "small bf16": (SMALL, 8, {"sequence_length": 8192, "engine": "ddp", "precision": "bf16"}),
    "small short": (SMALL, 8, {"sequence_length": 256, "world": 256}),
}  # fmt: skip


class Attention(nn.Module):
    """torchtitan's wrapper around SDPA, without its choice of GPU backends."""

    def forward(self, q: Any, k: Any, v: Any, *, enable_gqa: bool = False) -> torch.Tensor:
        """Causal attention over [b, heads, s, d]."""
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=enable_gqa
        )


class Protocol(nn.Module):
    """torchtitan's `ModelProtocol`: a module that is given its arguments."""

    def __init__(self, args: Any) -> None:
        """Nothing but `nn.Module`."""
        super().__init__()


def lay_out(packages: tuple[str, ...]) -> None:
    """These packages of torchtitan, importable without what their `__init__` would import."""
    found = importlib.util.find_spec("torchtitan")
    assert found is not None and found.submodule_search_locations, "pip install torchtitan"
    root = Path(found.submodule_search_locations[0])
    for name in packages:
        package = ModuleType(f"torchtitan{name}")
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        package.__spec__ = importlib.machinery.ModuleSpec(package.__name__, None, is_package=True)
        sys.modules[package.__name__] = package


@cache
def torchtitan_llama() -> tuple[Any, Any]:
    """torchtitan's `Transformer` and `TransformerModelArgs`."""
    lay_out(PACKAGES)
    stubs = {name: mock.MagicMock() for name in NOT_NEEDED}
    sys.modules.update({f"torchtitan{name}": stub for name, stub in stubs.items()})
    stubs[".protocols.train_spec"].ModelProtocol = Protocol
    stubs[".protocols.model"].BaseModelArgs = object
    stubs[".models.attention"].ScaledDotProductAttentionWrapper = Attention
    model = importlib.import_module("torchtitan.models.llama3.model.model")
    return model.Transformer, importlib.import_module(
        "torchtitan.models.llama3.model.args"
    ).TransformerModelArgs


class WithLoss(nn.Module):
    """A model and torchtitan's loss (components/loss.py, `cross_entropy_loss`)."""

    def __init__(self, model: nn.Module) -> None:
        """Wrap `model`."""
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The summed cross entropy of the logits in fp32."""
        logits = self.model(tokens)
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(0, 1), reduction="sum", ignore_index=-100
        )


def builder(shape: tuple[int, ...], layers: int, length: int, dtype: Any) -> Callable[[], Any]:
    """A function that builds the model."""
    hidden, heads, kv_heads, vocabulary, intermediate = shape
    multiple, factor = WIDTHS[intermediate]
    transformer, arguments = torchtitan_llama()

    def build() -> nn.Module:
        args = arguments(
            dim=hidden, n_layers=layers, n_heads=heads, n_kv_heads=kv_heads,
            vocab_size=vocabulary, multiple_of=multiple, ffn_dim_multiplier=factor,
            max_seq_len=length,
        )  # fmt: skip
        torch.set_default_dtype(dtype)
        try:
            model = transformer(args)
        finally:
            torch.set_default_dtype(torch.float32)
        found = model.layers["0"].feed_forward.w1.weight.shape[0]
        assert found == intermediate, found
        return WithLoss(model)

    return build


def record(name: str) -> dict[str, Any]:
    """One traced case."""
    shape, layers, change = CASES[name]
    options = {"engine": "fsdp2", "world": 8, "sequence_length": 4096} | change
    rows, length = options.get("micro_batch", 1), options["sequence_length"]
    dtype = torch.bfloat16 if options.get("precision") == "bf16" else torch.float32

    def batch() -> dict[str, torch.Tensor]:
        tokens = torch.zeros(rows, length, dtype=torch.int64)
        return {"tokens": tokens, "labels": torch.zeros_like(tokens)}

    report = trace(builder(shape, layers, length, dtype), batch=batch, **options)
    return {
        "case": name, "shape": shape, "layers": layers, "options": options,
        "peak_bytes": report.peak_bytes, "peak_phase": report.peak_phase,
        "steady_bytes": report.steady_bytes, "saved_bytes": report.saved_bytes,
        "phases": {phase: sum(parts.values()) for phase, parts in report.phases.items()},
    }  # fmt: skip


def main() -> None:
    """Trace all and write."""
    records = []
    for name in CASES:
        records.append(record(name))
        print(f"{records[-1]['peak_bytes'] / 2**30:8.3f} GiB  {name}", flush=True)
    TARGET.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
