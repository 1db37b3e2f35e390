"""DeepSpeed's buckets and gathered parameters, by ZeRO stage."""

from __future__ import annotations

from shardwise.core.layout import Layout
from shardwise.core.memory.buffers import Buffers
from shardwise.core.memory.stages import Stage
from shardwise.core.precision import Precision

# DeepSpeed's defaults, in elements (deepspeed/runtime/zero/config.py).
REDUCE_BUCKET = 500_000_000
ALLGATHER_BUCKET = 500_000_000
PREFETCH_BUCKET = 50_000_000
MAX_LIVE_PARAMETERS = 1_000_000_000
SUB_GROUP = 1_000_000_000


def bf16_optimizer(layout: Layout, precision: Precision) -> bool:
    """Whether `BF16_Optimizer` runs: stage 1, bf16 weights, fp32 accumulation, nothing offloaded.

    deepspeed/runtime/engine.py, `_do_optimizer_sanity_check`.
    """
    return (
        (layout.engine, layout.zero_stage) == ("deepspeed", 1)
        and precision.gradients == "16-bit+fp32"
        and layout.offload_optimizer == "none"
    )


def deepspeed_buffers(
    stage: Stage, layout: Layout, precision: Precision, temporary: float
) -> Buffers:
    """DeepSpeed's buckets: allocated whole, however small the model is.

    Stages 1 and 2 (deepspeed/runtime/zero/stage_1_and_2.py): `setup_buckets` takes the reduce
    bucket at the first gradient, a second one with `overlap_comm`; weights are gathered in place,
    with no all-gather bucket (runtime/utils.py, `all_gather_dp_groups`). Pipelines reduce once,
    after the last micro-batch, and make the bucket then (`reduce_gradients`). Stage 3 (stage3.py):
    the bucket is there from the start, `reduce_scatter_coalesced` copies what it holds, and up to
    1e9 gathered parameters live beside a prefetch bucket.
    """
    element, weights = precision.compute_bytes, stage.weights
    if layout.zero_stage == 0:
        # fp32 copies one by one, then flattened: deepspeed/runtime/fp16/fused_optimizer.py.
        return Buffers(extra_step=2 * temporary)
    if bf16_optimizer(layout, precision):
        # fp32 gradients flattened by buckets, and once more in the type of the
        # reduction (deepspeed/runtime/engine.py, `allreduce_bucket`).
        flat = (4 + element) * float(min(REDUCE_BUCKET, stage.elements))
        return Buffers(extra_end=flat, extra_step=temporary)
    bucket = float(element * layout.reduce_bucket_elements)
    if layout.zero_stage < 3:
        buckets = bucket * (2 if layout.overlaps else 1)
        during = 0.0 if layout.pipeline_parallel > 1 else buckets
        return Buffers(extra_backward=during, extra_end=buckets, extra_step=temporary)
    largest, every = max(weights, default=0), sum(weights)
    live = element * float(min(every, max(MAX_LIVE_PARAMETERS, largest + PREFETCH_BUCKET)))
    copied = element * float(min(layout.reduce_bucket_elements, stage.elements))
    trained = max((*stage.units, stage.root), default=0)
    return Buffers(
        gathered_forward=live,
        gathered_loss=live,
        gathered_backward=live,
        extra_backward=copied + element * trained,
        extra_end=copied,
        extra_step=temporary,
        held=bucket,
    )
