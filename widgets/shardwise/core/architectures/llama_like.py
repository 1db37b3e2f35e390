"""Dense decoders with LLaMA's names: each family is what it changes of LLaMA's block."""

from __future__ import annotations

from typing import Any

from shardwise.core.architectures.decoder import Frame, Style, Switches
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.layers import (
    attention,
    four_norms,
    gated_mlp,
    head_norms,
    plain_mlp,
    two_norms,
)
from shardwise.core.architectures.templates import (
    ALWAYS,
    COLUMN,
    ROW,
    linear,
    norm,
    rows,
)
from shardwise.core.architectures.windows import (
    capped_and_alternating,
    five_to_one,
    qwen_windows,
    window_everywhere,
)

NO_BIAS: Switches = {"qkv_bias": False, "output_bias": False, "mlp_bias": False}
ATTENTION_BIAS: Switches = {
    "qkv_bias": "attention_bias",
    "output_bias": "attention_bias",
    "mlp_bias": False,
}
LLAMA_BLOCK = rows(attention(), gated_mlp(), two_norms())

LLAMA = Style(
    LLAMA_BLOCK,
    switches={
        "qkv_bias": "attention_bias",
        "output_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
    },
)
MISTRAL = Style(LLAMA_BLOCK, switches=NO_BIAS, pattern=window_everywhere)
QWEN2 = Style(LLAMA_BLOCK, switches={**NO_BIAS, "qkv_bias": True}, pattern=qwen_windows)
QWEN3 = Style(
    rows(attention(), head_norms(), gated_mlp(), two_norms()),
    switches=ATTENTION_BIAS,
    shape={"qk_norm": True},
    pattern=qwen_windows,
)
GEMMA = Style(LLAMA_BLOCK, switches=ATTENTION_BIAS, shape={"norm_in_fp32": True})
GEMMA2 = Style(
    rows(attention(), gated_mlp(), four_norms()),
    switches=ATTENTION_BIAS,
    shape={"norm_in_fp32": True, "post_norms": 2, "sdpa": False},
    pattern=capped_and_alternating,
)
GEMMA3 = Style(
    rows(attention(), head_norms(), gated_mlp(), four_norms()),
    switches=ATTENTION_BIAS,
    shape={"norm_in_fp32": True, "post_norms": 2, "qk_norm": True},
    pattern=five_to_one,
)
# OLMo's LayerNorm has neither weight nor bias.
OLMO = Style(
    rows(attention(), gated_mlp()),
    frame=Frame(after=()),
    switches=ATTENTION_BIAS,
    shape={"norm": "layernorm", "norm_in_fp32": True},
)
OLMO2 = Style(
    rows(
        attention(),
        head_norms("query", "key_value"),
        gated_mlp(),
        norm("post_attention_layernorm"),
        norm("post_feedforward_layernorm"),
    ),
    switches=ATTENTION_BIAS,
    shape={"qk_norm": True, "norm_in_fp32": True, "norm_first": False},
)
PHI3 = Style(
    rows(
        linear("self_attn.o_proj", "hidden", "query", "attention", ROW),
        linear("self_attn.qkv_proj", "qkv", "hidden", "attention", COLUMN),
        linear("mlp.gate_up_proj", "gate_up", "hidden", "mlp", COLUMN),
        linear("mlp.down_proj", "hidden", "intermediate", "mlp", ROW),
        two_norms(),
    ),
    shape={"fused_qkv": True, "rotary_cat": True},
    pattern=window_everywhere,
)
STARCODER2 = Style(
    rows(
        attention(),
        plain_mlp("mlp.c_fc", "mlp.c_proj", bias="mlp_bias"),
        two_norms(bias=ALWAYS),
    ),
    frame=Frame(after=(("norm", "norm", norm("", bias=ALWAYS)),)),
    switches={"qkv_bias": "use_bias", "output_bias": "use_bias", "mlp_bias": "use_bias"},
    shape={"norm": "layernorm", "gated": False},
    pattern=window_everywhere,
)


_ATTENTION: dict[str, Any] = {"attention_bias": False, "hidden_act": "silu"}
_QWEN: dict[str, Any] = {
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "max_position_embeddings": 32768,
}
_GEMMA: dict[str, Any] = {
    "attention_bias": False,
    "tied": True,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
}
GEMMA2_CAPS: dict[str, Any] = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
GEMMA3_DEFAULTS = defaults(262208, 2304, 9216, 26, 8, 4, **_GEMMA) | {
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131072,
}


def _family(model_type: str, prefix: str, style: Style, own: dict[str, Any]) -> Family:
    return Family(model_type, f"{prefix}Config", decoder_classes(prefix), own, style.build)


_OLMO_SIZES = defaults(50304, 4096, 11008, 32, 32, max_position_embeddings=2048, **_ATTENTION)
_OLMO_CLASSES = decoder_classes("Olmo", heads=("classify",))
_OLMO2_CLASSES = decoder_classes("Olmo2", heads=("classify",))
FAMILIES = (
    _family(
        "llama",
        "Llama",
        LLAMA,
        defaults(32000, 4096, 11008, 32, 32, mlp_bias=False, **_ATTENTION),
    ),
    _family(
        "mistral",
        "Mistral",
        MISTRAL,
        defaults(32000, 4096, 14336, 32, 32, 8, sliding_window=4096, hidden_act="silu"),
    ),
    _family("qwen2", "Qwen2", QWEN2, defaults(151936, 4096, 22016, 32, 32, 32, **_QWEN)),
    _family(
        "qwen3",
        "Qwen3",
        QWEN3,
        defaults(151936, 4096, 22016, 32, 32, 32, head_dim=128, **_QWEN, **_ATTENTION),
    ),
    _family("gemma", "Gemma", GEMMA, defaults(256000, 3072, 24576, 28, 16, 16, **_GEMMA)),
    _family(
        "gemma2", "Gemma2", GEMMA2, defaults(256000, 2304, 9216, 26, 8, 4, **_GEMMA, **GEMMA2_CAPS)
    ),
    Family(
        "gemma3_text",
        "Gemma3TextConfig",
        {"Gemma3ForCausalLM": "lm", "Gemma3TextModel": "none"},
        GEMMA3_DEFAULTS,
        GEMMA3.build,
    ),
    _family("phi3", "Phi3", PHI3, defaults(32064, 3072, 8192, 32, 32, hidden_act="silu")),
    Family("olmo", "OlmoConfig", _OLMO_CLASSES, _OLMO_SIZES, OLMO.build),
    Family("olmo2", "Olmo2Config", _OLMO2_CLASSES, _OLMO_SIZES, OLMO2.build),
    _family(
        "starcoder2",
        "Starcoder2",
        STARCODER2,
        defaults(49152, 3072, 12288, 30, 24, 2, tied=True, use_bias=True, sliding_window=None),
    ),
)
