"""What the peers' formulas ask of a model: one decoder shape for all layers."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.model import Model
from shardwise.core.structure import BlockShape


@dataclass(frozen=True)
class Decoder:
    """A transformer as the peers' formulas see it; names as in their command lines.

    `feed_forward` is the width of a dense MLP (of one expert where there is no dense layer),
    `pattern` holds for each layer whether it has routed experts.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    gated: bool
    vocabulary: int
    tied: bool
    rmsnorm: bool = True
    experts: int = 0
    experts_per_token: int = 0
    expert_feed_forward: int = 0
    shared_feed_forward: int = 0
    shared_gate: bool = False
    pattern: tuple[bool, ...] = ()
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    value_head_dim: int = 0

    @property
    def width(self) -> int:
        """The MLP width that a formula with one kind of layer is given."""
        return self.feed_forward or self.expert_feed_forward


def decoder_of(model: Model) -> Decoder | str:
    """The decoder shape of a model, or the sentence that says why it has none."""
    shapes = [block.block for block in model.blocks if block.block is not None]
    if not shapes or not model.vocabulary or not all(shape.attention for shape in shapes):
        return "The formula knows transformers with a vocabulary and attention in every layer."
    if any(shape.cross_attention or not shape.causal for shape in shapes):
        return "The formula knows decoders only; this model has an encoder."
    first = shapes[0]
    dense = next((shape for shape in shapes if shape.intermediate), first)
    routed = next((shape for shape in shapes if shape.experts), BlockShape(first.hidden))
    return Decoder(
        layers=model.layers,
        hidden=model.hidden,
        heads=first.heads,
        kv_heads=first.kv_heads,
        head_dim=first.head_dim or model.hidden // first.heads,
        feed_forward=dense.intermediate,
        gated=first.gated,
        vocabulary=model.vocabulary,
        tied=model.tied,
        rmsnorm=first.norm == "rmsnorm",
        experts=routed.experts,
        experts_per_token=routed.experts_per_token,
        expert_feed_forward=routed.expert_intermediate,
        shared_feed_forward=routed.shared_intermediate,
        shared_gate=routed.shared_gate,
        pattern=tuple(shape.experts > 0 for shape in shapes),
        q_lora_rank=first.q_lora_rank,
        kv_lora_rank=first.kv_lora_rank,
        rope_head_dim=first.rope_head_dim,
        value_head_dim=first.value_head_dim,
    )
