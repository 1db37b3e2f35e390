"""Gemma 3 with pictures: a SigLIP tower, a projection of its features, the text decoder."""

from __future__ import annotations

from typing import Any

from shardwise.core.architectures.family import Draft, Family
from shardwise.core.architectures.llama_like import GEMMA3, GEMMA3_DEFAULTS
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
from shardwise.core.architectures.vit import TOWER_MLP, tower_sizes, vision_shape
from shardwise.core.config_fields import ConfigFields
from shardwise.core.structure import Module

SIGLIP_BLOCK = rows(
    norm("layer_norm1", bias=ALWAYS),
    linear("self_attn.k_proj", "hidden", "hidden", "attention", COLUMN, bias=ALWAYS),
    linear("self_attn.v_proj", "hidden", "hidden", "attention", COLUMN, bias=ALWAYS),
    linear("self_attn.q_proj", "hidden", "hidden", "attention", COLUMN, bias=ALWAYS),
    linear("self_attn.out_proj", "hidden", "hidden", "attention", ROW, bias=ALWAYS),
    norm("layer_norm2", bias=ALWAYS),
    TOWER_MLP,
)
SIGLIP_EMBEDDINGS = rows(
    tensor("patch_embedding.weight", "hidden", "channels", "patch", "patch", part="embedding"),
    tensor("patch_embedding.bias", "hidden", part="embedding"),
    tensor("position_embedding.weight", "positions", "hidden", part="position"),
)
# torch.nn.MultiheadAttention keeps its three input projections as one tensor.
SIGLIP_HEAD = rows(
    tensor("probe", 1, 1, "hidden", part="other"),
    tensor("attention.in_proj_weight", "qkv", "hidden", part="other"),
    tensor("attention.in_proj_bias", "qkv", part="other"),
    linear("attention.out_proj", "hidden", "hidden", "other", bias=ALWAYS),
    norm("layernorm", bias=ALWAYS),
    TOWER_MLP,
)
SIGLIP_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "vision_use_head": True,
}


def _siglip(fields: ConfigFields, sizes: dict[str, int], name: str) -> tuple[Module, ...]:
    shape = vision_shape(fields, sizes, bias=True)
    modules = unit(f"{name}.embeddings", "embedding", SIGLIP_EMBEDDINGS, sizes)
    for index in range(fields.layer_count()):
        modules += unit(f"{name}.encoder.layers.{index}", "block", SIGLIP_BLOCK, sizes, shape)
    modules += unit(f"{name}.post_layernorm", "norm", norm("", bias=ALWAYS), sizes)
    if fields.flag("vision_use_head"):
        modules += unit(f"{name}.head", "other", SIGLIP_HEAD, sizes)
    return modules


def build_gemma3(fields: ConfigFields, head: str) -> Draft:
    """SigLIP, a projection of its features, and Gemma 3's decoder."""
    text = fields.section("text_config", GEMMA3_DEFAULTS, "transformers' Gemma3TextConfig")
    vision = fields.section(
        "vision_config", SIGLIP_DEFAULTS, "transformers' SiglipVisionConfig", required=False
    )
    base = "" if head == "none" else "model."
    tied = head == "lm" and fields.flag("tie_word_embeddings")
    tower, sizes = tower_sizes(vision), GEMMA3.sizes(text)
    projector = rows(
        tensor("mm_input_projection_weight", "vision", "hidden", part="other"),
        tensor("mm_soft_emb_norm.weight", "vision", part="norm"),
    )
    joint = {**sizes, "vision": tower["hidden"]}
    modules = (
        *_siglip(vision, tower, f"{base}vision_tower"),
        *unit(f"{base}multi_modal_projector", "other", projector, joint),
        *GEMMA3.backbone(text, sizes, f"{base}language_model."),
        *GEMMA3.head_modules(text, sizes, head, tied),
    )
    positions = text.whole("max_position_embeddings", counts=False)
    return Draft(modules, sizes["hidden"], sizes["vocabulary"], positions, tied, tower["positions"])


FAMILIES = (
    Family(
        "gemma3",
        "Gemma3Config",
        {"Gemma3ForConditionalGeneration": "lm", "Gemma3Model": "none"},
        {"tie_word_embeddings": True},
        build_gemma3,
        required=("text_config",),
    ),
)
