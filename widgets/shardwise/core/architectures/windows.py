"""Which layers see only a sliding window or go without rotary embedding, family by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.core.config_fields import ConfigFields

Changes = Sequence[Mapping[str, Any]]


def window_everywhere(fields: ConfigFields, layers: int) -> Changes:
    """Mistral: `sliding_window` in every layer, null for none."""
    return ({"sliding_window": fields.window()},) * layers


def qwen_windows(fields: ConfigFields, layers: int) -> Changes:
    """Qwen 2 and 3: only when `use_sliding_window`, from layer `max_window_layers` on."""
    if not fields.flag("use_sliding_window", counts=False):
        return ({"sliding_window": 0},) * layers
    first = fields.whole("max_window_layers", minimum=0, counts=False)
    default = tuple("sliding" if i >= first else "full" for i in range(layers))
    return by_layer_type(fields, layers, default)


def by_last_layers(fields: ConfigFields, layers: int) -> Changes:
    """dots.llm1: a window from layer `max_window_layers` on, where there is one."""
    first = fields.whole("max_window_layers", minimum=0, counts=False)
    sliding = fields.window() > 0
    default = tuple("sliding" if sliding and i >= first else "full" for i in range(layers))
    return by_layer_type(fields, layers, default)


def qwen2_moe_windows(fields: ConfigFields, layers: int) -> Changes:
    """Qwen2-MoE: every second layer below `max_window_layers` when `use_sliding_window`."""
    if not fields.flag("use_sliding_window", counts=False):
        return ({"sliding_window": 0},) * layers
    last = fields.whole("max_window_layers", minimum=0, counts=False)
    default = tuple("full" if i % 2 or i >= last else "sliding" for i in range(layers))
    return by_layer_type(fields, layers, default)


def qwen3_moe_windows(fields: ConfigFields, layers: int) -> Changes:
    """Qwen3-MoE: every layer when `use_sliding_window`."""
    used = fields.flag("use_sliding_window", counts=False)
    return ({"sliding_window": fields.window() if used else 0},) * layers


def alternating(fields: ConfigFields, layers: int) -> Changes:
    """Gemma 2, gpt-oss: sliding, full, sliding, full ... unless `layer_types` says otherwise."""
    return by_layer_type(fields, layers, _every(2, layers))


def capped_and_alternating(fields: ConfigFields, layers: int) -> Changes:
    """Gemma 2: as `alternating`; scores and logits are capped unless the config's caps are null."""
    caps = {
        "soft_cap": fields.cap("attn_logit_softcapping"),
        "logit_cap": fields.cap("final_logit_softcapping"),
    }
    return [{**change, **caps} for change in alternating(fields, layers)]


def five_to_one(fields: ConfigFields, layers: int) -> Changes:
    """Gemma 3: full attention in every sixth layer (`sliding_window_pattern`)."""
    step = fields.whole("sliding_window_pattern", counts=False)
    return by_layer_type(fields, layers, _every(step, layers))


def chunks_without_rotary(fields: ConfigFields, layers: int) -> Changes:
    """Llama 4: every fourth layer has no rotary embedding and sees everything, others a chunk."""
    given = fields.numbers("no_rope_layers")
    step = fields.whole("no_rope_layer_interval", counts=False)
    if given:
        given = fields.numbers("no_rope_layers", layers)
    rotary = given or tuple(int((i + 1) % step != 0) for i in range(layers))
    chunk = fields.window("attention_chunk_size")
    return [{"rotary": bool(r), "sliding_window": chunk if r else 0} for r in rotary]


def every_fourth_full(fields: ConfigFields, layers: int) -> Changes:
    """OLMo 3: full attention in every fourth layer unless `layer_types` says otherwise."""
    return by_layer_type(fields, layers, _every(4, layers))


def full_without_rotary(fields: ConfigFields, layers: int) -> Changes:
    """Command R7B: as OLMo 3, and layers that see everything have no rotary embedding."""
    windows = every_fourth_full(fields, layers)
    return [{**change, "rotary": change["sliding_window"] > 0} for change in windows]


def hybrid_or_full(fields: ConfigFields, layers: int) -> Changes:
    """EXAONE 4: without a window, or windows with every fourth layer full and unrotated."""
    if not fields.window():
        return ({"sliding_window": 0},) * layers
    pattern = fields.config.get("sliding_window_pattern")
    step = fields.whole("sliding_window_pattern", counts=False) if pattern else layers + 1
    default = tuple(
        "sliding" if (i + 1) % step and i < layers - 1 else "full" for i in range(layers)
    )
    windows = by_layer_type(fields, layers, default)
    return [{**change, "rotary": change["sliding_window"] > 0} for change in windows]


def every_fourth_without_rotary(fields: ConfigFields, layers: int) -> Changes:
    """SmolLM3: `no_rope_layers` (1 where there is one), else every fourth layer has none."""
    step = fields.whole("no_rope_layer_interval", counts=False)
    given = fields.numbers("no_rope_layers")
    given = fields.numbers("no_rope_layers", layers) if given else None
    rotary = given or tuple(int((i + 1) % step != 0) for i in range(layers))
    window = fields.window() if fields.flag("use_sliding_window", counts=False) else 0
    return [{"rotary": bool(r), "sliding_window": window if r else 0} for r in rotary]


def by_layer_type(fields: ConfigFields, layers: int, default: tuple[str, ...]) -> Changes:
    """The window in the layers that `layer_types`, or the family's rule, call sliding."""
    window = fields.window()
    types = fields.texts("layer_types", layers) or default
    return [{"sliding_window": window if t.startswith("sliding") else 0} for t in types]


def _every(step: int, layers: int) -> tuple[str, ...]:
    return tuple("sliding" if (i + 1) % step else "full" for i in range(layers))
