"""What pipelines keep: micro-batches in flight, and the tensors that stages hand to one another."""

from __future__ import annotations

from shardwise.core.arrays import least
from shardwise.core.layout import Layout
from shardwise.core.memory.kernel import micro_batch_tokens
from shardwise.core.memory.megatron import runs_megatron
from shardwise.core.scenario import Scenario


def interleaved_in_flight(
    micro_batches: float, layout: Layout, index: int, behind: int = 0
) -> float:
    """Micro-batches' worth of a stage's layers that interleaved 1F1B keeps on stage `index`.

    Before its first backward a rank runs 2(p - i - 1) + (v - 1)p chunks forward, and one more
    (Narayanan et al. 2021, section 2.2; megatron/core/pipeline_parallel/schedules.py,
    `get_pp_rank_microbatches`): over v that is p + (p - 1)/v on the first stage, and still
    (v - 1)p/v + 1/v on the last. `behind` are layers of multi-token prediction in the last chunk.

    >>> interleaved_in_flight(16, Layout(pipeline_parallel=4, virtual_stages=2), 0)
    5.5
    >>> interleaved_in_flight(16, Layout(pipeline_parallel=4, virtual_stages=2), 3)
    2.5
    """
    stages, chunks = layout.pipeline_parallel, layout.virtual_stages
    listed = layout.layers_per_stage or ()
    layers = listed[index::stages]
    if index == stages - 1 and layers:
        layers = (*layers[:-1], layers[-1] + behind)
    if len(listed) > stages and any(layers):
        held = 0.0
        for some, count in zip(chunks_in_flight(layout, index), layers, strict=True):
            held = held + count * least(1.0 * micro_batches, some)
        return held / sum(layers)
    return least(1.0 * micro_batches, _ahead(layout, index) / chunks)


def _ahead(layout: Layout, index: int) -> int:
    stages, chunks = layout.pipeline_parallel, layout.virtual_stages
    return 2 * (stages - index - 1) + (stages * (chunks - 1)) + 1


def chunks_in_flight(layout: Layout, index: int) -> tuple[int, ...]:
    """Micro-batches in flight in each of a stage's chunks before its first backward.

    p micro-batches pass one chunk, then the next (megatron/core/pipeline_parallel/schedules.py,
    `get_model_chunk_id`).

    >>> chunks_in_flight(Layout(pipeline_parallel=4, virtual_stages=2), 0)
    (7, 4)
    >>> chunks_in_flight(Layout(pipeline_parallel=4, virtual_stages=2), 3)
    (4, 1)
    """
    stages, chunks = layout.pipeline_parallel, layout.virtual_stages
    whole, rest = divmod(_ahead(layout, index), stages)
    each = [0] * chunks
    for turn in range(whole + 1):
        each[turn % chunks] += stages if turn < whole else rest
    return tuple(each)


def held_elsewhere(
    scenario: Scenario, index: int, flight: float, whole: float, ends: tuple[float, float]
) -> float:
    """Bytes of micro-batches in flight beside the one that is being worked on.

    Args:
        scenario: gives schedule and stages.
        index: the stage.
        flight: its micro-batches in flight.
        whole: what all its blocks and both ends save for one micro-batch.
        ends: of that, what is saved before the first block and after the last; with interleaved
            chunks these belong to the first and to the last chunk.
    """
    if scenario.layout.schedule != "interleaved":
        return whole * (flight - 1)
    each, (early, late) = chunks_in_flight(scenario.layout, index), ends
    first = early * (least(1.0 * scenario.micro_batches, each[0]) - 1)
    return (whole - early - late) * (flight - 1) + first + late * (each[-1] - 1)


def in_flight(scenario: Scenario, index: int) -> float:
    """Micro-batches whose activations a stage holds at once.

    GPipe all m; 1F1B and zero bubble (ZB-H1) min(m, p - i) on stage i (Narayanan et al. 2021,
    section 2.2); interleaved 1F1B 1 + (p - 1)/(p v) times as many layers' worth on the first stage
    (same, section 2.2; Korthikanti et al. 2022, section 4.2.3), see `interleaved_in_flight`.
    """
    layout, micro_batches = scenario.layout, scenario.micro_batches
    stages = layout.pipeline_parallel
    if stages == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return 1.0 * micro_batches
    if layout.schedule == "interleaved":
        behind = len(scenario.model.prediction)
        return interleaved_in_flight(micro_batches, layout, index, behind)
    return 1.0 * least(micro_batches, stages - index)


def handed_on_bytes(scenario: Scenario, index: int) -> float:
    """The gradient of a stage's input, referenced until the next micro-batch's is made.

    megatron/core/pipeline_parallel/schedules.py, `input_tensor_grad` in
    `forward_backward_pipelining_without_interleaving`: every stage but the first.
    """
    if index == 0 or not runs_megatron(scenario):
        return 0.0
    return _hidden_bytes(scenario)


def retained_input_bytes(scenario: Scenario, index: int) -> float:
    """The last input that each model chunk received, and its gradient, until the next one comes.

    megatron/core/models/gpt/gpt_model.py: `set_input_tensor` keeps the input in the decoder, and
    the schedule had its gradient retained. The first chunk of all reads token ids.
    """
    if not runs_megatron(scenario) or scenario.layout.pipeline_parallel == 1:
        return 0.0
    chunks = scenario.layout.virtual_stages - (1 if index == 0 else 0)
    return 2 * chunks * _hidden_bytes(scenario)


def _hidden_bytes(scenario: Scenario) -> float:
    layout, element = scenario.layout, scenario.training.precision.compute_bytes
    whole = element * micro_batch_tokens(scenario) * scenario.model.hidden
    return whole / (layout.tensor_parallel if layout.sequence_parallel else 1)


def kept_bytes(scenario: Scenario, index: int) -> float:
    """What DeepSpeed's and torch's pipelines keep beside activations for a micro-batch in flight.

    A stage's output. deepspeed/runtime/pipe/engine.py: `pipe_buffers["outputs"]` is freed after the
    micro-batch's backward, as `fwd_cache` of torch/distributed/pipelining/stage.py and nanotron's
    `microbatches_activations_requiring_backward` are; Megatron-LM frees the data of what it has
    sent (`deallocate_output_tensor`). DeepSpeed also keeps its input: forward runs on a clone of
    `pipe_buffers["inputs"]` (`_exec_forward_pass`), which the first stage fills with token ids.
    """
    layout = scenario.layout
    if layout.engine == "megatron" or layout.pipeline_parallel == 1:
        return 0.0
    outputs = index < layout.pipeline_parallel - 1
    inputs = layout.engine == "deepspeed" and index > 0
    return (outputs + inputs) * _hidden_bytes(scenario)


def receive_buffer_bytes(scenario: Scenario, index: int) -> tuple[float, float]:
    """Buffers into which pipelines receive, there from the first step on: (one, one a micro-batch).

    Inputs on every stage but the first, gradients of outputs on every stage but the last: one for
    each micro-batch of the step in torch's (torch/distributed/pipelining/stage.py,
    `_prepare_forward_infra` and `_prepare_backward_infra`), one of each in DeepSpeed's
    (deepspeed/runtime/pipe/engine.py, `pipe_recv_buf` and `grad_layer`).
    """
    layout = scenario.layout
    last = layout.pipeline_parallel - 1
    if layout.engine in ("megatron", "nanotron") or last == 0:
        return 0.0, 0.0
    buffers = ((index > 0) + (index < last)) * _hidden_bytes(scenario)
    return (buffers, 0.0) if layout.engine == "deepspeed" else (0.0, buffers)
