"""Decoders with experts of 2024 and 2025: GLM-4.5, ERNIE, Hunyuan, Granite, Phi-3.5, MiniMax."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.core.architectures.decoder import Frame, Style
from shardwise.core.architectures.experts import (
    after_dense_first,
    every_layer,
    expert_sizes,
    from_start_index,
)
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.layers import (
    attention,
    fused_experts,
    gated_mlp,
    head_norms,
    router,
    two_norms,
)
from shardwise.core.architectures.llama_like import ATTENTION_BIAS, NO_BIAS
from shardwise.core.architectures.llama_relatives import USE_BIAS
from shardwise.core.architectures.mixture import OLMOE
from shardwise.core.architectures.templates import (
    ALWAYS,
    VOCABULARY,
    linear,
    norm,
    rows,
    tensor,
)
from shardwise.core.architectures.windows import by_last_layers, window_everywhere

_SHARED = gated_mlp("mlp.shared_experts", "shared_intermediate", when="shared_intermediate")
_NORMS_WHERE_ASKED = head_norms(when="qk_norm")
GLM4_MOE = Style(
    rows(attention(), _NORMS_WHERE_ASKED, gated_mlp(), two_norms()),
    rows(
        attention(),
        _NORMS_WHERE_ASKED,
        fused_experts(),
        router(),
        gated_mlp("mlp.shared_experts", "shared_intermediate"),
        two_norms(),
    ),
    switches={
        "qkv_bias": "attention_bias",
        "output_bias": False,
        "mlp_bias": False,
        "qk_norm": "use_qk_norm",
    },
    shape={"router_in_fp32": True},
    experts=expert_sizes("moe_intermediate_size", "n_shared_experts"),
    sparse=after_dense_first,
)
DOTS1 = Style(
    rows(attention(), head_norms(), gated_mlp(), two_norms()),
    rows(attention(), head_norms(), fused_experts(), router(), _SHARED, two_norms()),
    switches=ATTENTION_BIAS,
    shape={"qk_norm": True, "router_in_fp32": True},
    experts=expert_sizes("moe_intermediate_size", "n_shared_experts"),
    sparse=after_dense_first,
    pattern=by_last_layers,
)
ERNIE_MOE = Style(
    rows(attention(), gated_mlp(), two_norms()),
    rows(
        attention(),
        router(),
        tensor("mlp.gate.moe_statics.e_score_correction_bias", 1, "experts", part="router"),
        fused_experts(),
        _SHARED,
        two_norms(),
    ),
    switches=USE_BIAS,
    shape={"router_in_fp32": True, "rotary_each": True},
    experts=expert_sizes("moe_intermediate_size", "n_shared_experts"),
    sparse=from_start_index,
)
HUNYUAN_MOE = Style(
    (),
    rows(
        attention(),
        norm("self_attn.query_layernorm", "head_dim"),
        norm("self_attn.key_layernorm", "head_dim"),
        linear("mlp.gate.wg", "experts", "hidden", "router"),
        fused_experts(),
        gated_mlp("mlp.shared_mlp", "expert_intermediate"),
        two_norms(),
    ),
    switches=ATTENTION_BIAS,
    shape={"qk_norm": True, "router_in_fp32": True},
    experts=expert_sizes("intermediate_size", "intermediate_size"),
    sparse=every_layer,
)
GRANITE_MOE = Style(
    (),
    rows(
        attention(),
        two_norms(),
        router("block_sparse_moe.router"),
        fused_experts("block_sparse_moe.experts"),
    ),
    switches=ATTENTION_BIAS,
    experts=expert_sizes("intermediate_size"),
    sparse=every_layer,
)
PHIMOE = Style(
    (),
    rows(attention(), router("mlp.router"), fused_experts(), two_norms(bias=ALWAYS)),
    frame=Frame(
        after=(("norm", "norm", norm("", bias=ALWAYS)),),
        head=linear("", "vocabulary", "hidden", "head", VOCABULARY, bias="head_bias"),
    ),
    switches={**ATTENTION_BIAS, "head_bias": "lm_head_bias"},
    shape={"norm": "layernorm"},
    experts=expert_sizes("intermediate_size"),
    sparse=every_layer,
    pattern=window_everywhere,
)
MINIMAX_M2 = replace(OLMOE, switches=NO_BIAS)
# OLMo 2's norms behind attention and experts.
FLEX_OLMO = replace(
    MINIMAX_M2,
    sparse_block=rows(
        attention(),
        head_norms("query", "key_value"),
        router(),
        fused_experts(),
        norm("post_attention_layernorm"),
        norm("post_feedforward_layernorm"),
    ),
    switches=ATTENTION_BIAS,
    shape={"qk_norm": True, "norm_in_fp32": True, "norm_first": False},
)

_SILU: dict[str, Any] = {"hidden_act": "silu"}
_BIAS: dict[str, Any] = {**_SILU, "attention_bias": False}


def _family(
    model_type: str,
    prefix: str,
    style: Style,
    own: dict[str, Any],
    heads: tuple[str, ...] = (),
) -> Family:
    classes = decoder_classes(prefix, heads=heads)
    return Family(model_type, f"{prefix}Config", classes, own, style.build)


FAMILIES = (
    _family(
        "glm4_moe",
        "Glm4Moe",
        GLM4_MOE,
        defaults(151552, 4096, 10944, 46, 96, 8, num_local_experts=128, num_experts_per_tok=8)
        | {"n_shared_experts": 1, "moe_intermediate_size": 1408, "first_k_dense_replace": 1}
        | {"use_qk_norm": False, "head_dim": None, **_BIAS},
    ),
    _family(
        "dots1",
        "Dots1",
        DOTS1,
        defaults(152064, 4608, 10944, 62, 32, 32, moe_intermediate_size=1408, **_BIAS)
        | {"first_k_dense_replace": 0, "sliding_window": 4096, "max_window_layers": 62},
    ),
    _family(
        "ernie4_5_moe",
        "Ernie4_5_Moe",
        ERNIE_MOE,
        defaults(103424, 2560, 12288, 28, 20, 4, tied=True, use_bias=False, **_SILU)
        | {"num_local_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2}
        | {"moe_intermediate_size": 1536, "moe_layer_start_index": 1}
        | {"moe_layer_end_index": -1, "moe_layer_interval": 1},
    ),
    _family(
        "hunyuan_v1_moe",
        "HunYuanMoEV1",
        HUNYUAN_MOE,
        defaults(290943, 4096, 11008, 32, 32, num_local_experts=1, num_experts_per_tok=1, **_BIAS),
        ("classify",),
    ),
    _family(
        "granitemoe",
        "GraniteMoe",
        GRANITE_MOE,
        defaults(32000, 4096, 11008, 32, 32, num_local_experts=8, num_experts_per_tok=2, **_BIAS),
    ),
    _family(
        "phimoe",
        "Phimoe",
        PHIMOE,
        defaults(32064, 4096, 6400, 32, 32, 8, num_local_experts=16, num_experts_per_tok=2)
        | {"lm_head_bias": False, "sliding_window": None, **_BIAS},
        ("classify",),
    ),
    _family(
        "minimax_m2",
        "MiniMaxM2",
        MINIMAX_M2,
        defaults(200064, 3072, 1536, 62, 48, 8, num_local_experts=256, num_experts_per_tok=8)
        | {"head_dim": 128, **_SILU},
    ),
    _family(
        "flex_olmo",
        "FlexOlmo",
        FLEX_OLMO,
        defaults(100352, 4096, 11008, 32, 32, num_local_experts=7, num_experts_per_tok=5, **_BIAS),
    ),
)
