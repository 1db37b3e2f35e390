"""An architecture that is not known: a LLaMA-like decoder from the fields found, said aloud."""

from __future__ import annotations

from typing import Any

from shardwise.core.architectures.decoder import Style
from shardwise.core.architectures.experts import expert_sizes
from shardwise.core.architectures.family import Draft
from shardwise.core.architectures.layers import (
    attention,
    fused_experts,
    gated_mlp,
    router,
    two_norms,
)
from shardwise.core.architectures.templates import rows
from shardwise.core.config_fields import ConfigFields
from shardwise.core.errors import ScenarioError, shown

TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "decoder_config", "decoder")
_SHARED = gated_mlp("mlp.shared_experts", "shared_intermediate", when="shared_intermediate")
_SWITCHES = {
    "qkv_bias": "attention_bias",
    "output_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
}
DENSE = Style(rows(attention(), gated_mlp(), two_norms()), switches=_SWITCHES)


def _sparse(fields: ConfigFields) -> Style:
    """Experts in all layers but the first `first_k_dense_replace`, plus shared ones if any."""
    width = "moe_intermediate_size" if fields.has("moe_intermediate_size") else "intermediate_size"
    shared = "n_shared_experts" if fields.config.get("n_shared_experts") else ""
    return Style(
        DENSE.block,
        rows(attention(), router(), fused_experts(), _SHARED, two_norms()),
        switches=_SWITCHES,
        experts=expert_sizes(width, shared),
        sparse=lambda f, layers: tuple(
            i >= f.whole("first_k_dense_replace", minimum=0, counts=False) for i in range(layers)
        ),
    )


def build(fields: ConfigFields, model_type: str, named: str) -> Draft:
    """The decoder, from the top level or the text section of a config with several parts."""
    said = named or model_type
    who = f"{shown(said)} is not a known architecture" if said else "The config names none"
    section = next((s for s in TEXT_SECTIONS if isinstance(fields.config.get(s), dict)), None)
    inner = fields
    if section and not fields.has("hidden_size"):
        inner = fields.section(section, {}, fields.label)
        fields.assume(
            f"{who}: only its text decoder ({section}) is counted, not its other parts "
            "such as a vision tower."
        )
    fields.assume(
        f"{who if inner is fields else 'The text decoder'}: "
        "counted as a LLaMA-like decoder (RMSNorm, gated MLP, rotary positions, no more "
        "tensors than that) from the fields found, so the total is an estimate."
    )
    _require(inner)
    inner.defaults = _defaults(inner)
    experts = inner.optional("num_local_experts", minimum=0, maximum=65_536)
    style = _sparse(inner) if experts and experts > 1 else DENSE
    return style.build(inner, "lm")


def _require(fields: ConfigFields) -> None:
    for name in ("hidden_size", "num_hidden_layers", "vocab_size"):
        if not fields.has(name):
            allowed = "a value, since the architecture is not known"
            hint = "paste a model's whole config.json, or give its parameters as a number"
            raise ScenarioError(fields.where + name, None, allowed, hint)


def _defaults(fields: ConfigFields) -> dict[str, Any]:
    """LLaMA's proportions: heads of 128, an MLP of 8/3 the hidden size, nothing tied."""
    hidden = fields.whole("hidden_size")
    fitting = (hidden // width for width in (128, 64, 32) if hidden % width == 0)
    return {
        "num_attention_heads": next(fitting, 1),
        "intermediate_size": -(-8 * hidden // 3 // 256) * 256,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 0,
    }
