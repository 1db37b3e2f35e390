"""Llama 4: its decoder with dense and sparse layers, and its vision tower."""

from __future__ import annotations

from typing import Any

from shardwise.core.architectures.decoder import Style
from shardwise.core.architectures.experts import expert_sizes, interleaved
from shardwise.core.architectures.family import Draft, Family, defaults
from shardwise.core.architectures.layers import attention, gated_mlp, router, two_norms
from shardwise.core.architectures.llama_like import ATTENTION_BIAS
from shardwise.core.architectures.templates import (
    ALWAYS,
    EXPERT,
    linear,
    norm,
    rows,
    tensor,
    unit,
)
from shardwise.core.architectures.vit import TOWER_MLP, tower_sizes, vision_shape
from shardwise.core.architectures.windows import chunks_without_rotary
from shardwise.core.config_fields import ConfigFields
from shardwise.core.structure import Module

# Its experts are stored (expert, in, out); dense layers have a width of their own.
LLAMA4 = Style(
    rows(attention(), gated_mlp("feed_forward"), two_norms()),
    rows(
        attention(),
        tensor(
            "feed_forward.experts.gate_up_proj",
            "experts",
            "hidden",
            "expert_gate_up",
            part="experts",
            cut=EXPERT,
        ),
        tensor(
            "feed_forward.experts.down_proj",
            "experts",
            "expert_intermediate",
            "hidden",
            part="experts",
            cut=EXPERT,
        ),
        router("feed_forward.router"),
        gated_mlp("feed_forward.shared_expert", "shared_intermediate", when=ALWAYS),
        two_norms(),
    ),
    switches=ATTENTION_BIAS,
    width=lambda fields, hidden: fields.whole("intermediate_size_mlp"),
    experts=expert_sizes("intermediate_size", "intermediate_size"),
    sparse=interleaved,
    pattern=chunks_without_rotary,
)

LLAMA4_VISION_BLOCK = rows(
    attention(),
    TOWER_MLP,
    norm("input_layernorm", bias=ALWAYS),
    norm("post_attention_layernorm", bias=ALWAYS),
)


VISION_FRONT = rows(
    tensor("class_embedding", "hidden", part="embedding"),
    tensor("positional_embedding_vlm", "tokens", "hidden", part="position"),
    linear("patch_embedding.linear", "hidden", "pixels", "embedding"),
    norm("layernorm_pre", bias=ALWAYS),
    norm("layernorm_post", bias=ALWAYS),
)
VISION_ADAPTER = rows(
    linear("mlp.fc1", "projector_in", "intermediate", "other"),
    linear("mlp.fc2", "projector_out", "projector_out", "other"),
)
LLAMA4_TEXT_DEFAULTS = defaults(202048, 5120, 8192, 48, 40, 8) | {
    "intermediate_size_mlp": 16384,
    "head_dim": 128,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "interleave_moe_layer_step": 1,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "attention_bias": False,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
}
LLAMA4_VISION_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "hidden_act": "gelu",
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "num_channels": 3,
    "intermediate_size": 5632,
    "vision_output_dim": 7680,
    "image_size": 448,
    "patch_size": 14,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
}


def _tower(fields: ConfigFields) -> tuple[dict[str, int], tuple[Module, ...]]:
    sizes = tower_sizes(fields)
    sizes |= {
        "tokens": sizes["positions"] + 1,
        "pixels": sizes["channels"] * sizes["patch"] ** 2,
        "projector_in": fields.whole("projector_input_dim"),
        "projector_out": fields.whole("projector_output_dim"),
        "vision": fields.whole("vision_output_dim"),
    }
    shape = vision_shape(fields, sizes, bias=True)
    modules = unit("vision_model", "embedding", VISION_FRONT, sizes)
    for index in range(fields.layer_count()):
        name = f"vision_model.model.layers.{index}"
        modules += unit(name, "block", LLAMA4_VISION_BLOCK, sizes, shape)
    return sizes, modules + unit("vision_model.vision_adapter", "other", VISION_ADAPTER, sizes)


def build_llama4(fields: ConfigFields, head: str) -> Draft:
    """Llama 4's own vision tower with its adapter, a projection, and the decoder with its head."""
    text = fields.section("text_config", LLAMA4_TEXT_DEFAULTS, "transformers' Llama4TextConfig")
    vision = fields.section(
        "vision_config", LLAMA4_VISION_DEFAULTS, "transformers' Llama4VisionConfig", required=False
    )
    tied = text.flag("tie_word_embeddings")
    tower, tower_modules = _tower(vision)
    sizes = LLAMA4.sizes(text)
    projector = linear("linear_1", "hidden", "vision", "other")
    joint = {**sizes, "vision": tower["vision"]}
    modules = (
        *tower_modules,
        *unit("multi_modal_projector", "other", projector, joint),
        *LLAMA4.backbone(text, sizes, "language_model.model."),
        *LLAMA4.head_modules(text, sizes, head, tied, "language_model."),
    )
    positions = text.whole("max_position_embeddings", counts=False)
    return Draft(modules, sizes["hidden"], sizes["vocabulary"], positions, tied, tower["tokens"])


FAMILIES = (
    Family(
        "llama4_text",
        "Llama4TextConfig",
        {"Llama4ForCausalLM": "lm", "Llama4TextModel": "none"},
        LLAMA4_TEXT_DEFAULTS,
        LLAMA4.build,
    ),
    Family(
        "llama4",
        "Llama4Config",
        {"Llama4ForConditionalGeneration": "lm"},
        {},
        build_llama4,
        required=("text_config",),
    ),
)
