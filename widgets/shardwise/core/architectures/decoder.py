"""Causal decoders: one assembly for all of them, from the templates that a family states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise.core.architectures.family import Draft
from shardwise.core.architectures.templates import (
    ALWAYS,
    VOCABULARY,
    Rows,
    Sizes,
    linear,
    norm,
    tensor,
    unit,
)
from shardwise.core.config_fields import ConfigFields
from shardwise.core.errors import ScenarioError
from shardwise.core.structure import BlockShape, Module

EMBEDDING = tensor("weight", "vocabulary", "hidden", part="embedding", cut=VOCABULARY)
HEAD = tensor("weight", "vocabulary", "hidden", part="head", cut=VOCABULARY)
# A switch of the templates: a constant, or the config's own flag.
Switches = Mapping[str, bool | str]
# What one layer changes of the family's block shape: its window, its rotary embedding.
Pattern = Callable[[ConfigFields, int], Sequence[Mapping[str, Any]]]


def same_everywhere(fields: ConfigFields, layers: int) -> Sequence[Mapping[str, Any]]:
    """Every layer as the family states it."""
    return ({},) * layers


def never_sparse(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """No layer has experts."""
    return (False,) * layers


def given_width(fields: ConfigFields, hidden: int) -> int:
    """The MLP's width as the config gives it."""
    return fields.whole("intermediate_size")


def no_experts(fields: ConfigFields) -> dict[str, int]:
    """Sizes of the experts where there are none."""
    return {}


@dataclass(frozen=True)
class Frame:
    """What stands around the blocks: (name, kind, template) before and after, and the head."""

    base: str = "model"
    before: tuple[tuple[str, str, Rows], ...] = (("embed_tokens", "embedding", EMBEDDING),)
    layers: str = "layers"
    after: tuple[tuple[str, str, Rows], ...] = (("norm", "norm", norm("")),)
    head: Rows = HEAD
    head_name: str = "lm_head"
    classifier_input: str = "hidden"


def grouped_query(fields: ConfigFields) -> dict[str, int]:
    """Sizes of multi-head, grouped-query or multi-query attention."""
    hidden = fields.whole("hidden_size")
    heads = fields.whole("num_attention_heads")
    kv_heads = key_value_heads(fields, heads)
    head_dim = head_dimension(fields, hidden, heads)
    return attention_sizes(hidden, heads, kv_heads, head_dim)


def whole_heads(fields: ConfigFields) -> dict[str, int]:
    """Sizes of multi-head attention whose heads fill the hidden size exactly."""
    hidden = fields.whole("hidden_size")
    heads = fields.whole("num_attention_heads")
    return attention_sizes(hidden, heads, heads, split_evenly(fields, hidden, heads))


def attention_sizes(hidden: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    """The symbols that attention templates use."""
    query, key_value = heads * head_dim, kv_heads * head_dim
    return {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "value_head_dim": head_dim,
        "query": query,
        "key_value": key_value,
        "qkv": query + 2 * key_value,
    }


def key_value_heads(fields: ConfigFields, heads: int) -> int:
    """Key-value heads: null means one a query head; they must divide the query heads."""
    if not fields.has("num_key_value_heads"):
        null = "num_key_value_heads" in fields.config
        if null and fields.defaults.get("num_key_value_heads"):
            fields.assume("num_key_value_heads is null: one a query head is taken.")
        elif not null and not fields.defaults.get("num_key_value_heads"):
            fields.note_default("num_key_value_heads", heads)
        if null or not fields.defaults.get("num_key_value_heads"):
            return heads
    kv_heads = fields.whole("num_key_value_heads")
    if heads % kv_heads:
        hint = ""
        if not fields.has("num_key_value_heads"):
            hint = f"the config gives none and this is the default of {fields.label}"
        allowed = f"a divisor of num_attention_heads, which is {heads}"
        raise ScenarioError(fields.spelled("num_key_value_heads"), kv_heads, allowed, hint)
    return kv_heads


def head_dimension(fields: ConfigFields, hidden: int, heads: int) -> int:
    """The explicit head_dim, the family's own, or hidden_size / num_attention_heads."""
    null = "head_dim" in fields.config and fields.config["head_dim"] is None
    head_dim = None if null else fields.optional("head_dim", maximum=65_536)
    return head_dim or split_evenly(fields, hidden, heads)


def split_evenly(fields: ConfigFields, hidden: int, heads: int) -> int:
    """hidden_size / num_attention_heads, which must come out even."""
    if hidden % heads:
        hint = "correct one of them, or give head_dim if the heads do not fill the hidden size"
        if not fields.has("num_attention_heads"):
            hint = f"the config gives none and this is the default of {fields.label}"
        allowed = f"a divisor of hidden_size, which is {hidden}"
        raise ScenarioError(fields.spelled("num_attention_heads"), heads, allowed, hint)
    return hidden // heads


@dataclass(frozen=True)
class Style:
    """One decoder family as data.

    `switches` turns rows of the templates on: a constant, or the config's own flag. `shape` holds
    what all its blocks share; `pattern` what single layers change; `sparse` which layers hold
    experts and thus take `sparse_block`.
    """

    block: Rows
    sparse_block: Rows = ()
    frame: Frame = Frame()
    switches: Switches = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    attention: Callable[[ConfigFields], dict[str, int]] = grouped_query
    width: Callable[[ConfigFields, int], int] = given_width
    experts: Callable[[ConfigFields], dict[str, int]] = no_experts
    pattern: Pattern = same_everywhere
    sparse: Callable[[ConfigFields, int], tuple[bool, ...]] = never_sparse
    more: Callable[[ConfigFields, dict[str, int]], Mapping[str, int]] = lambda fields, sizes: {}

    def build(self, fields: ConfigFields, head: str) -> Draft:
        """The whole model of this style."""
        tied = fields.flag("tie_word_embeddings") and head == "lm"
        base = "" if head == "none" else f"{self.frame.base}."
        sizes = self.sizes(fields)
        modules = (
            *self.backbone(fields, sizes, base),
            *self.head_modules(fields, sizes, head, tied),
        )
        positions = fields.optional("max_position_embeddings", counts=False) or 0
        return Draft(modules, sizes["hidden"], sizes["vocabulary"], positions, tied)

    def sizes(self, fields: ConfigFields) -> dict[str, int]:
        """Every symbol of the templates, from the config."""
        sizes = self.attention(fields)
        width = self.width(fields, sizes["hidden"])
        sizes |= {"vocabulary": fields.whole("vocab_size"), "intermediate": width}
        sizes |= {"gate_up": 2 * width, **self.experts(fields)}
        for switch, value in self.switches.items():
            sizes[switch] = int(fields.flag(value) if isinstance(value, str) else value)
        sizes |= self.more(fields, sizes)
        return sizes

    def backbone(self, fields: ConfigFields, sizes: Sizes, base: str) -> tuple[Module, ...]:
        """Embeddings, blocks and final norm, their names behind `base`."""
        before = [unit(base + n, kind, template, sizes) for n, kind, template in self.frame.before]
        after = [unit(base + n, kind, template, sizes) for n, kind, template in self.frame.after]
        blocks = self.blocks(fields, sizes, f"{base}{self.frame.layers}")
        return sum(before, ()) + blocks + sum(after, ())

    def blocks(self, fields: ConfigFields, sizes: Sizes, prefix: str) -> tuple[Module, ...]:
        """The blocks in forward order; layers of one kind share one shape object."""
        layers = fields.layer_count()
        dense, sparse = self.shapes(fields, sizes)
        known: dict[tuple[object, ...], BlockShape] = {}
        modules: list[Module] = []
        choices = zip(self.sparse(fields, layers), self.pattern(fields, layers), strict=True)
        for index, (is_sparse, changes) in enumerate(choices):
            key = (is_sparse, *changes.items())
            if key not in known:
                known[key] = replace(sparse if is_sparse else dense, **changes)
            shape = known[key]
            template = self.sparse_block if is_sparse else self.block
            modules += unit(f"{prefix}.{index}", "block", template, sizes, shape)
        return tuple(modules)

    def shapes(self, fields: ConfigFields, sizes: Sizes) -> tuple[BlockShape, BlockShape]:
        """A dense block's shape and a sparse block's."""
        dense = BlockShape(
            hidden=sizes["hidden"],
            heads=sizes["heads"],
            kv_heads=sizes["kv_heads"],
            head_dim=sizes["head_dim"],
            value_head_dim=sizes["value_head_dim"],
            intermediate=sizes["intermediate"],
            activation=fields.text("hidden_act"),
            q_lora_rank=sizes.get("q_lora_rank", 0),
            kv_lora_rank=sizes.get("kv_lora_rank", 0),
            rope_head_dim=sizes.get("rope_head_dim", 0),
            attention_bias=bool(sizes.get("qkv_bias", 0)),
            mlp_bias=bool(sizes.get("mlp_bias", 0)),
            dropout=fields.number("dropout"),
            attention_dropout=fields.number("attention_dropout"),
            **{"gated": True, "norm": "rmsnorm", "rotary": True, **self.shape},
        )
        if "parallel" in sizes:
            norms = sizes.get("parallel_norms", dense.parallel_norms)
            dense = replace(dense, parallel=bool(sizes["parallel"]), parallel_norms=norms)
        if "rotary" in sizes:
            dense = replace(dense, rotary=bool(sizes["rotary"]))
        if "qk_norm" in sizes:
            dense = replace(dense, qk_norm=bool(sizes["qk_norm"]))
        sparse = replace(
            dense,
            intermediate=0,
            experts=sizes.get("experts", 0),
            experts_per_token=sizes.get("experts_per_token", 0),
            expert_intermediate=sizes.get("expert_intermediate", 0),
            shared_intermediate=sizes.get("shared_intermediate", 0),
        )
        return dense, sparse

    def head_modules(
        self, fields: ConfigFields, sizes: Sizes, head: str, tied: bool, prefix: str = ""
    ) -> tuple[Module, ...]:
        """The head: a tied one holds nothing of its own but a bias."""
        if head == "lm":
            template = tuple(row for row in self.frame.head if not (tied and len(row.shape) > 1))
            return unit(prefix + self.frame.head_name, "head", template, sizes)
        if head in ("classify", "tokens"):
            bias = ALWAYS if head == "tokens" else ""
            template = linear("", "labels", self.frame.classifier_input, "head", bias=bias)
            with_labels = {**sizes, "labels": fields.labels()}
            return unit("score", "head", template, with_labels)
        return ()
