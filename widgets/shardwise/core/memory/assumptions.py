"""What an estimate takes for granted, and what it leaves out, in sentences."""

from __future__ import annotations

from shardwise.core.memory.completeness import leaves_out_activations
from shardwise.core.memory.estimate import estimate
from shardwise.core.memory.idle import FLAT_STATES
from shardwise.core.memory.kernel import gathers_again
from shardwise.core.memory.megatron import runs_megatron
from shardwise.core.memory.operators.recompute import CORE_ATTENTION
from shardwise.core.memory.reserve import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    EXPANDABLE_SEGMENTS,
    FRAGMENTATION,
)
from shardwise.core.pictures import tower_of
from shardwise.core.routing import routing_matters, with_skewed_routing
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib

_CODES = {
    "transformers": "transformers' eager modules",
    "torchtitan": "torchtitan's modules with a fused RMSNorm",
    "megatron": "Megatron-LM over TransformerEngine",
    "nanotron": "nanotron's eager modules over Triton norms",
    "compiled": "torch.compile, which keeps what its min-cut partitioner keeps of a Llama block",
}


def assumptions_of(scenario: Scenario) -> tuple[str, ...]:
    """One sentence for each thing assumed, the model's own first."""
    return (
        *scenario.model.assumptions,
        *_code(scenario),
        *_mixers(scenario),
        *_pictures(scenario),
        *_fsdp(scenario),
        *_axes(scenario),
        *_routing(scenario),
        *_megatron(scenario),
        *_deepspeed(scenario),
        *_copies(scenario),
        *_batch(scenario),
        *_frozen(scenario),
        *_hardware(scenario),
    )


def _code(scenario: Scenario) -> list[str]:
    """Whose code runs, and what it makes of the config and the card."""
    training = scenario.training
    lines = [f"Activations are those of {_CODES[training.model_code]}."]
    norms = {shape.norm for shape, _ in scenario.model.block_groups}
    if training.model_code == "transformers" and "rmsnorm" in norms:
        lines.append("Its RMSNorm computes in fp32 and keeps fp32 copies.")
    if training.recompute_modules != CORE_ATTENTION:
        named = ", ".join(training.recompute_modules)
        read = training.activation_checkpointing == "selective"
        if read and training.model_code == "megatron":
            lines.append(f"Selective checkpointing recomputes: {named}.")
        else:
            lines.append("recompute_modules: read by Megatron-LM's selective checkpointing alone.")
    positions = scenario.model.max_positions
    if 0 < positions < training.sequence_length:
        lines.append(
            f"The config allows {positions:,} positions; a sequence of "
            f"{training.sequence_length:,} tokens goes beyond what the model was made for."
        )
    if "16-bit" in training.precision.compute:
        dtype = "bf16" if scenario.cluster.gpu.bf16 else "fp16 with loss scaling"
        lines.append(f"16-bit means {dtype} on {scenario.cluster.gpu.name}.")
    return lines


def _fsdp(scenario: Scenario) -> list[str]:
    """What FSDP wraps and keeps."""
    layout, training = scenario.layout, scenario.training
    lines: list[str] = []
    if layout.engine in ("fsdp1", "fsdp2") and training.precision.master_bytes:
        lines.append(
            "FSDP itself keeps no separate master weights; this precision counts them as the ZeRO "
            "paper does (fsdp-mixed has fp32 shards instead; the sum is the same with Adam)."
        )
    if layout.engine in ("fsdp1", "fsdp2"):
        lines.append("Each block is one FSDP unit; embedding, final norm and head are the root.")
    if layout.engine in ("fsdp1", "fsdp2") and layout.pipeline_parallel > 1:
        lines.append(
            "In a pipeline FSDP keeps gathered weights and whole gradients until the last "
            "micro-batch (torch.distributed.pipelining)."
        )
    return lines


def _axes(scenario: Scenario) -> list[str]:
    """How tensors are cut over the axes, and what checkpointing by operator keeps."""
    layout, training = scenario.layout, scenario.training
    lines: list[str] = []
    if layout.sequence_parallel:
        again = (
            "gathered again in backward"
            if gathers_again(layout, training.model_code)
            else "kept as gathered"
        )
        lines.append(f"Sequence parallelism: inputs of linear layers are {again}.")
    if training.activation_checkpointing == "per-op":
        lines.append(
            "Checkpointing by operator keeps attention's results and every first of two matrix "
            "products, as torchtitan does."
        )
    experts = max((shape.experts for shape, _ in scenario.model.block_groups), default=0)
    ranks = scenario.shard // layout.expert_parallel
    if layout.engine == "fsdp2" and experts and ranks > experts // layout.expert_parallel:
        lines.append(
            f"FSDP2 splits tensors on dimension 0, which is {experts} in the experts' tensors: "
            f"over {ranks} ranks the fullest still hold whole experts. Expert parallelism, or "
            "engines that cut flat buffers (DeepSpeed, FSDP1), go on."
        )
    if layout.tensor_parallel > 1 and training.model_code == "transformers":
        if layout.vocabulary_parallel:
            plan = "splits the vocabulary too, as torchtitan's plan does, and the loss is parallel"
        else:
            plan = "follows transformers' plan: embedding and logits are whole on every rank"
        lines.append(f"Tensor parallelism {plan} (vocabulary_parallel).")
    return lines


def _megatron(scenario: Scenario) -> list[str]:
    """How Megatron-LM and TransformerEngine are set up."""
    if not runs_megatron(scenario):
        return []
    layout, training = scenario.layout, scenario.training
    lines: list[str] = []
    fused = "added to main_grad as they are made, with one placeholder a shape"
    made = "made in 16 bits and then added to main_grad"
    chosen = fused if layout.gradient_accumulation_fusion else made
    lines.append(f"Weight gradients are {chosen}.")
    if training.attention != "flash":
        own = "TransformerEngine's unfused one"
        if training.attention == "eager":
            own = "Megatron-LM's own (transformer-impl local), with a buffer for its scores"
        lines.append(f"Attention is {own}.")
    lines.append("The distributed optimizer gathers parameters into the weights themselves.")
    return lines


def _deepspeed(scenario: Scenario) -> list[str]:
    """DeepSpeed's bucket, and whose optimizer it runs."""
    layout, training = scenario.layout, scenario.training
    if layout.engine != "deepspeed" or not layout.zero_stage:
        return []
    lines: list[str] = []
    buckets = 2 if layout.overlaps and layout.zero_stage < 3 else 1
    lines.append(
        f"DeepSpeed's reduce bucket has {layout.reduce_bucket_elements:,} elements"
        + (", twice because of overlap_comm." if buckets == 2 else ".")
    )
    if layout.zero_stage == 1 and training.precision.key == "mixed-fp32-grads":
        lines.append(
            "DeepSpeed's stage 1 keeps bf16 gradients beside fp32 ones: 2 bytes more a parameter, "
            "which precision mixed-20 counts."
        )
    if training.optimizer == "adamw" and training.optimizer_implementation == "foreach":
        lines.append(
            "DeepSpeed runs torch's foreach AdamW, as Trainers hand it over; its own FusedAdam "
            "(optimizer_implementation fused) needs no temporary list at the step."
        )
    return lines


def _copies(scenario: Scenario) -> list[str]:
    """What DDP keeps twice, and what FSDP's offload takes along."""
    layout = scenario.layout
    lines: list[str] = []
    if layout.engine == "ddp" and not layout.gradient_as_bucket_view and scenario.data_parallel > 1:
        lines.append("DDP keeps its buckets beside the gradients (gradient_as_bucket_view=False).")
    if layout.offload_optimizer != "none" and layout.engine in ("fsdp1", "fsdp2"):
        lines.append("FSDP's CPU offload takes parameter shards and gradients along.")
    return lines


def _batch(scenario: Scenario) -> list[str]:
    """How the global batch comes out."""
    training = scenario.training
    lines: list[str] = []
    if training.global_batch is None:
        count = scenario.micro_batches
        each = "one micro-batch" if count == 1 else f"{count} micro-batches"
        lines.append(f"No global batch given: {each} a replica and step.")
    elif scenario.global_batch != training.global_batch:
        lines.append(
            f"A global batch of {training.global_batch} does not divide over "
            f"{scenario.data_parallel} replicas x micro-batch {training.micro_batch}: "
            f"{scenario.micro_batches} micro-batches each make it {scenario.global_batch}."
        )
    return lines


def _routing(scenario: Scenario) -> list[str]:
    """How routed tokens are spread over ranks, with what a skewed router would need."""
    layout, training = scenario.layout, scenario.training
    if not any(shape.experts for shape, _ in scenario.model.block_groups):
        return []
    lines: list[str] = []
    capacity = training.expert_capacity_factor
    if capacity is not None:
        padded = training.expert_capacity_padded or layout.engine == "deepspeed"
        kind = "are padded to" if padded else "take at most"
        lines.append(f"Experts {kind} {capacity:g} times the even share of tokens (capacity).")
    if layout.expert_parallel == 1:
        return [*lines, "Without expert parallelism a rank's routed rows do not depend on routing."]
    if not routing_matters(scenario):
        return lines
    imbalance = training.expert_imbalance
    how = (
        "evenly: expert_imbalance 1"
        if imbalance == 1
        else f"unevenly: expert_imbalance {imbalance:g}"
    )
    line = f"Routed tokens are spread {how} (the fullest expert-parallel rank over the even share)"
    if skewed := with_skewed_routing(scenario):
        more = estimate(skewed).peak_bytes - estimate(scenario).peak_bytes
        line += f"; at {skewed.training.expert_imbalance:g} the peak is {format_gib(more)} higher"
    return [*lines, f"{line}."]


def _hardware(scenario: Scenario) -> list[str]:
    """The card's attention kernel, and the reserve."""
    lines: list[str] = []
    gpu = scenario.cluster.gpu
    if scenario.training.attention == "flash" and not gpu.flash_attention:
        lines.append(
            f"{gpu.name} has no FlashAttention: torch's memory-efficient kernel, which stores no "
            "scores either, is counted instead."
        )
    lines.append(
        f"Reserve: {format_gib(CONTEXT_BYTES)} CUDA context, "
        f"{format_gib(COMMUNICATOR_BYTES)} NCCL for each process group, "
        f"{FRAGMENTATION:.0%} fragmentation, with {EXPANDABLE_SEGMENTS}; without it one more block "
        "as large as the largest tensor may be needed."
    )
    return lines


def _frozen(scenario: Scenario) -> list[str]:
    """What is taken for granted of frozen weights and adapters."""
    trainable, precision = scenario.training.trainable, scenario.training.precision
    if trainable.everything:
        return []
    lines = [f"Trained: {trainable.name}; the frozen weights have no gradients and no states."]
    if trainable.rank:
        lines.append(f"Adapters are stored as the precision says: {precision.parameters}.")
    if trainable.quantized:
        lines.append(
            f"The blocks' linear layers are {trainable.base}, experts too; embedding, norms, "
            "router and head stay in 16 bits (peft's prepare_model_for_kbit_training would make "
            "them fp32)."
        )
    if trainable.base == "int8":
        lines.append(
            "bitsandbytes' int8 layers hold their inputs for backward, also where blocks are "
            "checkpointed without re-entrant autograd."
        )
    return lines


def _mixers(scenario: Scenario) -> list[str]:
    """What a state-space model's code is taken to be."""
    groups = scenario.model.block_groups
    if scenario.training.model_code != "transformers" or leaves_out_activations(scenario):
        return []
    if not any(shape.recorded for shape, _ in groups):
        return []
    return [
        "State-space and linear-attention layers run transformers' own code without mamba_ssm, "
        "causal_conv1d or fla: with those kernels they save less."
    ]


def _pictures(scenario: Scenario) -> list[str]:
    """How many pictures the vision tower sees, and what becomes of one that sees none."""
    model, count = scenario.model, scenario.training.images_per_sample
    if not tower_of(model):
        return []
    if count:
        many = "one picture" if count == 1 else f"{count:,} pictures"
        return [
            f"Each sample has {many} of {model.fixed_sequence:,} patches (images_per_sample); the "
            "tokens that stand for them are among the sequence's."
        ]
    states = "its weights have states all the same (flat buffers)"
    if scenario.layout.engine not in FLAT_STATES:
        states = "its weights get no gradients and no optimizer state"
    passed = "; DDP needs find_unused_parameters" if scenario.layout.engine == "ddp" else ""
    return [f"No pictures (images_per_sample 0): the vision tower does not run, {states}{passed}."]


def not_modelled_in(scenario: Scenario) -> tuple[str, ...]:
    """One sentence for each term that a real run may have and the estimate leaves out."""
    lines = [
        "Workspaces of Triton's autotuner and of NCCL's user buffers."
        if runs_megatron(scenario)
        else "cuBLAS workspaces and the autotuner's (tens of MiB).",
        "Validation passes, checkpoints gathered on one rank, data-loader memory.",
    ]
    groups = scenario.model.block_groups
    if leaves_out_activations(scenario):
        lines.append(
            "The state-space scan's own activations, which can be the largest part of all: only "
            "norms and projections count, so the real peak is higher (traced: nearly three times "
            "as high where the scan runs as a loop in Python), and no verdict says that it fits."
        )
    if any(shape.experts for shape, _ in groups):
        lines.append("Tokens that experts drop, and buffers inside the all-to-all (NCCL, DeepEP).")
    if scenario.training.model_code == "compiled":
        lines.append("What the compiler recomputes or keeps in other architectures than Llama's.")
    if scenario.layout.context_parallel > 1:
        lines.append("Ring attention's blocks in flight.")
    if not scenario.model.known:
        lines.append("The real architecture: shape and activations are guessed from the size.")
    return tuple(lines)
