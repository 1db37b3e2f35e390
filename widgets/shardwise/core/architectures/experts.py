"""How configs spell mixture-of-experts layers: sizes of the experts, and which layers have them."""

from __future__ import annotations

from collections.abc import Callable

from shardwise.core.config_fields import ConfigFields
from shardwise.core.errors import ScenarioError


def expert_sizes(width: str, shared: str = "") -> Callable[[ConfigFields], dict[str, int]]:
    """Sizes from the config: each expert's width is the field `width`.

    `shared` names the field of the shared expert's width; `n_shared_experts` means a number of
    experts of that same width, held as one MLP.
    """

    def sizes(fields: ConfigFields) -> dict[str, int]:
        each = fields.whole(width)
        experts = fields.whole("num_local_experts", maximum=65_536)
        chosen = fields.whole("num_experts_per_tok", maximum=65_536)
        if chosen > experts:
            allowed = f"at most the number of experts, which is {experts}"
            raise ScenarioError(fields.spelled("num_experts_per_tok"), chosen, allowed)
        common = fields.whole(shared) if shared else 0
        if shared == "n_shared_experts":
            common *= each
        return {
            "experts": experts,
            "experts_per_token": chosen,
            "expert_intermediate": each,
            "expert_gate_up": 2 * each,
            "shared_intermediate": common,
        }

    return sizes


def every_layer(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Mixtral, OLMoE, gpt-oss: experts in every layer."""
    return (True,) * layers


def sparse_step(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Qwen: every `decoder_sparse_step`-th layer, except those in `mlp_only_layers`."""
    dense = set(fields.numbers("mlp_only_layers") or ())
    step = fields.whole("decoder_sparse_step")
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))


def after_dense_first(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """DeepSeek: all but the first `first_k_dense_replace` layers."""
    dense = fields.whole("first_k_dense_replace", minimum=0)
    return tuple(i >= dense for i in range(layers))


def interleaved(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Llama 4: the layers in `moe_layers`, else every `interleave_moe_layer_step`-th."""
    listed = fields.numbers("moe_layers")
    step = fields.whole("interleave_moe_layer_step")
    chosen = set(range(step - 1, layers, step) if listed is None else listed)
    return tuple(i in chosen for i in range(layers))


def from_start_index(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """ERNIE 4.5: every `moe_layer_interval`-th layer from `moe_layer_start_index` to the end."""
    first = fields.whole("moe_layer_start_index", minimum=0)
    interval = fields.whole("moe_layer_interval")
    end = fields.config.get("moe_layer_end_index", -1)
    last = layers - 1 if end in (-1, None) else fields.whole("moe_layer_end_index", minimum=0)
    return tuple((i + 1) % interval == 0 and first <= i <= last for i in range(layers))
