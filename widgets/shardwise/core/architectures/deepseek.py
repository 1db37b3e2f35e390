"""DeepSeek V2 and V3: latent attention (arXiv 2405.04434, section 2.1), shared experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.core.architectures.decoder import Style, key_value_heads
from shardwise.core.architectures.experts import after_dense_first, expert_sizes
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.layers import fused_experts, gated_mlp, router, two_norms
from shardwise.core.architectures.templates import COLUMN, ROW, Rows, linear, norm, rows
from shardwise.core.config_fields import ConfigFields


def latent_sizes(fields: ConfigFields) -> dict[str, int]:
    """Sizes of latent attention; `q_lora_rank` null means a plain query projection."""
    heads = fields.whole("num_attention_heads")
    key_value_heads(fields, heads)
    null = "q_lora_rank" in fields.config and fields.config["q_lora_rank"] is None
    query_rank = 0 if null else fields.whole("q_lora_rank")
    rank = fields.whole("kv_lora_rank")
    plain, rotary = fields.whole("qk_nope_head_dim"), fields.whole("qk_rope_head_dim")
    value = fields.whole("v_head_dim")
    return {
        "hidden": fields.whole("hidden_size"),
        "heads": heads,
        # Every head has its own key and value, rebuilt from the shared latent.
        "kv_heads": heads,
        "head_dim": plain + rotary,
        "value_head_dim": value,
        "rope_head_dim": rotary,
        "q_lora_rank": query_rank,
        "kv_lora_rank": rank,
        "plain_query": int(not query_rank),
        "latent_query": int(bool(query_rank)),
        "query": heads * (plain + rotary),
        "value": heads * value,
        "latent": rank + rotary,
        "key_value": heads * (plain + value),
    }


def latent_attention() -> Rows:
    """Queries (through a latent of their own, or plain), keys and values through one latent."""
    query_bias = "latent_query_bias"
    return rows(
        linear("self_attn.q_proj", "query", "hidden", "attention", COLUMN, when="plain_query"),
        linear(
            "self_attn.q_a_proj",
            "q_lora_rank",
            "hidden",
            "attention",
            bias=query_bias,
            when="latent_query",
        ),
        norm("self_attn.q_a_layernorm", "q_lora_rank", when="latent_query"),
        linear(
            "self_attn.q_b_proj",
            "query",
            "q_lora_rank",
            "attention",
            COLUMN,
            when="latent_query",
        ),
        linear("self_attn.kv_a_proj_with_mqa", "latent", "hidden", "attention", bias="qkv_bias"),
        norm("self_attn.kv_a_layernorm", "kv_lora_rank"),
        linear("self_attn.kv_b_proj", "key_value", "kv_lora_rank", "attention", COLUMN),
        linear("self_attn.o_proj", "hidden", "value", "attention", ROW, bias="qkv_bias"),
    )


def latent_switches(fields: ConfigFields, sizes: dict[str, int]) -> dict[str, int]:
    """The bias of the query's latent exists only when that latent does."""
    return {"latent_query_bias": sizes["qkv_bias"] & sizes["latent_query"]}


DEEPSEEK = Style(
    rows(latent_attention(), gated_mlp(), two_norms()),
    rows(
        latent_attention(),
        fused_experts(),
        router(),
        gated_mlp("mlp.shared_experts", "shared_intermediate"),
        two_norms(),
    ),
    switches={"qkv_bias": "attention_bias", "mlp_bias": False},
    shape={"router_in_fp32": True, "scores_in_fp32": True},
    attention=latent_sizes,
    more=latent_switches,
    experts=expert_sizes("moe_intermediate_size", "n_shared_experts"),
    sparse=after_dense_first,
)
DEEPSEEK_V2 = replace(DEEPSEEK, switches={"qkv_bias": "attention_bias", "mlp_bias": "mlp_bias"})

_LATENT: dict[str, Any] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
FAMILIES = (
    Family(
        "deepseek_v2",
        "DeepseekV2Config",
        decoder_classes("DeepseekV2", heads=("classify",)),
        defaults(102400, 4096, 11008, 32, 32, num_local_experts=64, n_shared_experts=2)
        | {"first_k_dense_replace": 0, "moe_intermediate_size": 1407, "mlp_bias": False, **_LATENT},
        DEEPSEEK_V2.build,
    ),
    Family(
        "deepseek_v3",
        "DeepseekV3Config",
        decoder_classes("DeepseekV3"),
        defaults(129280, 7168, 18432, 61, 128, 128, num_local_experts=256, n_shared_experts=1)
        | {"first_k_dense_replace": 3, "moe_intermediate_size": 2048, "num_experts_per_tok": 8}
        | _LATENT,
        DEEPSEEK.build,
    ),
)
