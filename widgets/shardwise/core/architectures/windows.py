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


def by_layer_type(fields: ConfigFields, layers: int, default: tuple[str, ...]) -> Changes:
    """The window in the layers that `layer_types`, or the family's rule, call sliding."""
    window = fields.window()
    types = fields.texts("layer_types", layers) or default
    return [{"sliding_window": window if t.startswith("sliding") else 0} for t in types]


def _every(step: int, layers: int) -> tuple[str, ...]:
    return tuple("sliding" if (i + 1) % step else "full" for i in range(layers))
