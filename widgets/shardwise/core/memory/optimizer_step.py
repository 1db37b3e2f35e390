"""The optimizer's own temporary: what a step allocates and frees again."""

from __future__ import annotations

import math

from shardwise.core.layout import Layout
from shardwise.core.memory.deepspeed import SUB_GROUP
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.states import States, sharded_shape
from shardwise.core.memory.tensor_classes import TensorClass
from shardwise.core.optimizers import by_muon
from shardwise.core.precision import Precision


def step_temporary(
    states: States, layout: Layout, precision: Precision, step: str, stage: Stage
) -> float:
    """The optimizer's own temporary.

    `foreach` AdamW makes one tensor list as large as the weights it updates
    (torch/optim/adamw.py, `exp_avg_sq_sqrt = torch._foreach_sqrt`), which is what killed a 7B on
    eight 16 GB cards in `optimizer.step` (meta-llama/llama-cookbook#234). DeepSpeed
    flattens the shard's gradients and makes them fp32 before that (stage_1_and_2.py, `step`: the
    18P/N of its estimator), in stage 3 by groups of at most `sub_group_size` elements; its own
    FusedAdam (`fused`) has no list, the torch AdamW that a Trainer hands over has.
    Adafactor and Muon update one tensor after another (`_adafactor`, `_muon`). Megatron-LM's
    gradients are fp32 already, or are copied to fp32 at the step and kept until the
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
    if optimizer == "adafactor":
        return _adafactor(stage, layout, precision)
    if optimizer == "muon" and layout.engine != "fsdp1":
        return _muon(stage, layout, precision, implementation)
    if optimizer != "adamw" or implementation == "fused":
        return 0.0
    # The loop has two tensors at once: the root of the second moment and its quotient.
    at_once = updated if implementation == "foreach" else 2 * states.largest
    return precision.state_bytes * at_once


def _elements(states: States, precision: Precision) -> float:
    return (states.parameters - states.frozen) / precision.parameter_bytes


def _adafactor(stage: Stage, layout: Layout, precision: Precision) -> float:
    """Squared gradient and its sum with epsilon of one tensor, in fp32.

    Beside them the last tensor's update, which the loop still names, and fp32 copies of the
    gradient and of the tensor itself where these have 16 bits (transformers/optimization.py,
    `Adafactor.step`; traced).
    """
    shard = (layout.shard or 1) if layout.engine == "fsdp2" else 1
    copies = (precision.gradient_bytes < 4) + (precision.parameter_bytes < 4)
    most = 0.0
    for unit in {*stage.unit_tensors, stage.root_tensors}:
        before = 0
        for tensor in unit:
            own = math.prod(sharded_shape(tensor.shape, shard))
            most = max(most, (8.0 + 4 * copies) * own + 4 * before)
            before = own
    return most


def _muon(stage: Stage, layout: Layout, precision: Precision, implementation: str) -> float:
    """The most of Muon's largest matrix and of the AdamW step that follows for all else."""
    matrices = [t for t in stage.tensors if by_muon(t.shape, t.part)]
    shard = (layout.shard or 1) if layout.engine == "fsdp2" else 1
    others = [t for t in stage.tensors if not by_muon(t.shape, t.part)]
    adamw = 0.0
    if implementation == "foreach":
        adamw = sum(t.elements for t in others) / shard
    elif implementation == "for-loop":
        adamw = 2 * max((t.elements // t.count for t in others), default=0) / shard
    largest = max((newton_schulz_bytes(t, precision, shard) for t in matrices), default=0.0)
    return max(largest, precision.state_bytes * adamw)


def newton_schulz_bytes(tensor: TensorClass, precision: Precision, shard: int) -> float:
    """What Muon allocates to make one matrix orthogonal.

    The interpolated momentum in the gradient's type, the matrix in bf16 before and after an
    iteration, its Gram matrix and that one's polynomial over the smaller side (torch/optim/
    _muon.py, `_zeropower_via_newtonschulz`; traced). Over FSDP2's shards the first three are a
    rank's own part, while DTensor gathers both small matrices: each is there twice (traced; a wide
    matrix over few ranks may be gathered itself, which is not counted).
    """
    rows, columns = tensor.shape
    whole, small = rows * columns, min(rows, columns) ** 2
    own = (precision.gradient_bytes + 2 * 2) * whole / shard
    return own + (4 if shard == 1 else 8) * small
