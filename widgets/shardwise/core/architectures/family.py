"""What a family of architectures states about itself, and what its builder hands back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.core.config_fields import ConfigFields
from shardwise.core.structure import Module


@dataclass(frozen=True)
class Draft:
    """A model's modules and sizes, before its name and assumptions are known."""

    modules: tuple[Module, ...]
    hidden: int
    vocabulary: int
    max_positions: int
    tied: bool
    fixed_sequence: int = 0


@dataclass(frozen=True)
class Family:
    """One `model_type` of transformers: its classes, its config's defaults and its builder.

    `classes` maps a transformers class to the head it adds (lm, none, classify, tokens ...); the
    first is taken when the config names none. `defaults` are those of the config class; `required`
    are fields that every saved config of the family holds, so that one without them is refused.
    """

    model_type: str
    config_class: str
    classes: Mapping[str, str]
    defaults: Mapping[str, Any]
    build: Callable[[ConfigFields, str], Draft]
    required: tuple[str, ...] = ("hidden_size", "num_hidden_layers")

    @property
    def label(self) -> str:
        """How sentences name the config class."""
        return f"transformers' {self.config_class}"


_CLASSIFIERS = {"classify": "ForSequenceClassification", "tokens": "ForTokenClassification"}


def decoder_classes(
    prefix: str, *, causal: str = "ForCausalLM", heads: tuple[str, ...] = ("classify", "tokens")
) -> dict[str, str]:
    """The classes of a causal decoder: with a language-model head, bare, and classifying."""
    return {f"{prefix}{causal}": "lm", f"{prefix}Model": "none"} | {
        f"{prefix}{_CLASSIFIERS[head]}": head for head in heads
    }


def defaults(
    vocabulary: int,
    hidden: int,
    width: int | None,
    layers: int,
    heads: int,
    kv_heads: int | None = None,
    *,
    tied: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """A config class's defaults; None where the class computes the field from others."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied,
        **more,
    }
