"""Small models, one a family, that train on CPU in a second; without dropout, so losses fall."""

from __future__ import annotations

from typing import Any

_PLAIN = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 64,
}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2, "head_dim": 16}
_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}

MODELS: dict[str, dict[str, Any]] = {
    "llama-tied": {"model_type": "llama", **_GROUPED, "tie_word_embeddings": True},
    "mixtral": {
        "model_type": "mixtral",
        **_GROUPED,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gemma2": {"model_type": "gemma2", **_GROUPED, "query_pre_attn_scalar": 16},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "vocab_size": 512,
    },
    "bert": {
        "model_type": "bert",
        **_PLAIN,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "t5": {
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 512,
        "decoder_start_token_id": 0,
        "dropout_rate": 0.0,
    },
    "whisper": {
        "model_type": "whisper",
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
        "vocab_size": 512,
        "num_mel_bins": 8,
        "max_source_positions": 32,
        "max_target_positions": 64,
        "decoder_start_token_id": 1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "vit": {
        "model_type": "vit",
        **_VISION,
        "num_labels": 4,
    },
    "mamba": {
        "model_type": "mamba",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": 512,
        "state_size": 8,
    },
    "gemma3": {
        "model_type": "gemma3",
        "mm_tokens_per_image": 4,
        "image_token_index": 500,
        "text_config": {"model_type": "gemma3_text", **_GROUPED},
        "vision_config": {"model_type": "siglip_vision_model", **_VISION},
    },
}
