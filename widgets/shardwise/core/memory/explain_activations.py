"""What waits for backward, and the logits: operator by operator, micro-batch by micro-batch."""

from __future__ import annotations

from shardwise.core.arrays import there
from shardwise.core.memory.activations import block_saved
from shardwise.core.memory.explanation import Opened, plural, worst_stage
from shardwise.core.memory.kept import stage_activations
from shardwise.core.memory.kernel import kernel_of, micro_batch_tokens, tokens_of
from shardwise.core.memory.pipelines import held_elsewhere
from shardwise.core.memory.report import MemoryReport
from shardwise.core.units import format_gib


def activations(report: MemoryReport) -> Opened:
    """What blocks keep for backward: one block's operators, then the stage's and all in flight."""
    scenario, stage = report.scenario, worst_stage(report)
    shape = stage.blocks[0][0] if stage.blocks else None
    totals, flight = stage_activations(scenario, stage), report.worst.in_flight
    values: list[tuple[str, str]] = []
    if shape is not None:
        saved = block_saved(shape, tokens_of(scenario, shape), kernel_of(scenario))
        values += [(f"one block, {name}", format_gib(size)) for name, size in saved.operators]
        values.append(("one block, all saved", format_gib(saved.total)))
    values += [
        ("checkpointing", scenario.training.activation_checkpointing),
        ("kept for one micro-batch", f"by {plural(stage.layers, 'block')}"),
        ("in flight", plural(flight, "micro-batch").replace("batchs", "batches")),
    ]
    ends = (totals.early, totals.late)
    waiting = held_elsewhere(scenario, report.worst.index, flight, totals.whole, ends)
    source = "Korthikanti et al. 2022, section 4 and table 2: sbh(34 + 5as/h) by operator"
    running = report.binding_phase == "forward" and there(totals.running)
    more = "of the last block at work" if running else "that the pipeline keeps"
    return _formula(report, totals.whole, waiting, more), tuple(values), source


def _formula(report: MemoryReport, whole: float, waiting: float, rest: str) -> str:
    """One micro-batch's `whole` and others' bytes, by the phase; `rest` says whose the rest are."""
    size, flight = report.parts["activations"], report.worst.in_flight
    phase, own = report.binding_phase, size - waiting
    if not size:
        return "0 B"
    if phase in ("between steps", "optimizer step"):
        return f"{size:,.0f} B that the pipeline keeps"
    if waiting != whole * (flight - 1):  # what stands at the ends waits with its own chunk
        return f"{waiting:,.0f} B of other micro-batches in flight + {own:,.0f} B of this one"
    if phase == "backward":
        inside = f"{own:,.0f} B of blocks still to come and inside one block's backward"
        return f"{whole:,.0f} B kept x {flight - 1:.9g} in flight + {inside}"
    if phase == "gradients complete":
        kept = f"{whole:,.0f} B kept x {flight - 1:.9g} in flight"
        return kept + (f" + {own:,.0f} B that the pipeline keeps" if own > 0.5 else "")
    more = size - whole * flight
    if more < -0.5:
        return f"{size:,.0f} B kept before the last block"
    kept = f"{whole:,.0f} B kept x {flight:.9g} in flight"
    return kept + (f" + {more:,.0f} B {rest}" if more > 0.5 else "")


def logits(report: MemoryReport) -> Opened:
    """Logits, their fp32 copies and gradients, as the loss makes them."""
    scenario = report.scenario
    training, tensor = scenario.training, scenario.layout.tensor_parallel
    tokens = micro_batch_tokens(scenario)
    size = report.parts["logits and loss"]
    cells = tokens * scenario.model.vocabulary / tensor
    source = (
        "transformers/loss/loss_utils.py: 16-bit logits, fp32 copy, fp32 log-softmax (2 + 4 + 4 B "
        "in forward, 4 + 4 + 4 B in backward)"
    )
    if training.loss == "compiled":
        source = "torch/_functorch/partitioners.py: 16-bit logits and their gradient (2 + 2 B)"
    if training.model_code == "nanotron":
        source = "nanotron/parallel/tensor_parallel/functional.py: fp32 logits, softmax (4 + 4 B)"
    if training.model_code == "megatron":
        source = (
            "megatron/core/tensor_parallel/cross_entropy.py: 16-bit logits and fp32 softmax (2 + 4 "
            "B), or the head's backward with its weight's gradient"
        )
    return (
        f"{tokens:,.0f} tokens x {scenario.model.vocabulary:,} vocabulary / {tensor} "
        f"x {size / cells if cells else 0:.9g} B",
        (("loss", training.loss),),
        source,
    )
