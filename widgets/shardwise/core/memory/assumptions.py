"""What an estimate takes for granted, and what it leaves out, in sentences."""

from __future__ import annotations

from shardwise.core.memory.reserve import COMMUNICATOR_BYTES, CONTEXT_BYTES, FRAGMENTATION
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib

_CODES = {
    "transformers": "transformers' eager modules",
    "torchtitan": "torchtitan's modules with a fused RMSNorm",
    "megatron": "Megatron-LM's fused modules (the published formulas)",
    "compiled": "a compiled model, counted like fused modules",
}


def assumptions_of(scenario: Scenario) -> tuple[str, ...]:
    """One sentence for each thing assumed, the model's own first."""
    layout, training = scenario.layout, scenario.training
    lines = list(scenario.model.assumptions)
    lines.append(f"Activations are those of {_CODES[training.model_code]}.")
    norms = {shape.norm for shape, _ in scenario.model.block_groups}
    if training.model_code == "transformers" and "rmsnorm" in norms:
        lines.append("Its RMSNorm computes in fp32 and keeps fp32 copies.")
    positions = scenario.model.max_positions
    if 0 < positions < training.sequence_length:
        lines.append(
            f"The config allows {positions:,} positions; a sequence of "
            f"{training.sequence_length:,} tokens goes beyond what the model was made for."
        )
    if "16-bit" in training.precision.compute:
        dtype = "bf16" if scenario.cluster.gpu.bf16 else "fp16 with loss scaling"
        lines.append(f"16-bit means {dtype} on {scenario.cluster.gpu.name}.")
    if layout.engine in ("fsdp1", "fsdp2") and training.precision.master_bytes:
        lines.append(
            "FSDP itself keeps no separate master weights; this precision counts them as the ZeRO "
            "paper does (fsdp-mixed has fp32 shards instead; the sum is the same with Adam)."
        )
    if layout.engine in ("fsdp1", "fsdp2"):
        lines.append("Each block is one FSDP unit; embedding, final norm and head are the root.")
    experts = max((shape.experts for shape, _ in scenario.model.block_groups), default=0)
    ranks = scenario.shard // layout.expert_parallel
    if layout.engine == "fsdp2" and experts and ranks > experts // layout.expert_parallel:
        lines.append(
            f"FSDP2 splits tensors on dimension 0, which is {experts} in the experts' tensors: "
            f"over {ranks} ranks the fullest still hold whole experts. Expert parallelism, or "
            "engines that cut flat buffers (DeepSpeed, FSDP1), go on."
        )
    if layout.tensor_parallel > 1 and training.model_code == "transformers":
        lines.append(
            "Tensor parallelism splits the vocabulary too, as torchtitan and Megatron-LM do; "
            "transformers' own plan leaves the embedding whole on every rank and gathers logits."
        )
    if layout.engine == "deepspeed" and layout.zero_stage:
        lines.append("DeepSpeed's buckets have their default sizes (5e8 elements).")
    if layout.engine == "ddp" and not layout.gradient_as_bucket_view and scenario.data_parallel > 1:
        lines.append("DDP keeps its buckets beside the gradients (gradient_as_bucket_view=False).")
    if layout.offload_optimizer != "none" and layout.engine in ("fsdp1", "fsdp2"):
        lines.append("FSDP's CPU offload takes parameter shards and gradients along.")
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
    if any(shape.experts for shape, _ in scenario.model.block_groups):
        lines.append("Tokens are spread evenly over the experts.")
    gpu = scenario.cluster.gpu
    if training.attention == "flash" and not gpu.flash_attention:
        lines.append(
            f"{gpu.name} has no FlashAttention: torch's memory-efficient kernel, which stores no "
            "scores either, is counted instead."
        )
    lines.append(
        f"Reserve: {format_gib(CONTEXT_BYTES)} CUDA context, "
        f"{format_gib(COMMUNICATOR_BYTES)} NCCL with more than one GPU, "
        f"{FRAGMENTATION:.0%} fragmentation."
    )
    return tuple(lines)


def not_modelled_in(scenario: Scenario) -> tuple[str, ...]:
    """One sentence for each term that a real run may have and the estimate leaves out."""
    lines = [
        "Adapters and frozen weights (LoRA, QLoRA): all parameters are trained.",
        "cuBLAS workspaces and the autotuner's (tens of MiB).",
        "Validation passes, checkpoints gathered on one rank, data-loader memory.",
    ]
    groups = scenario.model.block_groups
    if any(not shape.attention for shape, _ in groups):
        lines.append("The state-space scan's own activations: only norms and projections count.")
    if any(shape.experts for shape, _ in groups):
        lines.append("Uneven expert load and the all-to-all's buffers.")
    if scenario.training.model_code == "compiled":
        lines.append("What the compiler chooses to recompute.")
    if scenario.layout.context_parallel > 1:
        lines.append("Ring attention's blocks in flight.")
    if not scenario.model.known:
        lines.append("The real architecture: shape and activations are guessed from the size.")
    return tuple(lines)
