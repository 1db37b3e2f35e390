"""One field, many spellings: how public configs write the same thing."""

from __future__ import annotations

# The spellings of public configs; the first is the name used here and in error sentences.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed", "dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": (
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "attention_heads",
    ),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"),
    "intermediate_size": (
        "intermediate_size",
        "ffn_hidden_size",
        "n_inner",
        "ffn_dim",
        "d_ff",
        "hidden_dim",
    ),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "num_local_experts": (
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "moe_num_experts",
    ),
    "num_experts_per_tok": (
        "num_experts_per_tok",
        "moe_top_k",
        "num_experts_per_token",
        "moe_topk",
        "moe_k",
    ),
    "n_shared_experts": ("n_shared_experts", "moe_num_shared_experts"),
    "head_dim": ("head_dim", "d_kv"),
    "tie_word_embeddings": ("tie_word_embeddings", "tie_embedding"),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "activation"),
    "dropout": (
        "hidden_dropout_prob",
        "hidden_dropout",
        "resid_pdrop",
        "resid_dropout",
        "residual_dropout",
        "dropout_rate",
        "dropout",
    ),
    "attention_dropout": (
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_pdrop",
    ),
}

# Fields of which configs carry two versions that need not agree; the first one counts.
MAY_DISAGREE = ("hidden_act", "dropout", "attention_dropout")
