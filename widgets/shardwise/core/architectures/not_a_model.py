"""Files that people paste instead of a model's config.json, and what to paste instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.core.errors import ScenarioError

_ALLOWED = "a model's config.json"


@dataclass(frozen=True)
class OtherFile:
    """One kind of file: the keys that give it away, and the way out."""

    keys: tuple[str, ...]
    hint: str
    # Keys that a model's config holds as well; the file is refused only without them.
    unless: tuple[str, ...] = ("model_type", "architectures")


OTHER_FILES = (
    OtherFile(
        ("peft_type",),
        "this is a LoRA adapter's adapter_config.json; paste the config.json of its base model "
        "and set LoRA under training",
        unless=(),
    ),
    OtherFile(
        ("weight_map",),
        "this is the index of a checkpoint's shards; paste the config.json that lies beside it",
    ),
    OtherFile(
        ("_class_name", "_diffusers_version"),
        "this is a diffusers configuration; give the model's parameters as a number instead",
    ),
    OtherFile(
        ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
        "this is a DeepSpeed configuration; paste the model's config.json here",
    ),
    OtherFile(
        ("compute_environment", "distributed_type"),
        "this is an accelerate configuration; paste the model's config.json here",
    ),
    OtherFile(
        ("tokenizer_class", "added_tokens_decoder", "chat_template", "added_tokens"),
        "this is a tokenizer's file; paste the config.json that lies beside it",
        unless=("model_type", "architectures", "hidden_size", "n_embd", "d_model"),
    ),
    OtherFile(
        ("image_processor_type", "feature_extractor_type", "processor_class"),
        "this is a preprocessor's file; paste the config.json that lies beside it",
        unless=("model_type", "architectures", "hidden_size", "n_embd", "d_model"),
    ),
    OtherFile(
        ("_from_model_config", "do_sample", "temperature", "max_new_tokens"),
        "this is a generation_config.json; paste the config.json that lies beside it",
        unless=("model_type", "architectures", "hidden_size", "n_embd", "d_model"),
    ),
    OtherFile(
        ("auto_mapping", "r", "lora_alpha"),
        "this is a LoRA adapter's configuration; paste the config.json of its base model",
    ),
)


def refuse_other_files(config: Mapping[str, Any]) -> None:
    """Raise when the object is another well-known file, empty, or without one model field."""
    if not config:
        raise ScenarioError("config.json", {}, _ALLOWED, "the object is empty")
    for other in OTHER_FILES:
        if any(key in config for key in other.keys) and not any(k in config for k in other.unless):
            key = next(key for key in other.keys if key in config)
            raise ScenarioError("config.json", f"a file with {key}", _ALLOWED, other.hint)
