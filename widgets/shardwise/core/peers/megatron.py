"""Megatron-LM's `theoretical_memory_usage.py`, commit d98e8a64dd (2026-08-22)."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.peers.row import PeerRow
from shardwise.core.peers.shape import Decoder, decoder_of
from shardwise.core.scenario import Scenario

PEER, VERSION = "Megatron-LM formula", "d98e8a64dd (2026-08-22)"
_SOURCE = "megatron/training/theoretical_memory_usage.py"


@dataclass(frozen=True)
class Degrees:
    """Parallel degrees; experts are split by `expert_tensor` x `expert`."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    virtual: int = 1
    distributed_optimizer: bool = True

    @property
    def expert_data(self) -> int:
        """Ranks that hold the same experts."""
        world = self.data * self.tensor * self.pipeline * self.context
        return world // (self.expert_tensor * self.expert * self.pipeline)

    def bytes_per_parameter(self, ranks: int) -> float:
        """18, or 6 + 12/d with the distributed optimizer over d ranks."""
        return 6 + 12 / ranks if self.distributed_optimizer else 18.0


def attention_parameters(model: Decoder) -> float:
    """Attention weights of a layer, grouped-query or multi-latent; norm weights where it has them.

    >>> attention_parameters(Decoder(32, 4096, 32, 8, 128, 14336, True, 128256, False))
    41943040.0
    """
    hidden, heads, norm = model.hidden, model.heads, 1 if model.rmsnorm else 2
    if not model.kv_lora_rank:
        groups = 1 + model.kv_heads / heads
        return 2 * hidden * hidden * (groups * (model.head_dim * heads / hidden))
    plain = model.head_dim - model.rope_head_dim
    query = hidden * heads * model.head_dim
    if model.q_lora_rank:
        query = model.q_lora_rank * (hidden + heads * model.head_dim + norm)
    latent = model.kv_lora_rank * (hidden + heads * (plain + model.value_head_dim) + norm)
    return query + latent + hidden * model.rope_head_dim + heads * model.value_head_dim * hidden


def weights_and_optimizer(model: Decoder, degrees: Degrees) -> float:
    """Bytes of weights, gradients and optimizer on the most loaded shard.

    1/p of the layers, the embedding, and without a pipeline the head; norms and routers whole on
    every tensor-parallel rank, experts over their own grid.
    """
    hidden, norm = model.hidden, 1 if model.rmsnorm else 2
    mlp = (3 if model.gated else 2) * hidden
    routed_layers = sum(model.pattern)
    dense_layers = model.layers - routed_layers
    sharded = model.layers * attention_parameters(model)
    sharded += mlp * (dense_layers * model.feed_forward + routed_layers * model.shared_feed_forward)
    router = hidden * model.experts + (hidden if model.shared_gate else 0)
    whole = model.layers * 2 * hidden * norm + routed_layers * router + norm * hidden
    experts = routed_layers * mlp * model.expert_feed_forward * model.experts
    embedding = hidden * model.vocabulary
    ends = 2 if not model.tied and degrees.pipeline == 1 else 1
    regular = (sharded / degrees.pipeline + ends * embedding) / degrees.tensor
    regular += whole / degrees.pipeline
    routed = experts / degrees.pipeline / (degrees.expert_tensor * degrees.expert)
    own = regular * degrees.bytes_per_parameter(degrees.data)
    return own + (routed * degrees.bytes_per_parameter(degrees.expert_data) if routed else 0.0)


def activations(
    model: Decoder, sequence: int, batch: int, degrees: Degrees, micro_batches: int, *, split: bool
) -> float:
    """Bytes of activations on the first stage.

    `split`: sequence parallelism and selective recomputation, sbh(18 + 4f/h) a layer and all over
    t (Korthikanti et al. 2022, table 2). Otherwise sbh(10 + 24/t) a layer, and 5 % on top.
    """
    tokens, pipeline = sequence * batch, degrees.pipeline
    cells = tokens * model.hidden
    layer = 18 + 4 * model.width / model.hidden if split else 10 + 24 / degrees.tensor
    total = cells * layer * model.layers + (8 * tokens + cells) * pipeline
    if degrees.virtual > 1:
        total *= 1 + (pipeline - 1) / (pipeline * degrees.virtual)
    elif pipeline > 1:
        total *= min(1, micro_batches / pipeline)
    if split:
        ends = 4 * cells * (1 + model.vocabulary / model.hidden) if pipeline == 1 else 0
        return (total + ends) / degrees.tensor
    if pipeline == 1:
        total += 2 * (tokens * model.vocabulary / degrees.tensor + cells)
    return 1.05 * total


def row(scenario: Scenario) -> PeerRow:
    """What `report_theoretical_memory` prints, the vocabulary left unpadded."""
    model = decoder_of(scenario.model)
    if isinstance(model, str):
        return PeerRow(PEER, VERSION, "", None, not_applicable=model, source=_SOURCE)
    layout, training = scenario.layout, scenario.training
    tensor = layout.tensor_parallel
    degrees = Degrees(
        scenario.data_parallel, tensor, layout.pipeline_parallel, layout.context_parallel,
        layout.expert_parallel, layout.expert_tensor, layout.virtual_stages, layout.zero_stage > 0,
    )  # fmt: skip
    checkpointing = training.activation_checkpointing
    selective = checkpointing == "selective" or (
        checkpointing == "none" and training.attention not in ("math", "eager")
    )
    split = selective and (layout.sequence_parallel or tensor == 1)
    parts = {
        "weights and optimizer": weights_and_optimizer(model, degrees),
        "activations": activations(
            model, training.sequence_length, training.micro_batch, degrees,
            scenario.micro_batches, split=split,
        ),
    }  # fmt: skip
    optimizer = "6 + 12/d" if degrees.distributed_optimizer else "18"
    formula = "with" if split else "without"
    setting = f"{optimizer} bytes a parameter, activations {formula} sequence parallelism"
    setting += " and selective recomputation" if split else ""
    return PeerRow(
        PEER, VERSION, setting, sum(parts.values()), parts,
        leaves_out=_leaves_out(scenario), defects=_defects(scenario, split), source=_SOURCE,
    )  # fmt: skip


def _leaves_out(scenario: Scenario) -> tuple[str, ...]:
    layout, training = scenario.layout, scenario.training
    lines = ["Buckets, the CUDA context, communicators and fragmentation are not counted."]
    if layout.zero_stage >= 2:
        lines.append("ZeRO stages 2 and 3 are unknown to it: only the optimizer state is sharded.")
    if training.precision.key != "mixed-fp32-grads" or not training.optimizer.startswith("adamw"):
        lines.append("16-bit weights, fp32 gradients and Adam are taken for granted.")
    if training.activation_checkpointing in ("full", "every"):
        lines.append("Full checkpointing is unknown to it.")
    if any(shape.experts for shape, _ in scenario.model.block_groups):
        lines.append("Experts' activations, routing and the token dispatcher are not counted.")
    if layout.context_parallel > 1:
        lines.append("Context parallelism does not divide its activations.")
    if layout.offload_optimizer != "none":
        lines.append("Offload is unknown to it.")
    return tuple(lines)


def _defects(scenario: Scenario, split: bool) -> tuple[str, ...]:
    lines = []
    if split and scenario.training.activation_checkpointing == "none":
        lines.append("Dropout masks are counted although few models still drop out.")
    if not split:
        lines.append("sbh(10 + 24/t) is a GPT layer: MLP width, gating and heads change nothing.")
        lines.append("Logits are counted in 16 bits only.")
    return tuple(lines)
