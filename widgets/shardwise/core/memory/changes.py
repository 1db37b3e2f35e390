"""The changes that sensitivity tries: what each costs, and where that is known from."""

from __future__ import annotations

from shardwise.core.memory import layout_changes as layout
from shardwise.core.memory import training_changes as training
from shardwise.core.memory.proposal import Proposal

CHANGES: tuple[Proposal, ...] = (
    Proposal(
        "flash-attention", "FlashAttention", "training.attention",
        "None: exact attention that recomputes scores inside its kernel (Dao et al. 2022).",
        training.flash_attention, cheap=True,
    ),
    Proposal(
        "chunked-loss", "chunked loss", "training.loss",
        "Next to none: the head and the loss run over one chunk of tokens after another.",
        training.chunked_loss, cheap=True,
    ),
    Proposal(
        "fused-adamw", "fused AdamW", "training.optimizer_implementation",
        "None: the same mathematics in one kernel, usually faster (torch.optim.AdamW, fused=True).",
        training.fused_optimizer, cheap=True,
    ),
    Proposal(
        "bucket-views", "gradients as views of DDP's buckets", "layout.gradient_as_bucket_view",
        "None: only detach_() on gradients is ruled out (torch's DistributedDataParallel).",
        layout.bucket_views, cheap=True,
    ),
    Proposal(
        "sequence-parallel", "sequence parallel", "layout.sequence_parallel",
        "None: reduce-scatter and all-gather move what the all-reduce did "
        "(Korthikanti et al. 2022, section 4.2.2).",
        layout.sequence_parallel, cheap=True,
    ),
    Proposal(
        "compiled-code", "compiled modules (SwiGLU, norms, rotary fused)", "training.model_code",
        "Minutes of compilation, again for each new shape; steps then run faster.",
        training.compiled_code, cheap=True,
    ),
    Proposal(
        "shard-optimizer", "sharded optimizer state (ZeRO-1)", "layout.zero_stage",
        "No more traffic than DDP: reduce-scatter and all-gather make up one all-reduce "
        "(Rajbhandari et al. 2020, section 7).",
        layout.shard_optimizer, cheap=True,
    ),
    Proposal(
        "full-sharding", "FSDP2 with resharding", "layout.engine",
        "1.5 times DDP's traffic: parameters are gathered again in backward "
        "(Rajbhandari et al. 2020, section 7.2).",
        layout.full_sharding,
    ),
    Proposal(
        "half-micro-batch", "half the micro-batch", "training.micro_batch",
        "Twice the micro-batches a step for as many samples: smaller matrix products use the GPU "
        "less well.",
        training.half_micro_batch,
    ),
    Proposal(
        "selective-checkpointing", "selective activation checkpointing",
        "training.activation_checkpointing",
        "Attention scores are computed twice: 2.7 % more FLOPs for GPT-3 "
        "(Korthikanti et al. 2022, section 5).",
        training.selective_checkpointing,
    ),
    Proposal(
        "per-op-checkpointing", "activation checkpointing by operator",
        "training.activation_checkpointing",
        "All but every second matrix product and the attention are computed again in backward "
        "(torchtitan, selective_ac_option = op).",
        training.per_op_checkpointing,
    ),
    Proposal(
        "full-checkpointing", "full activation checkpointing", "training.activation_checkpointing",
        "Forward is computed again in backward: a third more FLOPs.",
        training.full_checkpointing,
    ),
    Proposal(
        "balanced-routing", "balanced routing", "training.expert_imbalance",
        "A balancing loss disturbs the model's own; a bias on the router's scores does not "
        "(Wang et al. 2024, arXiv 2408.15664).",
        training.balanced_routing,
    ),
    Proposal(
        "bf16-gradients", "bf16 gradients", "training.precision",
        "Gradients are added up over micro-batches or ranks in 16 bits: the more, the noisier.",
        training.sixteen_bit_gradients,
    ),
    Proposal(
        "8-bit-adamw", "8-bit AdamW", "training.optimizer",
        "Moments are quantized in blocks of 256 (Dettmers et al. 2022); another library, and loss "
        "curves to watch.",
        training.eight_bit_adamw,
    ),
    Proposal(
        "optimizer-offload", "optimizer offload", "layout.offload.optimizer",
        "Gradients and weights cross PCIe each step and the CPU runs the optimizer "
        "(Ren et al. 2021).",
        layout.optimizer_offload,
    ),
    Proposal(
        "tensor-parallel", "tensor parallel", "layout.tensor_parallel",
        "Activations are exchanged twice a block in forward and in backward, so NVLink is needed; "
        "half as many replicas.",
        layout.twice_tensor,
    ),
    Proposal(
        "context-parallel", "context parallel", "layout.context_parallel",
        "Keys and values travel around the ranks in every block; half as many replicas.",
        layout.twice_context,
    ),
    Proposal(
        "expert-parallel", "expert parallel", "layout.expert_parallel",
        "Tokens cross the network to their experts and back in every block (two all-to-alls).",
        layout.twice_expert,
    ),
    Proposal(
        "pipeline-parallel", "pipeline parallel", "layout.pipeline_parallel", "A bubble.",
        layout.twice_pipeline,
    ),
    Proposal(
        "twice-the-gpus", "twice the GPUs (shard)", "cluster.nodes",
        "Twice the GPUs to pay for; from one node to two, collectives cross slower links.",
        layout.twice_nodes,
    ),
)  # fmt: skip
"""Every change that is tried; cheap ones first, so that they win among equals."""
