"""ViT: patches of a picture of fixed size through an encoder; the base of vision towers too."""

from __future__ import annotations

from shardwise.core.architectures.decoder import attention_sizes, split_evenly
from shardwise.core.architectures.family import Draft, Family
from shardwise.core.architectures.templates import (
    ALWAYS,
    COLUMN,
    ROW,
    linear,
    norm,
    rows,
    tensor,
    unit,
)
from shardwise.core.config_fields import ConfigFields
from shardwise.core.errors import ScenarioError
from shardwise.core.structure import BlockShape, Module

TOWER_MLP = rows(
    linear("mlp.fc1", "intermediate", "hidden", "mlp", COLUMN, bias=ALWAYS),
    linear("mlp.fc2", "hidden", "intermediate", "mlp", ROW, bias=ALWAYS),
)
BLOCK = rows(
    linear("attention.q_proj", "query", "hidden", "attention", COLUMN, bias="qkv_bias"),
    linear("attention.k_proj", "key_value", "hidden", "attention", COLUMN, bias="qkv_bias"),
    linear("attention.v_proj", "key_value", "hidden", "attention", COLUMN, bias="qkv_bias"),
    linear("attention.o_proj", "hidden", "query", "attention", ROW, bias=ALWAYS),
    norm("layernorm_before", bias=ALWAYS),
    norm("layernorm_after", bias=ALWAYS),
    TOWER_MLP,
)
EMBEDDINGS = rows(
    tensor("cls_token", 1, 1, "hidden", part="embedding"),
    tensor("position_embeddings", 1, "positions", "hidden", part="position"),
    tensor(
        "patch_embeddings.projection.weight",
        "hidden",
        "channels",
        "patch",
        "patch",
        part="embedding",
    ),
    tensor("patch_embeddings.projection.bias", "hidden", part="embedding"),
)


def patches(fields: ConfigFields) -> tuple[int, int]:
    """A patch's side, and how many patches cover the picture."""
    image, patch = fields.side("image_size"), fields.side("patch_size")
    if patch > image:
        allowed = f"at most image_size, which is {image}"
        raise ScenarioError(fields.where + "patch_size", patch, allowed)
    return patch, (image // patch) ** 2


def tower_sizes(fields: ConfigFields) -> dict[str, int]:
    """Sizes of a vision tower's blocks and patches."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    patch, count = patches(fields)
    return attention_sizes(hidden, heads, heads, split_evenly(fields, hidden, heads)) | {
        "intermediate": fields.whole("intermediate_size"),
        "channels": fields.whole("num_channels"),
        "patch": patch,
        "positions": count,
        "qkv_bias": 1,
        "output_bias": 1,
    }


def build(fields: ConfigFields, head: str) -> Draft:
    """The encoder with a classifier, or bare with its pooler."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    patch, count = patches(fields)
    sizes = attention_sizes(hidden, heads, heads, split_evenly(fields, hidden, heads)) | {
        "intermediate": fields.whole("intermediate_size"),
        "positions": count + 1,
        "patch": patch,
        "channels": fields.whole("num_channels"),
        "qkv_bias": int(fields.flag("qkv_bias")),
    }
    base = "" if head == "none" else "vit."
    shape = vision_shape(fields, sizes, bool(sizes["qkv_bias"]))
    modules: tuple[Module, ...] = unit(f"{base}embeddings", "embedding", EMBEDDINGS, sizes)
    for index in range(fields.layer_count()):
        modules += unit(f"{base}layers.{index}", "block", BLOCK, sizes, shape)
    modules += unit(f"{base}layernorm", "norm", norm("", bias=ALWAYS), sizes)
    modules += _head(fields, head, sizes)
    return Draft(modules, hidden, 0, 0, False, count + 1)


def vision_shape(fields: ConfigFields, sizes: dict[str, int], bias: bool) -> BlockShape:
    """A block that sees the patches of one picture."""
    return BlockShape(
        hidden=sizes["hidden"],
        heads=sizes["heads"],
        kv_heads=sizes["heads"],
        head_dim=sizes["head_dim"],
        value_head_dim=sizes["head_dim"],
        intermediate=sizes["intermediate"],
        activation=fields.text("hidden_act"),
        norm="layernorm",
        attention_bias=bias,
        mlp_bias=True,
        causal=False,
        dropout=fields.number("dropout"),
        attention_dropout=fields.number("attention_dropout"),
        tokens="image",
    )


def _head(fields: ConfigFields, head: str, sizes: dict[str, int]) -> tuple[Module, ...]:
    if head == "image":
        labels = {**sizes, "labels": fields.labels()}
        template = linear("", "labels", "hidden", "head", bias=ALWAYS)
        return unit("classifier", "head", template, labels)
    pooled = {**sizes, "pooled": fields.optional("pooler_output_size") or sizes["hidden"]}
    template = linear("dense", "pooled", "hidden", "other", bias=ALWAYS)
    return unit("pooler", "other", template, pooled)


FAMILIES = (
    Family(
        "vit",
        "ViTConfig",
        {"ViTForImageClassification": "image", "ViTModel": "none"},
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_act": "gelu",
            "image_size": 224,
            "patch_size": 16,
            "num_channels": 3,
            "qkv_bias": True,
        },
        build,
    ),
)
