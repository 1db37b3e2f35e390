"""Dense decoders of 2024 and 2025 that change a little of LLaMA's block: norms, biases, MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.core.architectures.decoder import Style, Switches
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.layers import (
    attention,
    gated_mlp,
    head_norms,
    plain_mlp,
    two_norms,
)
from shardwise.core.architectures.llama_like import (
    ATTENTION_BIAS,
    GEMMA2,
    GEMMA2_CAPS,
    LLAMA,
    MISTRAL,
    NO_BIAS,
    OLMO2,
)
from shardwise.core.architectures.templates import (
    COLUMN,
    ROW,
    linear,
    norm,
    rows,
)
from shardwise.core.architectures.windows import (
    every_fourth_full,
    every_fourth_without_rotary,
    hybrid_or_full,
)

USE_BIAS: Switches = {"qkv_bias": "use_bias", "output_bias": "use_bias", "mlp_bias": "use_bias"}
FUSED_MLP = rows(
    linear("mlp.gate_up_proj", "gate_up", "hidden", "mlp", COLUMN),
    linear("mlp.down_proj", "hidden", "intermediate", "mlp", ROW),
)

OLMO3 = replace(OLMO2, pattern=every_fourth_full)
SMOLLM3 = replace(LLAMA, pattern=every_fourth_without_rotary)
ERNIE = replace(LLAMA, switches=USE_BIAS, shape={"rotary_each": True})
HELIUM = replace(
    LLAMA,
    switches={**ATTENTION_BIAS, "mlp_bias": "mlp_bias"},
    shape={"rotary_each": True},
)
SEED_OSS = replace(
    LLAMA,
    shape={"embedding_dropout": False},
    switches={
        "qkv_bias": "attention_bias",
        "output_bias": "attention_out_bias",
        "mlp_bias": "mlp_bias",
    },
)
HUNYUAN = Style(
    rows(
        attention(),
        norm("self_attn.query_layernorm", "head_dim"),
        norm("self_attn.key_layernorm", "head_dim"),
        gated_mlp(),
        two_norms(),
    ),
    switches=ATTENTION_BIAS,
    shape={"qk_norm": True},
)
EXAONE4 = Style(
    rows(
        attention(),
        head_norms(),
        gated_mlp(),
        norm("post_attention_layernorm"),
        norm("post_feedforward_layernorm"),
    ),
    switches=NO_BIAS,
    shape={"qk_norm": True, "norm_first": False},
    pattern=hybrid_or_full,
)
GLM = Style(
    rows(attention(), FUSED_MLP, two_norms()),
    switches={"qkv_bias": "attention_bias", "output_bias": False, "mlp_bias": False},
    shape={"rotary_cat": True, "fused_gate": True},
)
GLM4 = replace(
    GLM,
    block=rows(GLM.block, norm("post_self_attn_layernorm"), norm("post_mlp_layernorm")),
    shape={**GLM.shape, "post_norms": 2},
)
ARCEE = Style(
    rows(attention(), plain_mlp("mlp.up_proj", "mlp.down_proj", bias="mlp_bias"), two_norms()),
    switches={**ATTENTION_BIAS, "mlp_bias": "mlp_bias"},
    shape={"gated": False},
)

_SILU: dict[str, Any] = {"hidden_act": "silu"}
_BIAS: dict[str, Any] = {**_SILU, "attention_bias": False}
_GLM = defaults(151552, 4096, 13696, 40, 32, 2, head_dim=128, attention_bias=True, **_SILU)


def _family(
    model_type: str,
    prefix: str,
    style: Style,
    own: dict[str, Any],
    heads: tuple[str, ...] = ("classify", "tokens"),
) -> Family:
    classes = decoder_classes(prefix, heads=heads)
    return Family(model_type, f"{prefix}Config", classes, own, style.build)


_EURO_CLASSES = {
    "EuroBertForMaskedLM": "lm",
    "EuroBertModel": "none",
    "EuroBertForTokenClassification": "tokens",
}
FAMILIES = (
    Family(
        "eurobert",
        "EuroBertConfig",
        _EURO_CLASSES,
        defaults(128256, 768, 3072, 12, 12, mlp_bias=False, head_dim=64, **_BIAS),
        replace(LLAMA, shape={"causal": False, "upcast_loss": True}).build,
    ),
    _family(
        "olmo3",
        "Olmo3",
        OLMO3,
        defaults(50304, 4096, 11008, 32, 32, sliding_window=4096, **_BIAS),
        ("classify",),
    ),
    _family(
        "smollm3",
        "SmolLM3",
        SMOLLM3,
        defaults(128256, 2048, 11008, 36, 16, 4, tied=True, mlp_bias=False, **_BIAS)
        | {"use_sliding_window": False, "no_rope_layer_interval": 4},
    ),
    _family(
        "ernie4_5",
        "Ernie4_5",
        ERNIE,
        defaults(103424, 1024, 3072, 18, 16, 2, tied=True, use_bias=False, head_dim=128, **_SILU),
        (),
    ),
    _family(
        "helium",
        "Helium",
        HELIUM,
        defaults(48000, 2560, 7040, 24, 20, 20, head_dim=128, mlp_bias=False, **_BIAS),
    ),
    _family(
        "seed_oss",
        "SeedOss",
        SEED_OSS,
        defaults(155136, 4096, 27648, 64, 80, 8, head_dim=128, mlp_bias=False, **_SILU)
        | {"attention_bias": True, "attention_out_bias": False}
        | {"attention_dropout": 0.1, "dropout": 0.1},
    ),
    _family(
        "hunyuan_v1_dense",
        "HunYuanDenseV1",
        HUNYUAN,
        defaults(290943, 4096, 11008, 32, 32, **_BIAS),
        ("classify",),
    ),
    _family(
        "exaone4",
        "Exaone4",
        EXAONE4,
        defaults(102400, 4096, 16384, 32, 32, sliding_window=4096, **_SILU)
        | {"sliding_window_pattern": 4},
    ),
    _family(
        "ministral3",
        "Ministral3",
        MISTRAL,
        defaults(131072, 4096, 14336, 34, 32, 8, head_dim=128, **_SILU),
    ),
    _family(
        "granite",
        "Granite",
        LLAMA,
        defaults(32000, 4096, 11008, 32, 32, mlp_bias=False, **_BIAS),
        (),
    ),
    _family("glm", "Glm", GLM, _GLM),
    _family("glm4", "Glm4", GLM4, _GLM),
    _family(
        "arcee",
        "Arcee",
        ARCEE,
        defaults(32000, 2560, 18432, 32, 32, mlp_bias=False, attention_bias=False)
        | {"hidden_act": "relu2"},
    ),
    _family(
        "vaultgemma",
        "VaultGemma",
        replace(
            GEMMA2,
            block=rows(
                attention(),
                gated_mlp(),
                norm("input_layernorm"),
                norm("pre_feedforward_layernorm"),
            ),
            shape={**GEMMA2.shape, "post_norms": 0},
        ),
        defaults(256000, 2304, 9216, 26, 8, 4, tied=True, head_dim=256, attention_bias=False)
        | {"hidden_act": "gelu_pytorch_tanh", "sliding_window": 4096, **GEMMA2_CAPS},
        (),
    ),
)
