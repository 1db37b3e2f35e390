"""The optimizer's own temporary: what a step allocates and frees again."""

from __future__ import annotations

from shardwise.core.layout import Layout
from shardwise.core.memory.deepspeed import SUB_GROUP
from shardwise.core.memory.states import States
from shardwise.core.precision import Precision


def step_temporary(states: States, layout: Layout, precision: Precision, step: str) -> float:
    """The optimizer's own temporary.

    `foreach` AdamW makes one tensor list as large as the weights it updates
    (torch/optim/adamw.py, `exp_avg_sq_sqrt = torch._foreach_sqrt`), which is what killed a 7B on
    eight 16 GB cards in `optimizer.step` (meta-llama/llama-cookbook#234). DeepSpeed
    flattens the shard's gradients and makes them fp32 before that (stage_1_and_2.py, `step`: the
    18P/N of its estimator), in stage 3 by groups of at most `sub_group_size` elements; its own
    FusedAdam (`fused`) has no list, the torch AdamW that a Trainer hands over has.
    Megatron-LM's gradients are fp32 already, or are copied to fp32 at the step and kept until the
    next one begins (megatron/core/optimizer/optimizer.py, `main_param.grad = ....float()`).
    """
    optimizer, implementation = step.split("/")
    if layout.offload_optimizer != "none":
        return 0.0
    updated = states.sharded_elements if layout.zero_stage >= 1 else _elements(states, precision)
    if layout.engine == "megatron":
        in_16_bits = precision.master_bytes and precision.gradient_bytes < 4
        return 4.0 * updated if in_16_bits else 0.0
    if layout.engine == "deepspeed":
        kept = precision.gradients in ("fp32", "16-bit+fp32")
        at_once = min(updated, SUB_GROUP) if layout.zero_stage == 3 else updated
        copied = 0.0 if kept or not precision.master_bytes else 4.0 * at_once
        flat = precision.gradient_bytes * updated if copied and layout.zero_stage in (1, 2) else 0.0
        listed = optimizer == "adamw" and implementation == "foreach"
        return copied + max(flat, precision.state_bytes * at_once if listed else 0.0)
    if optimizer != "adamw" or implementation == "fused":
        return 0.0
    # The loop has two tensors at once: the root of the second moment and its quotient.
    at_once = updated if implementation == "foreach" else 2 * states.largest
    return precision.state_bytes * at_once


def _elements(states: States, precision: Precision) -> float:
    return (states.parameters - states.frozen) / precision.parameter_bytes
