"""Families beyond the catalogue: our tensors against those of transformers' meta device."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.core.memory import estimate
from shardwise.core.model import Model
from shardwise.core.scenario import Scenario

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

STRANGERS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "traces" / "strangers.json").read_text(encoding="utf-8")
)
EXACT = (
    "olmo-3-7b", "phi-3.5-moe", "command-r7b", "command-r", "command-r-plus", "glm-4-9b",
    "glm-4-9b-0414", "glm-4.5-air", "exaone-4-1.2b", "exaone-4-32b", "ernie-4.5-0.3b",
    "ernie-4.5-21b-a3b", "hunyuan-1.8b", "hunyuan-a13b", "smollm3-3b", "granite-3.3-2b",
    "granite-3.1-1b-a400m", "stablelm-2-1.6b", "minitron-4b", "seed-oss-36b", "afm-4.5b",
    "codegen-2b", "starcoderbase-1b", "helium-2b", "vaultgemma-1b", "minimax-m2",
    "flex-olmo-7x7b", "dots1", "ministral-3-3b",
)  # fmt: skip
ENCODERS = ("modernbert-base", "electra-base", "electra-small", "distilbert-base", "camembert-base",
            "eurobert-210m")  # fmt: skip
GUESSED = (
    "xglm-564m",
    "jetmoe-8b",
    "persimmon-8b",
    "minicpm3-4b",
    "diffllama-375m",
    "deberta-v3-base",
)


def shallow(config: dict[str, Any], layers: int = 4) -> dict[str, Any]:
    """The same model with few layers."""
    small = copy.deepcopy(config)
    field = next((name for name in ("n_layer", "n_layers", "num_layers") if name in small), None)
    small[field or "num_hidden_layers"] = layers
    if "layer_types" in small:
        small["layer_types"] = small["layer_types"][:layers]
    return small


def config_class(config: dict[str, Any]) -> Any:
    """transformers' config class of this model type."""
    names = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    return getattr(transformers, names[config["model_type"]])


@pytest.mark.parametrize("name", EXACT)
def test_every_tensor_is_that_of_transformers(name: str) -> None:
    """Names, shapes, order and total are those of `named_parameters()`; the model is known."""
    config = shallow(STRANGERS[name])
    with torch.device("meta"):
        real = transformers.AutoModelForCausalLM.from_config(config_class(config).from_dict(config))
    ours = Model.from_config({**config, "architectures": [type(real).__name__]})
    expected = [(key, tuple(value.shape)) for key, value in real.named_parameters()]
    assert [(tensor.name, tensor.shape) for tensor in ours.tensors] == expected
    assert ours.known


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("task", ["MaskedLM", "SequenceClassification", "TokenClassification"])
def test_every_tensor_of_an_encoder_is_that_of_transformers(name: str, task: str) -> None:
    """With each head, and bare: shapes and total are those of `named_parameters()`."""
    config = shallow(STRANGERS[name])
    maker = getattr(transformers, f"AutoModelFor{task}")
    with torch.device("meta"):
        real = maker.from_config(config_class(config).from_dict(config))
    kind = type(real).__name__
    ours = Model.from_config({**config, "architectures": [kind]})
    if not ours.known:
        pytest.skip(f"{kind} is counted with a guess, and says so")
    expected = sorted(tuple(value.shape) for value in real.parameters())
    assert sorted(tensor.shape for tensor in ours.tensors) == expected


@pytest.mark.parametrize("name", EXACT)
def test_missing_sizes_are_the_class_defaults(name: str) -> None:
    """A config with two fields alone has as many parameters as the class with its defaults."""
    if "n_layer" in STRANGERS[name]:
        pytest.skip("its sizes have other names")
    kept = ("model_type", "hidden_size", "num_hidden_layers", "num_experts_per_tok")
    more = ("n_routed_experts", "n_shared_experts", "layer_types", "num_key_value_heads")
    more += ("num_attention_heads", "head_dim", "sliding_window")
    config = {k: v for k, v in shallow(STRANGERS[name]).items() if k in (*kept, *more)}
    with torch.device("meta"):
        real = transformers.AutoModelForCausalLM.from_config(config_class(config).from_dict(config))
    ours = Model.from_config({**config, "architectures": [type(real).__name__]})
    assert ours.parameters == sum(value.numel() for value in real.parameters())


@pytest.mark.parametrize("name", GUESSED)
def test_a_guess_never_says_that_it_fits(name: str) -> None:
    """Even a tiny part of the card is no sure fit where tensors are guessed."""
    laid = {
        "model": shallow(STRANGERS[name], 1),
        "training": {"sequence_length": 128},
        "cluster": {"gpu": "h200-sxm-141gb"},
    }
    report = estimate(Scenario.from_dict(laid))
    assert not report.scenario.model.known
    assert report.verdict == "uncertain"
