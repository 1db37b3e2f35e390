"""What nanotron holds besides states and saved activations.

Read from github.com/huggingface/nanotron, src/nanotron; sizes in bytes on one rank. Its engine
(`layout.engine`) keeps 16-bit weights, one fp32 gradient buffer for all of them, and master weights
and moments that ZeRO-1 splits (`optim/gradient_accumulator.py`, `optim/zero.py`).
"""

from __future__ import annotations

from shardwise.core.layout import Layout
from shardwise.core.memory.kernel import micro_batch_tokens
from shardwise.core.memory.loss import LossBytes
from shardwise.core.scenario import Scenario


def piles_up(layout: Layout) -> bool:
    """Whether 16-bit gradients wait beside the fp32 ones until a micro-batch's backward is over.

    `FP32GradientAccumulator.backward` adds them after `loss.backward()` and drops them then.
    """
    return layout.engine == "nanotron"


def bucket_bytes(layout: Layout, ranks: int, elements: float, element_bytes: int) -> float:
    """DDP's 16-bit buckets: without ZeRO the model is wrapped, with it it is not.

    trainer.py, `make_ddp`: more than one replica, and no ZeRO over fp32 accumulation.
    """
    wrapped = layout.engine == "nanotron" and layout.zero_stage == 0 and ranks > 1
    return element_bytes * elements if wrapped else 0.0


def sync_bytes(layout: Layout, ranks: int, elements: float) -> tuple[float, float]:
    """Temporaries of ZeRO-1 after the last micro-batch: of the reduction, and of the gather.

    distributed.py, `reduce_scatter_coalesced`: fp32 gradients are flattened, one tensor for each
    rank and one for the result; `all_gather_coalesced` does the same with 16-bit weights after the
    step. (torch's `reduce_scatter` of a list may flatten once more; with that, runs of the
    Ultra-Scale Playbook would not have fit on their cards.)
    """
    if layout.engine != "nanotron" or layout.zero_stage == 0 or ranks == 1:
        return 0.0, 0.0
    return elements * (4 + 4 / ranks), elements * (2 + 2 / ranks)


def gather_buffer_bytes(scenario: Scenario) -> float:
    """Buffers that nanotron's modules keep: two of a whole layer input's size.

    parallel/tensor_parallel/functional.py, `MemoryBuffer`: a whole input is gathered into the
    first, a whole gradient into the second, in every layer the same (`REDUCE_SCATTER`, that is
    sequence parallelism).
    """
    training, layout = scenario.training, scenario.layout
    if training.model_code != "nanotron" or not layout.sequence_parallel:
        return 0.0
    tokens = micro_batch_tokens(scenario)
    buffers = 1.0 if layout.regather_inputs is False else 2.0  # else inputs are not kept whole
    return buffers * training.precision.compute_bytes * tokens * scenario.model.hidden


def head_loss(scenario: Scenario) -> LossBytes:
    """Logits and loss: fp32 logits and their softmax, both alive as the loss is made.

    models/llama.py casts the logits (`cast_to_fp32`) and keeps them named while
    `sharded_cross_entropy` subtracts the maximum into a new tensor, which becomes the softmax and,
    in backward, the gradient; that is cast to 16 bits: 4 + 4 bytes an entry of V/t, then 4 + 2.
    """
    training, layout = scenario.training, scenario.layout
    tokens = micro_batch_tokens(scenario)
    cells = tokens * scenario.model.vocabulary / layout.tensor_parallel
    return LossBytes(8.0 * cells, (4.0 + training.precision.compute_bytes) * cells, 4.0 * cells)
