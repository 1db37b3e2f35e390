"""Architectures and odd sizes that no earlier set had, under settings drawn with a fixed seed.

`data/traces/strangers.json` holds the configs: published sizes of families that the other sets
lack, and models named `odd-`, whose family is known but whose sizes and switches are unusual.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import blind_cases

STRANGERS = Path(__file__).parents[2] / "data" / "traces" / "strangers.json"
LAYER_FIELDS = (
    "num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "n_layers",
    "encoder_layers", "decoder_layers",
)  # fmt: skip
# Positions come from a table, or the scores' bias grows with the square of the length.
LONGEST = blind_cases.LONGEST | {
    "mpt": 8192, "codegen": 2048, "xglm": 2048, "gpt_neo": 2048, "gpt_bigcode": 8192,
    "biogpt": 1024, "openai-gpt": 512, "deberta-v2": 2048, "electra": 512, "albert": 512,
    "distilbert": 512, "camembert": 512, "mpnet": 512, "esm": 1024, "bart": 1024, "mbart": 1024,
    "pegasus": 1024, "m2m_100": 1024, "marian": 512, "mt5": 2048, "deit": 1, "dinov2": 1,
    "swin": 1, "beit": 1, "siglip": 1, "falcon": 4096, "t5": 2048, "gemma3n_text": 8192,
}  # fmt: skip
_PLANNED = (
    "llama", "mistral", "qwen2", "qwen3", "olmo3", "cohere", "cohere2", "glm", "glm4", "exaone4",
    "ernie4_5", "smollm3", "granite", "nemotron", "seed_oss", "arcee", "apertus", "helium",
    "ministral3", "starcoder2", "phi",
)  # fmt: skip

Case = dict[str, Any]


def strangers() -> dict[str, dict[str, Any]]:
    """Every config by its name."""
    known: dict[str, dict[str, Any]] = json.loads(STRANGERS.read_text(encoding="utf-8"))
    return known


def shallow(config: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """The config with fewer layers if asked, and its lists by layer cut to them."""
    if layers is None:
        return config
    if isinstance(config.get("vision_config"), dict):
        config["vision_config"] = shallow(config["vision_config"], layers)
    for field in LAYER_FIELDS:
        if field in config:
            config[field] = layers
    for field in ("layer_types", "intermediate_size"):
        if isinstance(config.get(field), list):
            config[field] = config[field][:layers]
    if "hybrid_override_pattern" in config:
        config["hybrid_override_pattern"] = config["hybrid_override_pattern"][:layers]
    if isinstance(config.get("attention_types"), list):
        config["attention_types"] = [[[kind], 1] for kind in ("global", "local") * layers][:layers]
    return config


def strange(seed: int, times: int = 2) -> dict[str, Case]:
    """Each model `times` times: layers and settings as `blind` draws them, and a tensor axis."""
    draw, found = Random(seed), {}
    for model, config in strangers().items():
        for turn in range(times):
            arguments = blind_cases.drawn(draw, config, LONGEST)
            layers = draw.choice((2, 3, 4))
            arguments |= _axes(draw, config, arguments)
            fused = arguments["optimizer_implementation"] == "fused"
            if fused and arguments["engine"] == "fsdp2" and arguments["optimizer"] != "adamw":
                arguments["optimizer_implementation"] = "foreach"
            words = [f"{key}={value}" for key, value in arguments.items()]
            name = f"strange {seed}-{turn + 1} {model} layers={layers} {' '.join(words)}"
            found[name] = {
                "model": model, "layers": layers, "arguments": arguments, "set": f"strange {seed}",
            }  # fmt: skip
    return found


def _axes(draw: Random, config: dict[str, Any], arguments: Case) -> Case:
    """Tensor parallelism where torch's own styles can run the plan and heads divide."""
    if config["model_type"] in _PLANNED and draw.random() < 0.4:
        planned = {**config, "model_type": "llama"}
        return blind_cases.axes(draw, planned, arguments)
    return {}
