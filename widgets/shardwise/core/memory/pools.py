"""Reserved bytes that no tensor takes at the peak: what the caching allocator keeps for others.

The allocator keeps a pool for each CUDA stream, and a freed block serves only requests of its own
stream that fit into it (c10/cuda/CUDACachingAllocator.cpp, `get_free_block`). What one stream or
one phase needed stays reserved while another peaks. Under pressure free blocks go back before a
request fails (`release_cached_blocks`), so this counts for the reserved figure and not for the
verdict.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.core.arrays import largest, most
from shardwise.core.memory.frame import Frame
from shardwise.core.memory.kernel import micro_batch_tokens
from shardwise.core.scenario import Scenario


def stranded_bytes(
    scenario: Scenario, frame: Frame, phases: Mapping[str, Mapping[str, float]], phase: str
) -> float:
    """Bytes in free blocks that one stage cannot use in the phase at which it peaks.

    FSDP2 (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py): sharded gradients are made on
    the reduce-scatter stream and outputs of all-gathers on a stream of their own, the root's
    (embedding, norm, head) and the two blocks' of which at most one is in use as the loss peaks.
    The loss: logits in 16 bits are freed before backward, and their block is too small for the fp32
    gradients that come after it.
    """
    layout, training = scenario.layout, scenario.training
    loss_peaks = phase == "loss"
    size = 0.0
    if layout.engine == "fsdp2" and scenario.shard > 1:
        gradients = [parts["gradients"] for parts in phases.values()]
        size += largest(gradients) - phases[phase]["gradients"]
        root, block = frame.whole_units
        in_use = 1 if loss_peaks or phase == "backward" else 0
        size += root + (2 - in_use) * block
    if layout.engine == "deepspeed" and layout.zero_stage < 3:
        size += _flattened(phases, phase)
    if layout.engine == "nanotron" and layout.zero_stage == 1 and phase != "gradients complete":
        size += _scattered(scenario, frame, phases)
    whole = training.loss == "full" and training.model_code not in ("nanotron", "megatron")
    if loss_peaks and whole and training.precision.compute_bytes < 4:
        tokens = micro_batch_tokens(scenario)
        vocabulary = scenario.model.vocabulary / layout.tensor_parallel
        size += training.precision.compute_bytes * tokens * vocabulary
    return size


def _scattered(
    scenario: Scenario, frame: Frame, phases: Mapping[str, Mapping[str, float]]
) -> float:
    """nanotron's flattened gradients, one tensor a rank, where no activation left a block as large.

    Blocks of logits do serve (distributed.py, `reduce_scatter_coalesced`).
    """
    layout, training = scenario.layout, scenario.training
    whole = phases["gradients complete"]["buffers"] - phases["between steps"]["buffers"]
    widest = max((max(s.intermediate, s.hidden) for s, _ in frame.stage.blocks), default=0)
    tokens = micro_batch_tokens(scenario)
    saved = training.precision.compute_bytes * tokens * widest / layout.tensor_parallel
    left = most(0.0, whole - phases["forward"]["logits and loss"])
    return left * (whole / scenario.data_parallel > saved)


def _flattened(phases: Mapping[str, Mapping[str, float]], peak: str) -> float:
    """What DeepSpeed's passes, reduction and step cannot lend one another.

    Reduction (BF16Optimizer) and step flatten gradients: each copy is one tensor, larger than any
    block that activations leave (deepspeed/runtime/engine.py, zero/stage_1_and_2.py,
    fp16/fused_optimizer.py).
    """
    if peak != "optimizer step":
        reduced = phases["gradients complete"]["buffers"] - phases[peak]["buffers"]
        return most(phases["optimizer step"]["buffers"], reduced)
    names = ("activations", "logits and loss", "buffers")
    passes = (parts for phase, parts in phases.items() if phase != "optimizer step")
    return largest([sum(parts[name] for name in names) for parts in passes])
