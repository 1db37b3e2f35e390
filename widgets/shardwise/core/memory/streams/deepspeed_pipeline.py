"""Two steps of one stage of DeepSpeed's pipeline over checkpointed Megatron-LM blocks.

deepspeed/runtime/pipe/engine.py and schedule.py (`TrainSchedule`: 1F1B), zero/stage_1_and_2.py,
bf16_optimizer.py, fp16/fused_optimizer.py; Megatron-DeepSpeed's megatron/model/gpt_model.py
(`GPTModelPipe`: embedding, blocks, final norm and head, fp32 logits).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.memory.deepspeed import REDUCE_BUCKET
from shardwise.core.memory.outside import norms_embedding
from shardwise.core.memory.stages import Stage, stages_of
from shardwise.core.memory.streams import recomputed_block
from shardwise.core.memory.streams.recomputed_block import BlockBytes, Gradients
from shardwise.core.memory.streams.tape import Tape
from shardwise.core.scenario import Scenario

EMBEDDING = (-1, 0)
STEPS = 2
"""The second step finds optimizer states and the first one's free blocks."""


@dataclass
class InFlight:
    """What one micro-batch keeps on the stage: before the blocks, their inputs and the output."""

    before: list[int]
    inputs: list[int]
    after: list[int]


class PipelineStage:
    """Writes the events of one stage."""

    def __init__(self, scenario: Scenario, index: int) -> None:
        """A stage of a scenario that `replay.streams` said yes to."""
        training, layout = scenario.training, scenario.layout
        self.tape = Tape()
        self.grads = Gradients(self.tape)
        self.scenario = scenario
        self.stage: Stage = stages_of(scenario.model, layout, training.trainable)[index]
        self.element = training.precision.compute_bytes
        samples, length = training.micro_batch, training.sequence_length
        self.size = BlockBytes.of(
            self.stage.blocks[0][0], samples, length, self.element, layout.tensor_parallel
        )
        vocabulary = scenario.model.vocabulary / layout.tensor_parallel
        self.table = self.element * vocabulary * scenario.model.hidden
        self.cells = samples * length * vocabulary
        self.fp32_gradients = training.precision.gradients == "16-bit+fp32"
        self.flying: dict[int, InFlight] = {}

    def events(self) -> list[tuple[int, int, int]]:
        """States, then steps: warm-up, one forward and one backward in turn, the rest."""
        states = self._states()
        stages, index = self.scenario.layout.pipeline_parallel, self.stage.index
        ahead = min(self.scenario.micro_batches, stages - index)
        # Later micro-batches repeat what twice the pipeline's depth has shown.
        count = min(self.scenario.micro_batches, 2 * stages + 2)
        for _ in range(STEPS):
            for micro in range(ahead - 1):
                self._forward(micro)
            for micro in range(ahead - 1, count):
                self._forward(micro)
                self._backward(micro - ahead + 1)
            for micro in range(count - ahead + 1, count):
                self._backward(micro)
            self._step(states)
        return self.tape.events

    def _states(self) -> float:
        """Weights one by one, then flattened; master weights and moments; the elements of a share.

        The flat copy is made on the host, so the first tensors' blocks stay, free
        (zero/stage_1_and_2.py, `move_to_cpu`).
        """
        tape, size, count = self.tape, self.size, self.stage.layers
        first = []
        if self.stage.has_embedding or self.stage.has_head:
            first.append(tape.take(self.table))
        first += [tape.take(w) for _ in range(count) for w in (*size.weights, *size.small)]
        tape.drop(*first)
        elements = self.stage.elements
        tape.take(self.element * elements)
        sharded = self.scenario.layout.zero_stage == 1
        share = elements / (self.scenario.data_parallel if sharded else 1)
        copy = tape.take(self.element * share)
        tape.take(4 * share)
        tape.drop(copy)
        gradient = tape.take(4 * share)
        tape.take(4 * share)
        tape.take(4 * share)
        tape.drop(gradient)
        if self.fp32_gradients:
            tape.take(4 * elements)
        hidden = self.size.hidden
        if not self.stage.has_head:
            tape.take(hidden)  # grad_layer
        if not self.stage.has_embedding:
            tape.take(hidden)  # pipe_recv_buf
        return share

    def _forward(self, micro: int) -> None:
        tape, hidden = self.tape, self.size.hidden
        before: list[int] = []
        if self.stage.has_embedding:
            embedded = tape.take(hidden)
            if norms_embedding(self.stage):
                before.append(embedded)
                embedded = tape.take(hidden)
            if self.size.mask:
                dropped = tape.take(hidden)
                before.append(tape.take(self.size.mask))
                tape.drop(embedded)
                embedded = dropped
            entering = tape.take(hidden)  # (token, sample) order
            tape.drop(embedded)
        else:
            before.append(tape.take(hidden))  # pipe_buffers["inputs"]
            entering = tape.take(hidden)
        inputs = [entering]
        for _ in range(self.stage.layers):
            output, _saved = recomputed_block.forward(tape, self.size, keep=False)
            inputs.append(output)
        self.flying[micro] = InFlight(before, inputs, self._head() if self.stage.has_head else [])

    def _head(self) -> list[int]:
        """(sample, token) order, final norm, logits, their fp32 copy, which becomes the softmax."""
        tape, hidden = self.tape, self.size.hidden
        turned, normed = tape.take(hidden), tape.take(hidden)
        logits = tape.take(self.element * self.cells)
        whole = tape.take(4 * self.cells)
        tape.drop(logits)
        return [turned, normed, whole]

    def _backward(self, micro: int) -> None:
        tape, hidden = self.tape, self.size.hidden
        kept = self.flying.pop(micro)
        if self.fp32_gradients:
            self.grads.clear()  # clear_lp_grads
        arriving = 0
        if self.stage.has_head:
            arriving = self._head_backward(kept.after)
        for index in reversed(range(self.stage.layers)):
            gradient = recomputed_block.backward(tape, self.size, index, arriving, self.grads)
            if index < self.stage.layers - 1 or self.stage.has_head:
                tape.drop(kept.inputs[index + 1])
            arriving = gradient
        tape.drop(kept.inputs[0])
        if self.stage.has_embedding:
            turned = tape.take(hidden)
            tape.drop(arriving, *kept.before)
            self.grads.add(EMBEDDING, self.table)
            tape.drop(turned)
        else:
            tape.drop(arriving, *kept.before)
        if not self.stage.has_head:
            tape.drop(kept.inputs[-1])

    def _head_backward(self, after: list[int]) -> int:
        tape, hidden = self.tape, self.size.hidden
        turned, normed, whole = after
        logits = tape.take(self.element * self.cells)
        tape.drop(whole)
        gradient = tape.take(hidden)
        self.grads.add((self.stage.layers, 0), self.table)
        tape.drop(logits, normed)
        through = tape.take(hidden)
        tape.drop(gradient, turned)
        back = tape.take(hidden)
        tape.drop(through)
        return back

    def _step(self, share: float) -> None:
        """Reduction and step: buckets, then flat fp32 gradients, larger than any free block.

        Of ZeRO-1 the first data-parallel rank is followed, whose share begins with the embedding
        on the first stage. Each gradient of the share is copied in fp32 to look for overflows
        (`_has_inf_or_nan`) and in fp64 for its norm (`get_grad_norm_direct`).
        """
        tape = self.tape
        elements = self.stage.elements
        if self.fp32_gradients:
            tape.drop(tape.take((4 + self.element) * min(REDUCE_BUCKET, elements)))
            tape.drop(tape.take(4 * share))
            return
        if self.scenario.layout.zero_stage == 1:
            bucket = min(self.scenario.layout.reduce_bucket_elements, elements)
            tape.drop(tape.take(self.element * bucket))
            own = self.grads.clear(but=self.element * share)
            for width in (4, 8):
                for size in own:
                    tape.drop(tape.take(width * size / self.element))
            partition = tape.take(self.element * share)
            flat = tape.take(4 * share)
            tape.drop(partition)
            self.grads.clear()
            tape.drop(flat)
            return
        copies, flat = tape.take(4 * share), tape.take(4 * share)
        self.grads.clear()
        tape.drop(copies, flat)
