"""EleutherAI/cookbook's `calc/calc_transformer_mem.py`, commit 827ee3b (2026-03-15)."""

from __future__ import annotations

from shardwise.core.peers.row import PeerRow
from shardwise.core.peers.shape import Decoder, decoder_of
from shardwise.core.scenario import Scenario

PEER, VERSION = "EleutherAI cookbook", "827ee3b (2026-03-15)"
_SOURCE = "calc/calc_transformer_mem.py: calc_mem"
ALLGATHER_BUCKET, LIVE_PARAMETERS = 5e8, 1e9
_OPTIMIZERS = {"adamw": 12, "muon": 8, "sgd-momentum": 8}


def parameters(model: Decoder, sequence: int) -> float:
    """Its count: two embeddings, positions, biased norms, attention and MLP.

    >>> llama = Decoder(32, 4096, 32, 8, 128, 14336, True, 128256, False)
    >>> parameters(llama, 4096)
    8047828992.0
    """
    return _dense(model, sequence) + _mlp(model)


def _dense(model: Decoder, sequence: int) -> float:
    hidden, layers = model.hidden, model.layers
    kv_ratio = model.kv_heads / model.heads
    embedding = 2 * model.vocabulary * hidden
    norms = 8 * hidden * layers + 2 * hidden
    attention = int(2 * (1 + kv_ratio) * layers * hidden * hidden)
    return embedding + hidden * sequence + norms + attention


def _mlp(model: Decoder) -> float:
    linears = 3 if model.gated else 2
    return float(linears * model.layers * model.hidden * model.width)


def memory(
    model: Decoder,
    sequence: int,
    micro_batch: int,
    *,
    gpus: int,
    tensor: int = 1,
    pipeline: int = 1,
    expert: int = 1,
    zero: int = 0,
    checkpoint: bool = False,
    partition: bool = False,
    mixed: bool = True,
    optimizer: int = 12,
) -> dict[str, float]:
    """Bytes a GPU by its own parts: activations, model, gradients, optimizer, communication.

    As in the code, gradients and the optimizer are not divided by tensor or pipeline degrees, ZeRO
    divides by all GPUs, and `checkpoint` drops the attention scores only.
    """
    element = 2 if mixed else 4
    held = parameters(model, sequence)
    if model.experts:
        held = _dense(model, sequence) + model.experts / expert * _mlp(model)
    weights = held * element / (tensor * pipeline) / (gpus if zero == 3 else 1)
    scores = 0.0 if checkpoint else 5 * model.heads * sequence / model.hidden
    activations = sequence * micro_batch * model.hidden * model.layers * (34 + scores)
    communication = 0.0
    if zero and gpus > 1:
        communication = element * (ALLGATHER_BUCKET + (LIVE_PARAMETERS if zero == 3 else 0))
    return {
        "activations": activations / (tensor if partition else 1),
        "model": weights,
        "gradients": held * 4 / (gpus if zero >= 2 else 1),
        "optimizer": held * optimizer / (gpus if zero else 1),
        "communication": communication,
    }


def row(scenario: Scenario) -> PeerRow:
    """What the script prints for the scenario, its defaults kept where a flag has no counterpart.

    Attention scores that FlashAttention or checkpointing avoid are switched off with its
    `--checkpoint-activations`, the only flag that drops them.
    """
    model = decoder_of(scenario.model)
    if isinstance(model, str):
        return PeerRow(PEER, VERSION, "", None, not_applicable=model, source=_SOURCE)
    layout, training = scenario.layout, scenario.training
    keeps_scores = training.activation_checkpointing == "none" and training.attention in (
        "math",
        "eager",
    )
    optimizer = _OPTIMIZERS.get(training.optimizer, 12)
    mixed = training.precision.compute_bytes < 4
    parts = memory(
        model, training.sequence_length, training.micro_batch,
        gpus=scenario.cluster.world_size, tensor=layout.tensor_parallel,
        pipeline=layout.pipeline_parallel, expert=layout.expert_parallel, zero=layout.zero_stage,
        checkpoint=not keeps_scores, partition=layout.sequence_parallel, mixed=mixed,
        optimizer=optimizer,
    )  # fmt: skip
    flags = [f"--zero-stage {layout.zero_stage}", f"--num-gpus {scenario.cluster.world_size}"]
    flags += [] if keeps_scores else ["--checkpoint-activations"]
    flags += ["--partition-activations"] if layout.sequence_parallel else []
    flags += [] if mixed else ["--disable-mixed-precision"]
    setting = " ".join(flags) + ", fp32 gradients (its default)"
    if not keeps_scores and training.activation_checkpointing == "none":
        setting += f"; nothing is recomputed: its flag stands for {training.attention} attention, "
        setting += "which keeps no scores"
    return PeerRow(
        PEER, VERSION, setting, sum(parts.values()), parts,
        leaves_out=_leaves_out(scenario), defects=_defects(scenario), source=_SOURCE,
    )  # fmt: skip


def _leaves_out(scenario: Scenario) -> tuple[str, ...]:
    lines = [
        "Logits and the loss are not counted.",
        "Activations are those of GPT (34 s b h a layer), whatever the MLP, norms or heads.",
        "The gathered root unit and prefetch of FSDP are not counted.",
    ]
    if scenario.training.activation_checkpointing in ("full", "every"):
        lines.append("Full checkpointing is unknown to it: its flag recomputes attention scores.")
    if scenario.layout.context_parallel > 1:
        lines.append("Context parallelism is unknown to it.")
    if scenario.layout.offload_optimizer != "none":
        lines.append("Offload is unknown to it.")
    return tuple(lines)


def _defects(scenario: Scenario) -> tuple[str, ...]:
    layout, lines = scenario.layout, []
    if layout.tensor_parallel * layout.pipeline_parallel > 1:
        lines.append("Gradients and optimizer state are not divided by TP or PP.")
        if layout.zero_stage:
            lines.append("ZeRO divides by all GPUs instead of the data-parallel degree.")
    if layout.pipeline_parallel > 1:
        lines.append("Activations are not divided by PP.")
    if scenario.model.tied:
        lines.append("A tied embedding is counted twice.")
    return tuple(lines)
