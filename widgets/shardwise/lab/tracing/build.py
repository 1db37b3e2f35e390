"""Builds the model, its batch and its layers, on whatever device is pretended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from shardwise.core.errors import ScenarioError
from shardwise.lab.tracing.settings import Settings

_DTYPES = {"bf16": torch.bfloat16}


def from_config(config: Any, settings: Settings) -> nn.Module:
    """The model that transformers builds from a config object, a config dict or a JSON file."""
    from transformers.initialization import no_init_weights

    config = _config_object(config)
    # None: transformers takes sdpa where the architecture has it, else eager.
    config._attn_implementation = "eager" if settings.attention == "eager" else None
    config.use_cache = config.get_text_config().use_cache = False
    dtype = _DTYPES.get(settings.precision, torch.float32)
    with no_init_weights():  # initial values cost time and read data that fake tensors don't have
        task = "image-text" if settings.images else settings.task
        model = _auto_class(config, task).from_config(config, dtype=dtype)
    model.tie_weights()  # part of the initialization that was left out
    return model.train()


def _config_object(config: Any) -> Any:
    from transformers import AutoConfig, PretrainedConfig

    if isinstance(config, PretrainedConfig):
        return config
    if isinstance(config, Mapping):
        values = dict(config)
        kind = values.pop("model_type", None)
        if not kind:
            raise ScenarioError("config", config, "a config.json with a model_type")
        return AutoConfig.for_model(kind, **values)
    return AutoConfig.from_pretrained(config)


def _auto_class(config: Any, task: str) -> Any:
    import transformers
    from transformers.models.auto import modeling_auto

    tasks = {
        "causal-lm": ("AutoModelForCausalLM", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        "masked-lm": ("AutoModelForMaskedLM", modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        "seq2seq-lm": (
            "AutoModelForSeq2SeqLM",
            modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        ),
        "image-classification": (
            "AutoModelForImageClassification",
            modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        ),
        "image-text": (
            "AutoModelForImageTextToText",
            modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        ),
    }
    kind = task if task != "auto" else _task_of(config, tasks)
    return getattr(transformers, tasks[kind][0])


def _task_of(config: Any, tasks: Mapping[str, Any]) -> str:
    # Encoders also have a causal head in transformers (BertLMHeadModel), so those go first.
    for kind in ("seq2seq-lm", "masked-lm", "causal-lm", "image-classification"):
        if config.model_type in tasks[kind][1]:
            return kind
    raise ScenarioError("model_type", config.model_type, "a model with a language or image head")


def batch_of(model: nn.Module, settings: Settings, device: torch.device) -> dict[str, Any]:
    """One micro-batch: token ids and labels, or pixels and labels."""
    config = getattr(model, "config", None)
    shape = (settings.micro_batch, settings.sequence_length)
    if config is not None and hasattr(config, "image_size") and hasattr(config, "patch_size"):
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        dtype = _DTYPES.get(settings.precision, torch.float32)
        return {
            "pixel_values": torch.zeros(
                settings.micro_batch, config.num_channels, height, width, dtype=dtype, device=device
            ),
            "labels": torch.zeros(settings.micro_batch, dtype=torch.int64, device=device),
        }
    tokens = torch.zeros(shape, dtype=torch.int64, device=device)
    batch = {"input_ids": tokens, "labels": torch.zeros_like(tokens)}
    if settings.images:
        batch["pixel_values"] = _pictures(config, settings, device)
    if settings.sequence_parallel:  # the model would number the positions of its part only
        batch["position_ids"] = torch.arange(settings.sequence_length, device=device)[None]
    return batch


def _pictures(config: Any, settings: Settings, device: torch.device) -> torch.Tensor:
    tower = getattr(config, "vision_config", None)
    if tower is None:
        kind = getattr(config, "model_type", "a module")
        raise ScenarioError("images", settings.images, f"0: {kind} has no vision tower")
    count, side = settings.micro_batch * settings.images, tower.image_size
    dtype = _DTYPES.get(settings.precision, torch.float32)
    return torch.zeros(count, tower.num_channels, side, side, dtype=dtype, device=device)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The repeated layers: children of the outermost `nn.ModuleList`s and `nn.ModuleDict`s."""
    found: list[nn.Module] = []

    def walk(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, nn.ModuleList):
                found.extend(child)
            elif isinstance(child, nn.ModuleDict):  # torchtitan's layers, by their number
                found.extend(child.values())
            else:
                walk(child)

    walk(model)
    return found
