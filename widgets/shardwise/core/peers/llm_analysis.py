"""cli99/llm-analysis, `LLMAnalysis.training`, commit d841e40 (2024-11)."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.peers.row import PeerRow
from shardwise.core.peers.shape import Decoder, decoder_of
from shardwise.core.scenario import Scenario

PEER, VERSION = "llm-analysis", "d841e40 (2024-11)"
_SOURCE = "llm_analysis/analysis.py: training, get_activation_memory_per_layer"
RECOMPUTATION = {"none": 0, "selective": 1, "per-op": 1, "full": 4, "every": 0}
_OTHER_STATE = {"sgd": 0, "sgd-momentum": 4, "lion": 4, "muon": 4, "adafactor": 0, "adamw-8bit": 2}


@dataclass(frozen=True)
class Run:
    """One call of `training`; names as its arguments."""

    sequence: int
    batch: int
    data: int = 1
    tensor: int = 1
    sequence_parallel: int = 1
    pipeline: int = 1
    expert: int = 1
    zero: int = 0
    recomputation: int = 0
    flash: bool = True
    weight_bytes: int = 2
    other_state_bytes: int = 8


def parameters_of_layer(model: Decoder, tensor: int) -> tuple[float, float, float, float]:
    """Parameters of a layer: attention, MLP (of all experts), router, norms.

    Key-value heads are at least one a tensor-parallel rank; the embedding counts once, tied or not.
    """
    hidden = model.hidden
    kv_heads = max(model.kv_heads / tensor, 1) * tensor
    attention = 2 * hidden**2 + 2 * hidden * (hidden * kv_heads / model.heads)
    experts = max(1, model.experts)
    mlp = (3 if model.gated else 2) * hidden * model.width * experts
    return attention, mlp, hidden * experts if experts > 1 else 0, 2 * hidden


def states(model: Decoder, run: Run) -> dict[str, float]:
    """Bytes of weights, optimizer state (fp32 master weights and moments) and fp32 gradients."""
    attention, mlp, router, norms = parameters_of_layer(model, run.tensor)
    layers = int(model.layers / run.pipeline)
    ends = model.hidden * model.vocabulary + model.hidden

    def held(bytes_each: float, sharded: bool, *, weights: bool = False) -> float:
        ranks = run.data if sharded else 1
        expert_ranks = run.data / run.expert if sharded else 1
        # Weights put the router with the MLP and keep norms whole, the states do neither.
        routed = mlp / run.expert + (router if weights else 0)
        rest = attention + (0 if weights else router + norms)
        layer = routed / run.tensor / expert_ranks + rest / run.tensor / ranks
        layer += norms / ranks if weights else 0
        return bytes_each * (layers * layer + ends / run.tensor / ranks)

    return {
        "weights": held(run.weight_bytes, run.zero == 3, weights=True),
        "optimizer state": held(4 + run.other_state_bytes, run.zero >= 1),
        "gradients": held(4, run.zero >= 2),
    }


def activations_of_layer(model: Decoder, run: Run) -> float:
    """Bytes that one layer keeps: attention, MLP with two tensors of its width, two fp32 norms."""
    tokens = run.sequence * run.batch
    cells, element = tokens * model.hidden, run.weight_bytes
    if run.recomputation == 4:
        return element * cells / run.tensor
    core = (2 * cells + 4 * model.heads * tokens) * element / run.tensor
    if not run.flash:
        core = 2 * model.heads * run.sequence**2 * run.batch * element / run.tensor
    if run.recomputation == 1:
        core = 0.0
    split = cells / run.sequence_parallel
    attention = element * (split + 4 * cells / run.tensor) + core + split
    mlp, chosen = element * split, 1
    if model.experts > 1:
        chosen = model.experts_per_token
        mlp = element * (2 * split + cells * chosen + tokens * chosen + split * chosen)
    mlp += 2 * element * model.width / model.hidden * cells * chosen / run.tensor
    return attention + mlp + 2 * 4 * split


def peak(model: Decoder, run: Run) -> dict[str, float]:
    """Its parts: weights + optimizer + max(activations, gradients) + max(prefetch, loss backward).

    Two layers' weights are counted as prefetched whether or not they are sharded, all layers'
    activations whatever the pipeline degree (p micro-batches are in flight on the first stage).
    """
    held, tokens = states(model, run), run.sequence * run.batch
    element, cells = run.weight_bytes, tokens * model.hidden
    logits = element * model.vocabulary * tokens / run.tensor
    activations = model.layers * activations_of_layer(model, run) + logits
    activations += element * cells / run.tensor + 4 * cells / run.sequence_parallel
    attention, mlp, router, norms = parameters_of_layer(model, run.tensor)
    layer = element * ((attention + mlp / run.expert + router) / run.tensor + norms)
    return {
        "weights": held["weights"],
        "optimizer state": held["optimizer state"],
        "activations or gradients, the larger": max(activations, held["gradients"]),
        "prefetch or loss backward, the larger": max(2 * layer, logits),
    }


def row(scenario: Scenario) -> PeerRow:
    """`estimated_peak_memory_per_gpu` for the scenario."""
    model = decoder_of(scenario.model)
    if isinstance(model, str):
        return PeerRow(PEER, VERSION, "", None, not_applicable=model, source=_SOURCE)
    layout, training = scenario.layout, scenario.training
    tensor = layout.tensor_parallel
    run = Run(
        sequence=training.sequence_length,
        batch=training.micro_batch,
        data=scenario.shard if layout.zero_stage else scenario.data_parallel,
        tensor=tensor,
        sequence_parallel=tensor if layout.sequence_parallel else 1,
        pipeline=layout.pipeline_parallel,
        expert=layout.expert_parallel,
        zero=layout.zero_stage,
        recomputation=RECOMPUTATION.get(training.activation_checkpointing, 0),
        flash=training.attention not in ("math", "eager"),
        weight_bytes=4 if training.precision.compute_bytes == 4 else 2,
        other_state_bytes=_OTHER_STATE.get(training.optimizer, 8),
    )
    parts = peak(model, run)
    setting = f"ds_zero={run.zero}, dp_size={run.data}, activation_recomputation="
    setting += f"{run.recomputation}, flash_attn={run.flash}"
    return PeerRow(
        PEER, VERSION, setting, sum(parts.values()), parts,
        leaves_out=_leaves_out(scenario), defects=_defects(scenario, model), source=_SOURCE,
    )  # fmt: skip


def _leaves_out(scenario: Scenario) -> tuple[str, ...]:
    layout, training = scenario.layout, scenario.training
    lines = [
        "The fp32 copies of logits and the optimizer step's temporary are not counted.",
        "The CUDA context, communicators and fragmentation are not counted.",
    ]
    if layout.engine in ("ddp", "zero-redundancy"):
        lines.append("DDP's buckets are not counted.")
    if training.activation_checkpointing in ("full", "every"):
        lines.append("The working set of a recomputed layer is not counted.")
    if layout.context_parallel > 1:
        lines.append("Context parallelism is unknown to it.")
    if layout.offload_optimizer != "none":
        lines.append("Offload is unknown to it.")
    return tuple(lines)


def _defects(scenario: Scenario, model: Decoder) -> tuple[str, ...]:
    lines = ["Gradients and activations are never counted together, as accumulation has them."]
    if model.gated:
        lines.append("A gated MLP keeps two tensors of its width; it has three or four.")
    if not model.tied:
        lines.append("Embedding and head are counted once although they are two tensors.")
    if scenario.layout.zero_stage < 3:
        lines.append("Two prefetched layers are counted although nothing is gathered.")
    return tuple(lines)
