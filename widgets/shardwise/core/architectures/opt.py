"""OPT: learned positions, ReLU, and narrower embeddings in the 350m model."""

from __future__ import annotations

from shardwise.core.architectures.decoder import Frame, Style, whole_heads
from shardwise.core.architectures.family import Family, decoder_classes, defaults
from shardwise.core.architectures.gpt_like import LEARNED
from shardwise.core.architectures.layers import plain_mlp
from shardwise.core.architectures.templates import (
    COLUMN,
    ROW,
    VOCABULARY,
    linear,
    norm,
    rows,
    tensor,
)
from shardwise.core.config_fields import ConfigFields


def _opt_sizes(fields: ConfigFields, sizes: dict[str, int]) -> dict[str, int]:
    """OPT's narrower embeddings, its two extra positions, and where it puts the last norm."""
    hidden = sizes["hidden"]
    embedding = fields.optional("word_embed_proj_dim") or hidden
    affine = fields.flag("layer_norm_elementwise_affine")
    before = fields.flag("do_layer_norm_before")
    removed = fields.flag("_remove_final_layer_norm")
    return {
        # OPTLearnedPositionalEmbedding keeps two rows that no token uses.
        "positions": fields.whole("max_position_embeddings") + 2,
        "embedding": embedding,
        "projected": int(embedding != hidden),
        "affine": int(affine),
        "final_norm": int(affine and before and not removed),
    }


OPT_ATTENTION = rows(
    linear("self_attn.k_proj", "key_value", "hidden", "attention", COLUMN, bias="qkv_bias"),
    linear("self_attn.v_proj", "key_value", "hidden", "attention", COLUMN, bias="qkv_bias"),
    linear("self_attn.q_proj", "query", "hidden", "attention", COLUMN, bias="qkv_bias"),
    linear("self_attn.out_proj", "hidden", "query", "attention", ROW, bias="qkv_bias"),
)
OPT = Style(
    rows(
        OPT_ATTENTION,
        norm("self_attn_layer_norm", bias="affine", when="affine"),
        plain_mlp("fc1", "fc2", bias="qkv_bias"),
        norm("final_layer_norm", bias="affine", when="affine"),
    ),
    frame=Frame(
        before=(
            (
                "decoder.embed_tokens",
                "embedding",
                tensor("weight", "vocabulary", "embedding", part="embedding", cut=VOCABULARY),
            ),
            (
                "decoder.embed_positions",
                "embedding",
                tensor("weight", "positions", "hidden", part="position"),
            ),
            (
                "decoder.project_out",
                "other",
                linear("", "embedding", "hidden", "embedding", when="projected"),
            ),
            (
                "decoder.project_in",
                "other",
                linear("", "hidden", "embedding", "embedding", when="projected"),
            ),
            (
                "decoder.final_layer_norm",
                "norm",
                norm("", bias="final_norm", when="final_norm"),
            ),
        ),
        layers="decoder.layers",
        after=(),
        head=tensor("weight", "vocabulary", "embedding", part="head", cut=VOCABULARY),
        classifier_input="embedding",
    ),
    switches={"qkv_bias": "enable_bias", "mlp_bias": "enable_bias"},
    shape={**LEARNED, "embedding_dropout": False},
    attention=whole_heads,
    more=_opt_sizes,
)


FAMILIES = (
    Family(
        "opt",
        "OPTConfig",
        decoder_classes("OPT", heads=("classify",)),
        defaults(50272, 768, 3072, 12, 12, tied=True, hidden_act="relu", dropout=0.1)
        | {
            "max_position_embeddings": 2048,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
        },
        OPT.build,
    ),
)
