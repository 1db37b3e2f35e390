"""The largest tensors of a step: what the allocator may have to find a whole free block for.

A freed block serves a request only if it is as large. So with torch's default allocator a step can
need one more block as large as its largest tensor while that many bytes lie idle in smaller ones
(`MemoryReport.default_allocator_bytes`); expandable segments have no such blocks.
"""

from __future__ import annotations

from shardwise.core.memory.buffers import gathered_element
from shardwise.core.memory.frame import Frame, frame_of
from shardwise.core.memory.head import upcasts
from shardwise.core.memory.kernel import micro_batch_tokens, tokens_of
from shardwise.core.memory.loss import CHUNKS
from shardwise.core.memory.operators.attention import attention_kernel, softmax_bytes
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.scenario import Scenario
from shardwise.core.structure import BlockShape


def largest_tensor_bytes(scenario: Scenario, index: int) -> float:
    """Bytes of the largest tensor of one stage that comes and goes within a step.

    Flat buffers that stand from the first step to the last do not.
    """
    frame = frame_of(scenario, index)
    found = [_weights(scenario, frame)]
    if frame.stage.has_head and scenario.model.vocabulary:
        found.append(_logits(scenario, frame))
    for shape in {shape for shape, _ in frame.stage.blocks}:
        found += _activations(shape, tokens_of(scenario, shape), frame.kernel)
    return max(found)


def _weights(scenario: Scenario, frame: Frame) -> float:
    """A unit's reduction in FSDP, else the gradient of the largest tensor, as it is made."""
    precision, layout = scenario.training.precision, scenario.layout
    if frame.run is not None and frame.run.fsdp:
        return max(frame.whole_units) * precision.reduce_bytes / gathered_element(precision)
    sizes = (tensor.elements for tensor in frame.stage.tensors)
    return precision.gradient_bytes * max(sizes, default=0.0) / layout.tensor_parallel


def _logits(scenario: Scenario, frame: Frame) -> float:
    """All logits of a micro-batch in the loss' type, or a chunk of them."""
    training, layout = scenario.training, scenario.layout
    tokens = micro_batch_tokens(scenario)
    cells = tokens * (scenario.model.vocabulary / layout.vocabulary_ranks)
    element = 4 if upcasts(scenario, frame.stage) else training.precision.compute_bytes
    if training.loss == "compiled":
        element = training.precision.compute_bytes
    return element * cells / (CHUNKS if training.loss in ("chunked", "fused") else 1)


def _activations(shape: BlockShape, tokens: Tokens, kernel: Kernel) -> list[float]:
    """The widest rows of a block, the scores where they are written out, the scan's states."""
    element = kernel.element_bytes
    stream = 4 if kernel.eager_modules else kernel.residual
    widths: list[float] = [shape.intermediate, shape.heads * shape.head_dim]
    if shape.experts:
        routed = shape.experts_per_token * kernel.expert_load
        widths.append(routed * max(shape.expert_intermediate, shape.hidden))
    if shape.mixer is not None:
        widths.append(shape.mixer.projected)
    found = [
        stream * tokens.count * shape.hidden,
        element * tokens.count * max(widths) / kernel.tensor,
    ]
    ran = attention_kernel(shape, tokens, kernel) if shape.attention else ""
    if ran in ("eager", "math"):
        score = softmax_bytes(shape, kernel) if ran == "eager" else 4
        found.append(score * tokens.count * tokens.attended * shape.heads / kernel.tensor)
    if shape.mixer is not None and not shape.mixer.heads:  # the scan as a loop keeps every state
        found.append(4 * tokens.count * shape.mixer.inner * shape.mixer.state / kernel.tensor)
    return found
