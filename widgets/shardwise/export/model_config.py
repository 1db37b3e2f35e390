"""The transformers class and config.json of a scenario's model, and the batch that it trains on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.core.catalogue import data_root
from shardwise.core.errors import ScenarioError
from shardwise.core.model import Model
from shardwise.core.scenario import Scenario

# What a checkpoint was saved with, not what the model is.
_NOT_THE_MODEL = (
    "quantization_config", "torch_dtype", "dtype", "transformers_version", "_name_or_path",
    "auto_map", "use_cache", "attn_implementation", "_attn_implementation",
)  # fmt: skip
_TASKS = (
    (r"(Gemma3|Llama4)ForConditionalGeneration", "image-text"),
    (r"WhisperForConditionalGeneration", "speech"),
    (r"T5ForConditionalGeneration", "sequence"),
    (r".+ForMaskedLM", "masked"),
    (r".+ForImageClassification", "image"),
    (r".+(ForCausalLM|LMHeadModel)", "causal"),
)


@dataclass(frozen=True)
class ModelConfig:
    """A model as transformers builds it.

    `task` names the batch that it trains on; `blocks` are the module lists whose entries are
    sharded one by one; `source` is the config that a scenario is made of.
    """

    model: Model
    architecture: str
    task: str
    source: Mapping[str, object]
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The config.json; the 1000 names of ImageNet's classes are their number again."""
        plain = dict(self.source)
        labels = plain.get("id2label")
        if isinstance(labels, Mapping):
            plain = {k: v for k, v in plain.items() if k not in ("id2label", "label2id")}
            plain["num_labels"] = len(labels)
        return json.dumps(plain, indent=2) + "\n"

    @property
    def blocks(self) -> tuple[str, ...]:
        """Module lists of the blocks, in forward order, those of an idle tower too."""
        blocks = (m for m in self.model.modules if m.block is not None and not m.block.prediction)
        names = (module.name.rpartition(".")[0] for module in blocks)
        return tuple(dict.fromkeys(names))


def model_config(scenario: Scenario) -> ModelConfig:
    """The config that transformers reads for this scenario's model.

    Raises:
        ScenarioError: an architecture that transformers doesn't have or that has no training loss,
            or a sequence longer than the model's positions.
    """
    given = scenario.model_source
    notes: tuple[str, ...] = ()
    if isinstance(given, str):
        text = (data_root() / "models" / f"{given}.json").read_text(encoding="utf-8")
        config, model = json.loads(text), scenario.model
    elif isinstance(given, Mapping) and set(given) != {"parameters"}:
        config, model = dict(given), scenario.model
    else:
        config, model, notes = _from_size(scenario.model)
    if not model.known:
        raise ScenarioError(
            "model.architecture", model.architecture, "one whose tensors Shardwise knows exactly"
        )
    task = _task(model.architecture)
    _check_positions(model, scenario.training.sequence_length)
    source = {key: value for key, value in config.items() if key not in _NOT_THE_MODEL}
    source["architectures"] = [model.architecture]
    return ModelConfig(model, model.architecture, task, source, notes)


def _task(architecture: str) -> str:
    for pattern, task in _TASKS:
        if re.fullmatch(pattern, architecture):
            return task
    raise ScenarioError(
        "model.architecture",
        architecture,
        "a class with a training loss: ...ForCausalLM, ...ForMaskedLM, ...ForImageClassification, "
        "T5 or Whisper",
    )


def _check_positions(model: Model, length: int) -> None:
    learned = any(
        tensor.part == "position" and not re.search("relative|vision", tensor.name)
        for tensor in model.tensors
    )
    if not learned and not model.architecture.startswith("GPTJ"):
        return
    # RoBERTa's first position is padding_idx + 1 = 2.
    most = model.max_positions - (2 if "Roberta" in model.architecture else 0)
    if length > most > 0:
        raise ScenarioError(
            "training.sequence_length",
            length,
            f"at most {most}: {model.name or 'the model'} has no more positions",
        )


def _from_size(model: Model) -> tuple[dict[str, object], Model, tuple[str, ...]]:
    """The LLaMA-like decoder that stands for a bare number of parameters."""
    shape, layers = model.block_groups[0]
    config: dict[str, object] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": shape.hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": model.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
    }
    built = Model.from_config(config, name=model.name)
    note = (
        f"Only the size was given: a LLaMA-like decoder of {built.parameters:,} parameters stands "
        f"for {model.parameters:,}."
    )
    return config, built, (note,)
