"""Decoders whose layers take turns between a state-space mixer and attention: one assembly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.core.architectures.decoder import EMBEDDING, HEAD
from shardwise.core.architectures.family import Draft
from shardwise.core.architectures.templates import ALWAYS, Rows, Sizes, linear, norm, unit
from shardwise.core.config_fields import ConfigFields
from shardwise.core.errors import ScenarioError
from shardwise.core.structure import BlockShape, Module

MIXER, ATTENTION = "linear_attention", "full_attention"
# transformers/configuration_utils.py, _LEGACY_LAYER_TYPE_REMAP: names of older configs.
_OLDER = {"mamba": MIXER, "attention": ATTENTION}


@dataclass(frozen=True)
class Layer:
    """One kind of layer: its template and its shape."""

    template: Rows
    shape: BlockShape


@dataclass(frozen=True)
class Hybrid:
    """One hybrid family: sizes, the kind of each layer, and what each kind is made of."""

    sizes: Callable[[ConfigFields], dict[str, int]]
    kinds: Callable[[ConfigFields], Sequence[str]]
    layers: Callable[[ConfigFields, Sizes], Mapping[str, Layer]]
    embedding: str = "embed_tokens"
    final_norm: str = "norm"

    def build(self, fields: ConfigFields, head: str) -> Draft:
        """The whole model."""
        sizes = {"vocabulary": fields.whole("vocab_size"), **self.sizes(fields)}
        tied = fields.flag("tie_word_embeddings") and head == "lm"
        base = "" if head == "none" else "model."
        modules: tuple[Module, ...] = unit(f"{base}{self.embedding}", "embedding", EMBEDDING, sizes)
        layers = self.layers(fields, sizes)
        for index, kind in enumerate(self.kinds(fields)):
            layer = layers[kind]
            name = f"{base}layers.{index}"
            modules += unit(name, "block", layer.template, sizes, layer.shape)
        modules += unit(f"{base}{self.final_norm}", "norm", norm(""), sizes)
        if head == "lm" and not tied:
            modules += unit("lm_head", "head", HEAD, sizes)
        if head in ("classify", "tokens"):
            bias = ALWAYS if head == "tokens" else ""
            score = linear("", "labels", "hidden", "head", bias=bias)
            modules += unit("score", "head", score, {**sizes, "labels": fields.labels()})
        positions = fields.optional("max_position_embeddings", counts=False) or 0
        return Draft(modules, sizes["hidden"], sizes["vocabulary"], positions, tied)


def listed_kinds(fields: ConfigFields, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The layers' kinds as the config lists them, under the first of `names` that it has."""
    for name in names:
        if fields.config.get(name) is not None:
            kinds = fields.texts(name, fields.layer_count()) or ()
            return tuple(_OLDER.get(kind, kind) for kind in kinds)
    return None


def known_kinds(
    fields: ConfigFields, name: str, kinds: Sequence[str], allowed: tuple[str, ...]
) -> Sequence[str]:
    """The same kinds, each one that the family has."""
    for kind in kinds:
        if kind not in allowed:
            raise ScenarioError(fields.spelled(name), kind, f"one of {', '.join(allowed)}")
    return kinds
