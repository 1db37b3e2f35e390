"""Small models of the architectures that are traced, with the symbols of their sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise.lab.trace import SavedRow

# Sizes whose products don't coincide: a heads of d, kv key/value heads, hidden h, MLP f.
A, KV, D, H, F, V, LAYERS = 10, 5, 64, 560, 1344, 31000, 3
GROUPED = {
    "hidden_size": H,
    "intermediate_size": F,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": A,
    "num_key_value_heads": KV,
    "head_dim": D,
    "vocab_size": V,
    "tie_word_embeddings": False,
}
PLAIN = {
    "hidden_size": H,
    "intermediate_size": F,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": A,
    "vocab_size": V,
    "max_position_embeddings": 1024,
}
_GROUPED_SIZES = {
    "h": H,
    "f": F,
    "V": V,
    "a·d": A * D,
    "kv·d": KV * D,
    "a": A,
    "kv": KV,
    "d": D,
    "2f": 2 * F,
    "(a+2kv)·d": (A + 2 * KV) * D,
}
_PLAIN_SIZES = {"h": H, "f": F, "V": V, "a": A, "d": H // A, "3h": 3 * H}


@dataclass(frozen=True)
class Architecture:
    """A config, the sizes to name in it, and where its storages belong."""

    config: dict[str, object]
    sizes: dict[str, int]
    note: str
    counts: dict[str, int] = field(default_factory=lambda: {"layer": LAYERS})
    layer_marks: dict[str, str] = field(
        default_factory=lambda: {"layers.*": "layer", "h.*": "layer", "layer.*": "layer"}
    )

    def place_of(self, row: SavedRow) -> str:
        """`layer`, or `outside the layers`."""
        for mark, place in self.layer_marks.items():
            if any(mark in name for name in (row.maker,)):
                return place
        return "outside the layers"


def _sized(base: dict[str, object], sizes: dict[str, int], kind: str, note: str, **more: object):
    return Architecture({"model_type": kind, **base, **more}, sizes, note)


_NOTES = {
    "llama": "RMSNorm in fp32, rotary embeddings, grouped queries, SwiGLU; no biases.",
    "mistral": "As llama; a sequence longer than the sliding window brings a mask (see above).",
    "qwen2": "As llama, with biases on q, k and v (biases save nothing).",
    "qwen3": "As llama, with an RMSNorm over each head's d of q and of k before the rotation.",
    "phi3": "Fused qkv and gate/up projections: the slices keep the fused result alive.",
    "gemma": "RMSNorm that multiplies in fp32 by (1 + weight), GeGLU, scaled embedding.",
    "gemma2": "Four norms a layer, eager attention with soft-capped scores, soft-capped logits.",
    "gemma3": "Four norms a layer, norms on q and k, two sets of rotary tables.",
}
_E, _K, _M = 12, 4, 352
_MOE_SIZES = {
    **_GROUPED_SIZES,
    "E": _E,
    "k": _K,
    "k·h": _K * H,
    "m": _M,
    "k·m": _K * _M,
    "2·k·m": 2 * _K * _M,
}
_EXPERTS = {
    "norm_topk_prob": True,
    "num_experts": _E,
    "num_experts_per_tok": _K,
    "moe_intermediate_size": _M,
}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": _sized(GROUPED, _GROUPED_SIZES, "llama", _NOTES["llama"]),
    "mistral": _sized(GROUPED, _GROUPED_SIZES, "mistral", _NOTES["mistral"]),
    "qwen2": _sized(GROUPED, _GROUPED_SIZES, "qwen2", _NOTES["qwen2"]),
    "qwen3": _sized(GROUPED, _GROUPED_SIZES, "qwen3", _NOTES["qwen3"]),
    "phi3": _sized(GROUPED, _GROUPED_SIZES, "phi3", _NOTES["phi3"], pad_token_id=0),
    "gemma": _sized(GROUPED, _GROUPED_SIZES, "gemma", _NOTES["gemma"]),
    "gemma2": _sized(GROUPED, _GROUPED_SIZES, "gemma2", _NOTES["gemma2"]),
    "gemma3": _sized(GROUPED, _GROUPED_SIZES, "gemma3_text", _NOTES["gemma3"]),
    "gpt2": Architecture(
        {
            "model_type": "gpt2",
            "n_embd": H,
            "n_inner": F,
            "n_layer": LAYERS,
            "n_head": A,
            "vocab_size": V,
            "n_positions": 1024,
        },
        _PLAIN_SIZES,
        "LayerNorm, fused qkv, tanh GELU written out in six operators, dropout 0.1.",
    ),
    "opt": _sized(
        {**PLAIN, "ffn_dim": F, "word_embed_proj_dim": H},
        _PLAIN_SIZES,
        "opt",
        "LayerNorm, biases, ReLU (its output is also fc2's input), dropout 0.1 on residuals.",
    ),
    "gpt_neox": _sized(
        PLAIN,
        _PLAIN_SIZES | {"r": H // A // 4},
        "gpt_neox",
        "Parallel attention and MLP on one residual, fused qkv, a quarter of each head rotated.",
    ),
    "mixtral": _sized(
        GROUPED,
        _MOE_SIZES | {"k·f": _K * F, "2·k·f": 2 * _K * F},
        "mixtral",
        "llama's attention; E experts of width f, k for each token, grouped matrix products.",
        num_local_experts=_E,
        num_experts_per_tok=_K,
    ),
    "qwen3_moe": _sized(
        GROUPED,
        _MOE_SIZES,
        "qwen3_moe",
        "qwen3's attention; E experts of width m, k for each token, grouped matrix products.",
        **_EXPERTS,
    ),
    "bert": _sized(
        PLAIN,
        _PLAIN_SIZES,
        "bert",
        "Norm after the residual, GELU, dropout 0.1, masked-language-model head.",
    ),
    "vit": _sized(
        {**PLAIN, "image_size": 224, "patch_size": 16},
        _PLAIN_SIZES | {"n": 197},
        "vit",
        "n = patches + 1 tokens, norm before, GELU; `s` plays no part.",
    ),
    "t5": Architecture(
        {
            "model_type": "t5",
            "d_model": H,
            "d_ff": F,
            "num_layers": LAYERS,
            "num_heads": A,
            "d_kv": D,
            "vocab_size": V,
            "feed_forward_proj": "gated-gelu",
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
        _GROUPED_SIZES,
        "RMSNorm, position bias added to the scores (so no flash kernel), gated tanh GELU.",
        counts={"encoder layer": LAYERS, "decoder layer": LAYERS},
        layer_marks={"encoder.block.*": "encoder layer", "decoder.block.*": "decoder layer"},
    ),
    "deepseek_v3": _sized(
        {k: v for k, v in GROUPED.items() if k != "head_dim"} | {"num_key_value_heads": A},
        {
            "h": H,
            "a": A,
            "E": _E,
            "k": _K,
            "k·h": _K * H,
            "k·m": _K * _M,
            "2·k·m": 2 * _K * _M,
            "m": _M,
            "V": V,
            "E·h": _E * H,
            "ql": 192,
            "kl": 128,
            "a·(dn+r)": A * 96,
            "a·(dn+dv)": A * 128,
            "r": 32,
            "a·dv": A * 64,
            "2·groups": 8,
            "kept groups": 2,
        },
        "deepseek_v3",
        "Latent attention: ranks ql and kl, head parts dn (no rotation), r (rotated), dv; "
        "E routed experts of width m (k for each token) and one shared.",
        n_routed_experts=_E,
        num_experts_per_tok=_K,
        moe_intermediate_size=_M,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=0,
        q_lora_rank=192,
        kv_lora_rank=128,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
    ),
}
