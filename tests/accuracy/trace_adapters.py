"""Traces LoRA steps of real peft models: the yardstick of `training.trainable`.

    python tests/accuracy/trace_adapters.py              # cases that aren't in the file yet
    python tests/accuracy/trace_adapters.py --again      # all of them

Writes `data/traces/adapters.json`: each case's arguments and what was traced, phases by part too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from trace_cases import TARGET, config_of

from shardwise.lab.trace import TraceReport, trace

FILE = TARGET / "adapters.json"
DTYPES = {"16-bit": "bf16", "fp32": "fp32", "nf4": "bf16", "int8": "bf16"}


def case(
    model: str,
    layers: int | None,
    *,
    rank: int = 16,
    targets: Any = "default",
    dropout: float = 0.0,
    base: str = "16-bit",
    vocabulary: int | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """One case: a model, its adapters, and the arguments of `trace`."""
    adapters = {"rank": rank, "targets": targets, "dropout": dropout, "base": base}
    given = {"engine": "ddp", "world": 8, "precision": "bf16", "sequence_length": 2048} | arguments
    return {
        "model": model,
        "layers": layers,
        "vocabulary": vocabulary,
        "lora": adapters,
        "arguments": given,
    }


_FSDP: dict[str, Any] = {"engine": "fsdp2", "precision": "fsdp-mixed"}
_AUTOCAST: dict[str, Any] = {"precision": "autocast"}
_FULL: dict[str, Any] = {"activation_checkpointing": "full"}
_ONE_B, _ALL = "llama-3.2-1b", "all-linear"
CASES: tuple[dict[str, Any], ...] = (
    case(_ONE_B, None),
    case(_ONE_B, None, **_FULL),
    case(_ONE_B, None, targets=_ALL),
    case(_ONE_B, None, targets=_ALL, dropout=0.05),
    case(_ONE_B, None, **_AUTOCAST),
    case(_ONE_B, None, targets=_ALL, dropout=0.05, **_AUTOCAST),
    case(_ONE_B, None, targets=_ALL, dropout=0.05, **_AUTOCAST, **_FULL),
    case(_ONE_B, None, base="fp32", **_AUTOCAST),
    case(_ONE_B, None, **_FSDP),
    case(_ONE_B, None, base="fp32", targets=_ALL, **_FSDP),
    case(_ONE_B, None, targets=_ALL, **_FSDP, **_FULL),
    case(_ONE_B, None, reshard_after_forward=False, **_FSDP),
    case(_ONE_B, None, micro_batches=2, **_FSDP),
    case(_ONE_B, None, vocabulary=1024, sequence_length=8192),
    case(_ONE_B, None, vocabulary=1024, sequence_length=8192, targets=_ALL, **_FSDP),
    case(_ONE_B, None, vocabulary=1024, sequence_length=16384, targets=_ALL, **_FULL),
    case(
        _ONE_B, None, vocabulary=1024, sequence_length=16384, targets=_ALL, dropout=0.05,
        **_AUTOCAST, **_FULL,
    ),
    case("llama-3-8b", 8, rank=64, targets=["q_proj", "k_proj", "v_proj", "o_proj"], **_FSDP),
    case("llama-3-8b", 8, rank=64, targets=_ALL, world=64, **_FSDP),
    case("mistral-7b", 8, targets=["gate_proj", "up_proj", "down_proj"], sequence_length=4096),
    case("llama-2-7b", 8, targets=_ALL, vocabulary=1024, sequence_length=4096, **_FSDP),
    case("qwen2.5-0.5b", None, targets=_ALL, **_AUTOCAST),
    case("qwen3-0.6b", None, **_FSDP),
    case("gemma-2-2b", 8, targets=_ALL, **_FSDP),
    case("gpt2", None, targets=["c_attn", "attn.c_proj"], sequence_length=1024),
    case("opt-125m", None, sequence_length=1024),
    case("pythia-160m", None, targets=_ALL, **_FSDP),
    case("phi-3-mini", 8, targets=_ALL),
    case("mixtral-8x7b", 4, targets=["q_proj", "v_proj"], **_FSDP),
    case(_ONE_B, None, base="nf4"),
    case(_ONE_B, None, base="nf4", vocabulary=1024, sequence_length=8192),
    case(_ONE_B, None, base="nf4", vocabulary=1024, sequence_length=8192, targets=_ALL, **_FULL),
    case("llama-2-7b", 8, base="nf4", rank=64, targets=_ALL, sequence_length=1024, **_FULL),
    case(_ONE_B, None, base="int8"),
    case(_ONE_B, None, base="int8", vocabulary=1024, sequence_length=8192, targets=_ALL, **_FULL),
)  # fmt: skip


def name_of(one: dict[str, Any]) -> str:
    """The case in words."""
    words = [f"{key}={value}" for key, value in (one["lora"] | one["arguments"]).items()]
    small = f" vocabulary={one['vocabulary']}" if one["vocabulary"] else ""
    return f"{one['model']}{small} {' '.join(words)}"


def config_for(one: dict[str, Any]) -> dict[str, Any]:
    """The case's config.json."""
    config = config_of(one["model"], one["layers"])
    if one["vocabulary"]:
        config["vocab_size"] = one["vocabulary"]
        config |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return config


def moved(module: Any, device: Any = None, dtype: Any = None) -> Any:
    """`nn.Module.to` on fake tensors, whose storages cannot be swapped."""
    from torch import nn

    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if dtype is not None and parameter.dtype != dtype:
                setattr(owner, name, nn.Parameter(parameter.detach().to(dtype)))
    return module


def quantized(model: Any, base: str) -> None:
    """Let the blocks' linear layers run bitsandbytes' own autograd functions on its own tensors.

    The weight is a plain tensor, as fake ones take no `Params4bit` or `Int8Params` around them.
    """
    import bitsandbytes
    from bitsandbytes.autograd._functions import MatMul4Bit, MatMul8bitLt, MatmulLtState
    from torch import nn

    class FourBit(nn.Linear):
        def forward(self, x: Any) -> Any:
            return MatMul4Bit.apply(x, self.weight.t(), None, self.bias, self.state)

    class EightBit(nn.Linear):
        def forward(self, x: Any) -> Any:
            return MatMul8bitLt.apply(x, self.weight, None, self.bias, self.state)

    for name, module in list(model.named_modules()):
        if type(module) is not nn.Linear or name == "lm_head":
            continue
        weight = module.weight.data
        if base == "nf4":
            stored, module.state = bitsandbytes.functional.quantize_4bit(weight, quant_type="nf4")
            statistics = module.state.absmax
        else:
            stored, statistics, _ = bitsandbytes.functional.int8_vectorwise_quant(weight.half())
            module.state = MatmulLtState()
            module.state.CB, module.state.SCB = stored, statistics
            module.state.has_fp16_weights = False
        module.weight = nn.Parameter(stored, requires_grad=False)
        module.register_buffer("statistics", statistics)
        module.__class__ = FourBit if base == "nf4" else EightBit


def adapted(one: dict[str, Any]) -> Callable[[], Any]:
    """A function that builds the case's peft model, as its documentation does it.

    Adapters are fp32 (peft's `autocast_adapter_dtype`) except in a pure bf16 run.
    """

    def build() -> Any:
        import torch
        from peft import LoraConfig, get_peft_model
        from torch import nn

        from shardwise.lab.tracing.build import from_config
        from shardwise.lab.tracing.settings import Settings

        lora, arguments = one["lora"], one["arguments"]
        attention = arguments.get("attention", "flash")
        dtype = DTYPES[lora["base"]]
        settings = Settings(engine="none", world=1, precision=dtype, attention=attention)
        model = from_config(config_for(one), settings)
        if lora["base"] in ("nf4", "int8"):
            quantized(model, lora["base"])
        if arguments.get("activation_checkpointing", "none") != "none":
            model.enable_input_require_grads()
        targets = None if lora["targets"] == "default" else lora["targets"]
        config = LoraConfig(
            r=lora["rank"],
            target_modules=targets,
            lora_dropout=lora["dropout"],
            fan_in_fan_out=one["model"].startswith("gpt2"),
            task_type="CAUSAL_LM",
        )
        with mock.patch.object(nn.Module, "to", moved):
            cast = arguments["precision"] != "bf16"
            model = get_peft_model(model, config, autocast_adapter_dtype=cast)
            if not cast:  # what peft takes from a quantized layer's `compute_dtype`
                for name, module in model.named_modules():
                    if "lora_" in name:
                        module.to(dtype=torch.bfloat16)
            return model

    return build


def record_of(one: dict[str, Any], report: TraceReport) -> dict[str, Any]:
    """What is kept of a traced case."""
    return one | {
        "case": name_of(one),
        "parameters": report.parameters,
        "peak_bytes": report.peak_bytes,
        "peak_phase": report.peak_phase,
        "steady_bytes": report.steady_bytes,
        "saved_bytes": report.saved_bytes,
        "phases": report.phases,
        "seconds": round(report.seconds, 1),
    }


def main() -> None:
    """Trace and write, after every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true")
    again = parser.parse_args().again
    records: dict[str, Any] = {}
    if FILE.exists() and not again:
        records = {one["case"]: one for one in json.loads(FILE.read_text())}
    for one in CASES:
        name = name_of(one)
        if name in records:
            continue
        try:
            report = trace(adapted(one), **one["arguments"])
        except Exception as error:  # one that fails must not lose the others
            print(f"FAILED {name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            continue
        records[name] = record_of(one, report)
        FILE.write_text(json.dumps(list(records.values()), indent=0) + "\n")
        print(f"{report.seconds:6.1f} s {report.peak_bytes / 2**30:8.3f} GiB {name}", flush=True)


if __name__ == "__main__":
    main()
