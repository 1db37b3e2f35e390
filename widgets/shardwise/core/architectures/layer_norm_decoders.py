"""Decoders with LayerNorms: Command R, StableLM, Nemotron."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.core.architectures.decoder import Frame, Style
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.layers import attention, gated_mlp, plain_mlp, two_norms
from shardwise.core.architectures.llama_like import ATTENTION_BIAS
from shardwise.core.architectures.templates import ALWAYS, Rows, norm, rows, tensor
from shardwise.core.architectures.windows import full_without_rotary
from shardwise.core.config_fields import ConfigFields

_SILU: dict[str, Any] = {"hidden_act": "silu"}
_BIAS: dict[str, Any] = {**_SILU, "attention_bias": False}
_BIASED_NORM = norm("", bias=ALWAYS)
_BIASED_FRAME = Frame(after=(("norm", "norm", _BIASED_NORM),))
LAYER_NORM: dict[str, Any] = {"norm": "layernorm"}


def _norm_by_head(name: str, heads: str, switch: str) -> Rows:
    """A norm over each head's vector, with weights of its own for every head."""
    return tensor(f"{name}.weight", heads, "head_dim", part="norm", when=switch)


def _stablelm(fields: ConfigFields, sizes: dict[str, int]) -> dict[str, int]:
    """A parallel block has one norm; what norms of single heads keep was not followed."""
    if sizes["qk_layernorm"]:
        fields.guess("qk_layernorm is true: what the norms of single heads keep is not counted.")
    return {"serial": 1 - sizes["parallel"], "parallel_norms": 1}


# Cohere's LayerNorm computes in fp32 and has no bias.
COHERE = Style(
    rows(
        attention(),
        _norm_by_head("self_attn.q_norm", "heads", "qk_norm"),
        _norm_by_head("self_attn.k_norm", "kv_heads", "qk_norm"),
        gated_mlp(),
        norm("input_layernorm"),
    ),
    switches={**ATTENTION_BIAS, "qk_norm": "use_qk_norm"},
    shape={"norm": "written-layernorm", "parallel": True},
)
STABLELM = Style(
    rows(
        attention(),
        _norm_by_head("self_attn.q_layernorm", "heads", "qk_layernorm"),
        _norm_by_head("self_attn.k_layernorm", "kv_heads", "qk_layernorm"),
        gated_mlp(),
        norm("input_layernorm", bias=ALWAYS),
        norm("post_attention_layernorm", bias="serial", when="serial"),
    ),
    frame=_BIASED_FRAME,
    switches={
        "qkv_bias": "use_qkv_bias",
        "output_bias": False,
        "mlp_bias": False,
        "parallel": "use_parallel_residual",
        "qk_layernorm": "qk_layernorm",
    },
    shape={**LAYER_NORM, "rotary_cat": True},
    more=_stablelm,
)
NEMOTRON = Style(
    rows(
        attention(),
        plain_mlp("mlp.up_proj", "mlp.down_proj", bias="mlp_bias"),
        two_norms(bias=ALWAYS),
    ),
    frame=_BIASED_FRAME,
    switches={**ATTENTION_BIAS, "mlp_bias": "mlp_bias"},
    shape={**LAYER_NORM, "gated": False, "rotary_cat": True},
)


def _family(
    model_type: str,
    prefix: str,
    style: Style,
    own: dict[str, Any],
    heads: tuple[str, ...] = ("classify", "tokens"),
) -> Family:
    classes = decoder_classes(prefix, heads=heads)
    return Family(model_type, f"{prefix}Config", classes, own, style.build)


FAMILIES = (
    _family(
        "cohere",
        "Cohere",
        COHERE,
        defaults(256000, 8192, 22528, 40, 64, tied=True, use_qk_norm=False, **_BIAS),
        (),
    ),
    _family(
        "cohere2",
        "Cohere2",
        replace(
            COHERE,
            switches={**ATTENTION_BIAS, "qk_norm": False},
            pattern=full_without_rotary,
        ),
        defaults(256000, 8192, 22528, 40, 64, tied=True, sliding_window=4096, **_BIAS),
        (),
    ),
    _family(
        "stablelm",
        "StableLm",
        STABLELM,
        defaults(50304, 2560, 6912, 32, 32, 32, use_qkv_bias=False, qk_layernorm=False, **_SILU)
        | {"use_parallel_residual": False},
    ),
    _family(
        "nemotron",
        "Nemotron",
        NEMOTRON,
        defaults(256000, 6144, 24576, 32, 48, head_dim=128, mlp_bias=False, attention_bias=False)
        | {"hidden_act": "relu2"},
    ),
)
