"""Decoders with mixture-of-experts layers: Mixtral, Qwen MoE, OLMoE, gpt-oss."""

from __future__ import annotations

from shardwise.core.architectures.decoder import Style
from shardwise.core.architectures.experts import every_layer, expert_sizes, sparse_step
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
from shardwise.core.architectures.templates import ALWAYS, EXPERT, linear, rows, tensor
from shardwise.core.architectures.windows import (
    Changes,
    alternating,
    qwen2_moe_windows,
    qwen3_moe_windows,
    window_everywhere,
)
from shardwise.core.config_fields import ConfigFields


def _mixtral_layers(fields: ConfigFields, layers: int) -> Changes:
    """A window in every layer, and noise where `router_jitter_noise` is not 0."""
    noise = fields.number("router_jitter_noise") > 0
    return tuple({**each, "jitter": noise} for each in window_everywhere(fields, layers))


MIXTRAL = Style(
    (),
    rows(attention(), router(), fused_experts(), two_norms()),
    switches=NO_BIAS,
    shape={"scores_in_fp32": True},
    experts=expert_sizes("intermediate_size"),
    sparse=every_layer,
    pattern=_mixtral_layers,
)
QWEN2_MOE = Style(
    rows(attention(), gated_mlp(), two_norms()),
    rows(
        attention(),
        router(),
        fused_experts(),
        gated_mlp("mlp.shared_expert", "shared_intermediate", when=ALWAYS),
        linear("mlp.shared_expert_gate", 1, "hidden", "router"),
        two_norms(),
    ),
    switches={**NO_BIAS, "qkv_bias": "qkv_bias"},
    shape={"shared_gate": True},
    experts=expert_sizes("moe_intermediate_size", "shared_expert_intermediate_size"),
    sparse=sparse_step,
    pattern=qwen2_moe_windows,
)
QWEN3_MOE = Style(
    rows(attention(), head_norms(), gated_mlp(), two_norms()),
    rows(attention(), head_norms(), fused_experts(), router(), two_norms()),
    switches=ATTENTION_BIAS,
    shape={"qk_norm": True},
    experts=expert_sizes("moe_intermediate_size"),
    sparse=sparse_step,
    pattern=qwen3_moe_windows,
)
OLMOE = Style(
    (),
    rows(attention(), head_norms("query", "key_value"), router(), fused_experts(), two_norms()),
    switches=ATTENTION_BIAS,
    shape={"qk_norm": True},
    experts=expert_sizes("intermediate_size"),
    sparse=every_layer,
)
# Its experts are stored (expert, in, out) and have biases; attention has one sink a head.
GPT_OSS = Style(
    (),
    rows(
        tensor("self_attn.sinks", "heads", part="attention", cut="column"),
        attention(),
        router("mlp.router", bias=ALWAYS),
        tensor(
            "mlp.experts.gate_up_proj",
            "experts",
            "hidden",
            "expert_gate_up",
            part="experts",
            cut=EXPERT,
        ),
        tensor(
            "mlp.experts.gate_up_proj_bias",
            "experts",
            "expert_gate_up",
            part="experts",
            cut=EXPERT,
        ),
        tensor(
            "mlp.experts.down_proj",
            "experts",
            "expert_intermediate",
            "hidden",
            part="experts",
            cut=EXPERT,
        ),
        tensor("mlp.experts.down_proj_bias", "experts", "hidden", part="experts", cut=EXPERT),
        two_norms(),
    ),
    switches={**ATTENTION_BIAS, "mlp_bias": True},
    shape={"sdpa": False, "sinks": True, "norm_in_fp32": True},
    experts=expert_sizes("intermediate_size"),
    sparse=every_layer,
    pattern=alternating,
)
_QWEN_SPARSE = {"decoder_sparse_step": 1, "use_sliding_window": False, "sliding_window": 4096}
FAMILIES = (
    Family(
        "mixtral",
        "MixtralConfig",
        decoder_classes("Mixtral"),
        defaults(32000, 4096, 14336, 32, 32, 8, num_local_experts=8, num_experts_per_tok=2),
        MIXTRAL.build,
    ),
    Family(
        "qwen2_moe",
        "Qwen2MoeConfig",
        decoder_classes("Qwen2Moe"),
        defaults(151936, 2048, 5632, 24, 16, 16, num_local_experts=60, num_experts_per_tok=4)
        | {
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
            "max_window_layers": 28,
            **_QWEN_SPARSE,
        },
        QWEN2_MOE.build,
    ),
    Family(
        "qwen3_moe",
        "Qwen3MoeConfig",
        decoder_classes("Qwen3Moe"),
        defaults(151936, 2048, 6144, 24, 32, 4, num_local_experts=128, num_experts_per_tok=8)
        | {"moe_intermediate_size": 768, "attention_bias": False, **_QWEN_SPARSE},
        QWEN3_MOE.build,
    ),
    Family(
        "olmoe",
        "OlmoeConfig",
        decoder_classes("Olmoe", heads=()),
        defaults(50304, 2048, 2048, 16, 16, num_local_experts=64, num_experts_per_tok=8)
        | {"attention_bias": False},
        OLMOE.build,
    ),
    Family(
        "gpt_oss",
        "GptOssConfig",
        decoder_classes("GptOss"),
        defaults(201088, 2880, 2880, 36, 64, 8, num_local_experts=128, num_experts_per_tok=4)
        | {"head_dim": 64, "attention_bias": True, "sliding_window": 128},
        GPT_OSS.build,
    ),
)
