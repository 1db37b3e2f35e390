"""Scenarios drawn at random with a fixed seed: traced once, then compared before anything changes.

A draw never looks at an estimate. `BLIND` names every set that was ever drawn, so that the figures
in `data/traces/README.md` can be read as what they are: the first comparison of each set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

MODELS = Path(__file__).parents[2] / "data" / "models"
# Left out: two-tower models whose config nests (gemma-3-4b, llama-4), Whisper (no token ids go into
# its encoder), Mamba (its scan is a loop over the tokens in Python; `recurrent` draws it short).
_LEFT_OUT = ("gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "llama-4", "whisper", "mamba")
# Families that came after the first three sets were drawn.
_LATER = (
    "bamba",
    "falcon-h1",
    "falcon-mamba",
    "granite",
    "jamba",
    "lfm2",
    "nemotron",
    "qwen3-next",
)
# Positions are looked up in a table, or the scores' bias grows with the square of the length.
LONGEST = {
    "gpt2": 1024, "opt": 2048, "bert": 512, "roberta": 512, "xlm-roberta": 512, "gptj": 2048,
    "t5": 2048, "bloom": 8192, "falcon": 32768, "vit": 1,
}  # fmt: skip
_LENGTHS = (512, 1024, 2048, 3072, 4096, 8192, 16384, 32768, 65536, 131072)
_WORLDS = (1, 2, 4, 6, 8, 16, 24, 32, 64, 128, 256, 512, 1024)
_MOST_TOKENS = 131072

Case = dict[str, Any]


def models() -> dict[str, dict[str, Any]]:
    """Every catalogue model that the tracer can run, with its config."""
    found = {}
    for path in sorted(MODELS.glob("*.json")):
        if not path.stem.startswith(_LEFT_OUT + _LATER):
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
    return found


def blind(seed: int, count: int) -> dict[str, Case]:
    """`count` draws by name: model, layers, the arguments of `trace`, and the set's name.

    A draw that torch itself refuses is dropped: fused SGD has no strategy for FSDP2's DTensors.
    """
    draw, found = Random(seed), {}
    known = models()
    for number in range(1, count + 1):
        model = draw.choice(list(known))
        arguments = drawn(draw, known[model])
        words = [f"{key}={value}" for key, value in arguments.items()]
        layers = draw.choice((2, 3, 4, 5, 6))
        fused = arguments["optimizer_implementation"] == "fused"
        if fused and arguments["engine"] == "fsdp2" and arguments["optimizer"] != "adamw":
            continue
        name = f"blind {seed}-{number:02d} {model} layers={layers} {' '.join(words)}"
        found[name] = {
            "model": model, "layers": layers, "arguments": arguments, "set": f"blind {seed}",
        }  # fmt: skip
    return found


def drawn(
    draw: Random, config: Mapping[str, Any], longest: Mapping[str, int] = LONGEST
) -> dict[str, Any]:
    """Engine, world, shape, checkpointing, precision, optimizer and attention of one case."""
    kind = config["model_type"]
    engine = draw.choice(("fsdp2",) * 5 + ("ddp",) * 3 + ("none",))
    world = 1 if engine == "none" else draw.choice(_WORLDS)
    length = draw.choice([n for n in _LENGTHS if n <= longest.get(kind, 131072)] or [1])
    fits = [size for size in (1, 1, 1, 2, 3, 4) if size * length <= _MOST_TOKENS]
    arguments: dict[str, Any] = {
        "engine": engine,
        "world": world,
        "sequence_length": length,
        "micro_batch": draw.choice(fits),
        "micro_batches": draw.choice((1, 1, 1, 2, 3)),
        "precision": _precision(draw, engine, config),
        "activation_checkpointing": draw.choice(("none", "none", "full", {"every": 2})),
        "optimizer": draw.choice(("adamw", "adamw", "adamw", "sgd", "sgd-momentum")),
        "optimizer_implementation": draw.choice(("foreach", "foreach", "fused", "for-loop")),
        "attention": draw.choice(("flash",) * 6 + ("math", "eager")),
    }
    if engine == "fsdp2":
        arguments["reshard_after_forward"] = draw.choice((True, True, False))
    return arguments


def _precision(draw: Random, engine: str, config: Mapping[str, Any]) -> str:
    """Grouped expert products take bf16 weights only."""
    experts = any("expert" in key or key == "moe_topk" for key in config)
    if engine == "fsdp2":
        kinds = ("fsdp-mixed", "fsdp-mixed", "fsdp-mixed", "bf16", "fp32")
        return draw.choice(kinds[: 4 if experts else 5])
    return "bf16" if experts else draw.choice(("bf16", "autocast", "fp32"))


# Kinds whose plan torch's own styles can run, with heads that divide.
_PLANNED = ("llama", "mistral", "qwen2", "qwen3", "olmo", "phi", "starcoder2")


def wider(seed: int, count: int) -> dict[str, Case]:
    """As `blind`, with tensor parallelism, hybrid sharding, and two more kinds drawn on top."""
    draw, found = Random(seed + 1), {}
    known = models()
    for name, case in blind(seed, count).items():
        arguments = dict(case["arguments"])
        if draw.random() < 0.15:
            arguments["attention"] = "efficient"
        if arguments["activation_checkpointing"] == "full" and draw.random() < 0.3:
            arguments["activation_checkpointing"] = "selective"
        arguments |= axes(draw, known[case["model"]], arguments)
        words = [f"{key}={value}" for key, value in arguments.items()]
        number = name.split()[1]
        full = f"blind {number} {case['model']} layers={case['layers']} {' '.join(words)}"
        found[full] = {**case, "arguments": arguments}
    return found


def axes(draw: Random, config: Mapping[str, Any], arguments: Case) -> Case:
    """A tensor axis by one of the plans, or replicas of the shards, or neither."""
    world, engine = arguments["world"], arguments["engine"]
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 1
    degrees = [t for t in (2, 4, 8) if heads % t == 0 and (engine == "none" or world % t == 0)]
    kind = config["model_type"]
    if kind in _PLANNED and engine != "ddp" and degrees and draw.random() < 0.6:
        tensor = draw.choice(degrees)
        tied = config.get("tie_word_embeddings", kind == "starcoder2")
        split = tied or draw.random() < 0.6
        window = config.get("sliding_window") or 10**9
        if kind == "qwen2" and not config.get("use_sliding_window"):
            window = 10**9
        short = split and arguments["sequence_length"] % tensor == 0
        short = short and window > arguments["sequence_length"]
        by_sequence = short and draw.random() < 0.5
        world = tensor if engine == "none" else world
        axes = {"world": world, "tensor_parallel": tensor, "vocabulary_parallel": bool(split)}
        return axes | {"sequence_parallel": bool(by_sequence)}
    replicas = [r for r in (2, 4, 8) if world % r == 0 and world > r]
    if engine == "fsdp2" and replicas and draw.random() < 0.3:
        return {"replicate": draw.choice(replicas)}
    return {}


# The scan is a loop over the tokens in Python: short sequences, so that a trace takes seconds.
_LOOPED = ("mamba-130m", "mamba-2.8b", "falcon-mamba", "jamba")


def recurrent(seed: int, count: int) -> dict[str, Case]:
    """`count` draws: two of three from state-space, linear-attention and hybrid families."""
    draw, found = Random(seed), {}
    later = {}
    for path in sorted(MODELS.glob("*.json")):
        if path.stem.startswith((*_LATER, "mamba")):
            later[path.stem] = json.loads(path.read_text(encoding="utf-8"))
    earlier = models()
    for number in range(1, count + 1):
        known = later if draw.random() < 2 / 3 else earlier
        model = draw.choice(list(known))
        arguments = drawn(draw, known[model])
        if arguments["attention"] == "math":
            arguments["attention"] = "flash"
        looped = model.startswith(_LOOPED)
        shortest = (32, 50, 64, 100) if looped else (300, 512, 1000, 1024, 2048, 4096)
        length = min(draw.choice(shortest), LONGEST.get(known[model]["model_type"], 4096))
        arguments |= {"sequence_length": length, "micro_batches": draw.choice((1, 1, 2))}
        layers = draw.choice((2, 3)) if looped else draw.choice((2, 4, 6))
        if model.startswith("jamba"):
            layers = 5  # the fifth attends
        fused = arguments["optimizer_implementation"] == "fused"
        if fused and arguments["engine"] == "fsdp2" and arguments["optimizer"] != "adamw":
            continue
        words = [f"{key}={value}" for key, value in arguments.items()]
        name = f"blind {seed}-{number:02d} {model} layers={layers} {' '.join(words)}"
        found[name] = {
            "model": model, "layers": layers, "arguments": arguments, "set": f"blind {seed}",
        }  # fmt: skip
    return found


BLIND: dict[str, Case] = blind(2026, 48) | wider(7, 100) | wider(11, 60) | recurrent(31, 54)
