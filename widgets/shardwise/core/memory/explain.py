"""Each number opened up: its formula, the values put in, and where the formula comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwise.core.adapters import trained_parameters
from shardwise.core.errors import unknown_key
from shardwise.core.memory.activations import block_saved
from shardwise.core.memory.autocast import cast_copies
from shardwise.core.memory.backward import whole_bytes
from shardwise.core.memory.buffers import gathered_element, holds_buckets
from shardwise.core.memory.kept import kernel_of, stage_activations, tokens_of
from shardwise.core.memory.megatron import resident_bytes, runs_megatron
from shardwise.core.memory.phases import ranks_reduced
from shardwise.core.memory.report import PARTS, MemoryReport
from shardwise.core.memory.stages import Stage, stages_of
from shardwise.core.memory.states import frozen_bytes, stage_states, stage_units
from shardwise.core.optimizers import OPTIMIZERS
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib


@dataclass(frozen=True)
class Explanation:
    """One part's number: `result_bytes` at the peak; `values` are (what, value with its unit)."""

    part: str
    formula: str
    values: tuple[tuple[str, str], ...]
    result_bytes: float
    source: str

    def __str__(self) -> str:
        """The formula, one line a value, the result and the source."""
        lines = [f"{PARTS[self.part]} = {self.formula}"]
        lines += [f"  {name}: {value}" for name, value in self.values]
        lines += [f"  = {format_gib(self.result_bytes)}", f"  source: {self.source}"]
        return "\n".join(lines)


def explain(report: MemoryReport, part: str) -> Explanation:
    """Open one part of a report at its peak.

    Raises:
        ScenarioError: not a key of `PARTS`.
    """
    if part not in PARTS:
        raise unknown_key("part", part, PARTS)
    formula, values, source = _EXPLAINERS[part](report)
    phase = ("phase", f"{report.binding_phase}, stage {report.worst.index}")
    return Explanation(part, formula, (phase, *values), report.parts[part], source)


_Opened = tuple[str, tuple[tuple[str, str], ...], str]


def _plural(count: int | float, noun: str) -> str:
    return f"{count:,g} {noun}" + ("" if count == 1 else "s")


def _sharing(scenario: Scenario, from_stage: int) -> tuple[str, str]:
    layout = scenario.layout
    ranks = scenario.shard if layout.zero_stage >= from_stage else 1
    why = f"{layout.engine}, ZeRO stage {layout.zero_stage}, tensor {layout.tensor_parallel}"
    return ("sharded over", f"{_plural(ranks, 'rank')} ({why})")


def _states(report: MemoryReport, part: str, element: float, stage: int, name: str) -> _Opened:
    scenario = report.scenario
    elements = report.parts[part] / element if element else 0.0
    values = [
        ("model", f"{scenario.model.parameters:,} parameters"),
        _sharing(scenario, stage),
        ("stored as", f"{name}, {element:g} B an element"),
    ]
    if element and not elements:
        values.append(("none now", _absence(scenario, part)))
    return (
        f"{elements:,.0f} elements on this rank x {element:g} B",
        tuple(values),
        scenario.training.precision.source,
    )


def _absence(scenario: Scenario, part: str) -> str:
    layout = scenario.layout
    if part != "gradients" or layout.offload_optimizer != "none":
        return "offloaded to the host"
    return "gradients do not exist yet at this moment"


def _parameters(report: MemoryReport) -> _Opened:
    precision = report.scenario.training.precision
    from_stage = 2 if report.scenario.layout.engine in ("fsdp1", "fsdp2") else 3
    if not report.scenario.training.trainable.everything:
        return _parted(report, from_stage)
    return _states(
        report, "parameters", precision.parameter_bytes, from_stage, precision.parameters
    )


def _parted(report: MemoryReport, from_stage: int) -> _Opened:
    """Parameters where some are frozen: the trained ones and the rest, each as it is stored."""
    scenario, stage = report.scenario, _worst_stage(report)
    training, layout = scenario.training, scenario.layout
    precision, trainable = training.precision, training.trainable
    frozen = frozen_bytes(stage, layout, precision, scenario.shard)
    size = report.parts["parameters"]
    frozen = min(frozen, size)  # nothing is left of either where parameters are offloaded
    trained = (size - frozen) / precision.parameter_bytes
    whole = scenario.model.parameters
    values = [
        ("trained", f"{trainable.name}: {trained_parameters(scenario.model, trainable):,}"),
        ("frozen", f"of {whole:,} parameters; stored as {trainable.base}"),
        _sharing(scenario, from_stage),
        ("trained ones stored as", f"{precision.parameters}, {precision.parameter_bytes:g} B"),
    ]
    if not size:
        values.append(("none now", "offloaded to the host"))
    return (
        f"{trained:,.0f} trained elements on this rank x {precision.parameter_bytes:g} B + "
        f"{frozen:,.0f} B of frozen weights",
        tuple(values),
        "Hu et al. 2021, LoRA, section 4; Dettmers et al. 2023, QLoRA, section 3",
    )


def _gradients(report: MemoryReport) -> _Opened:
    precision = report.scenario.training.precision
    return _states(report, "gradients", precision.gradient_bytes, 2, precision.gradients)


def _master(report: MemoryReport) -> _Opened:
    precision = report.scenario.training.precision
    return _states(report, "master weights", precision.master_bytes, 1, precision.master_weights)


def _optimizer(report: MemoryReport) -> _Opened:
    scenario = report.scenario
    optimizer = OPTIMIZERS[scenario.training.optimizer]
    stage = _worst_stage(report)
    sharded = scenario.layout.zero_stage >= 1
    states = stage_states(
        stage, scenario.layout, scenario.training.precision, optimizer.key, scenario.shard
    )
    elements = states.sharded_elements if sharded else stage.elements
    size = report.parts["optimizer state"]
    values = [
        _sharing(scenario, 1),
        ("optimizer", f"{optimizer.name}, {_plural(optimizer.moments, 'moment')} a weight"),
        ("stored as", scenario.training.precision.optimizer_state),
    ]
    if not size and optimizer.moments:
        values.append(("none now", "offloaded to the host"))
    return (
        f"{elements:,.0f} elements on this rank x {size / elements if elements else 0:.9g} B",
        tuple(values),
        optimizer.source,
    )


def _gathered(report: MemoryReport) -> _Opened:
    stage, scenario = _worst_stage(report), report.scenario
    layout, precision = scenario.layout, scenario.training.precision
    copies = cast_copies(stage, layout, precision)
    size = report.parts["gathered layers"]
    values = [("engine", f"{layout.engine}, ZeRO stage {layout.zero_stage}")]
    source = "deepspeed/runtime/zero/config.py: stage3_max_live_parameters, prefetch bucket"
    if not size:
        formula = "0 B"
        values.append(("none now", "this engine gathers no layer, or not at this moment"))
    elif layout.engine in ("fsdp1", "fsdp2"):
        element, largest = gathered_element(precision), max(stage.weights[:-1], default=0)
        units = stage_units(stage, layout, scenario.shard, element)
        root = units.root
        blocks = round((size - copies) / element) - root
        formula = f"({root:,} root + {blocks:,} block parameters) x {element} B"
        held = whole_bytes(stage, layout, precision, units)
        if held and size >= held:
            copies, blocks, reduced = size - held, sum(units.blocks), precision.reduce_bytes
            formula = f"({root:,} root + {blocks:,} block parameters) x {element} B + "
            formula += f"{stage.elements:,} whole gradients x {reduced} B"
        if stage.frozen:
            root, whole = stage.weights[-1], units.gathered_root
            formula = f"{whole:,.0f} B of the root + {size - copies - whole:,.0f} B of blocks"
        kept = "the block at work and the prefetched one" if layout.zero_stage == 3 else "all"
        values += [
            ("root unit", f"embedding, final norm, head: {root:,} parameters"),
            ("blocks gathered", f"{kept}; the largest has {largest:,} parameters"),
        ]
        source = "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"
    elif layout.engine in ("ddp", "zero-redundancy"):
        copies, formula = size, "0 B"
        source = "torch.amp, weight cache"
    else:
        element = precision.compute_bytes
        formula = f"{(size - copies) / element:,.0f} live parameters x {element} B"
    if copies and size:
        formula += f" + {copies:,.0f} B of 16-bit copies"
        values.append(("16-bit copies", "made by autocast of each matrix, kept for backward"))
    return formula, tuple(values), source


def _activations(report: MemoryReport) -> _Opened:
    scenario, stage = report.scenario, _worst_stage(report)
    shape = stage.blocks[0][0] if stage.blocks else None
    totals, flight = stage_activations(scenario, stage), report.worst.in_flight
    values: list[tuple[str, str]] = []
    if shape is not None:
        saved = block_saved(shape, tokens_of(scenario, shape), kernel_of(scenario))
        values += [(f"one block, {name}", format_gib(size)) for name, size in saved.operators]
        values.append(("one block, all saved", format_gib(saved.total)))
    values += [
        ("checkpointing", scenario.training.activation_checkpointing),
        ("kept for one micro-batch", f"by {_plural(stage.layers, 'block')}"),
        ("in flight", _plural(flight, "micro-batch").replace("batchs", "batches")),
    ]
    size, waiting = report.parts["activations"], totals.whole * (flight - 1)
    own = size - waiting
    formula = f"{totals.whole:,.0f} B kept x {flight - 1:.9g} in flight"
    if report.binding_phase == "backward":
        formula += f" + {own:,.0f} B of blocks still to come and inside one block's backward"
    elif report.binding_phase in ("forward", "loss"):
        formula = f"{totals.whole:,.0f} B kept x {flight:.9g} in flight"
        more = size - totals.whole * flight
        if more < -0.5:
            formula = f"{size:,.0f} B kept before the last block"
        elif more > 0.5:
            formula += f" + {more:,.0f} B that the pipeline keeps"
    elif not size:
        formula = "0 B"
    elif report.binding_phase in ("between steps", "optimizer step"):
        formula = f"{size:,.0f} B that the pipeline keeps"
    elif own > 0.5:
        formula += f" + {own:,.0f} B that the pipeline keeps"
    source = "Korthikanti et al. 2022, section 4 and table 2: sbh(34 + 5as/h) by operator"
    return formula, tuple(values), source


def _logits(report: MemoryReport) -> _Opened:
    scenario = report.scenario
    training, tensor = scenario.training, scenario.layout.tensor_parallel
    tokens = training.micro_batch * training.sequence_length / scenario.layout.context_parallel
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


def _buffers(report: MemoryReport) -> _Opened:
    scenario, stage = report.scenario, _worst_stage(report)
    layout, precision = scenario.layout, scenario.training.precision
    states = stage_states(stage, layout, precision, scenario.training.optimizer, scenario.shard)
    held = states.gradients if holds_buckets(layout, ranks_reduced(scenario)) else 0.0
    extra = report.parts["buffers"] - held
    names = {
        "backward": "gradients on their way into the reduction",
        "gradients complete": "the root unit's gradients on their way into reduce-scatter",
        "optimizer step": "the optimizer's temporaries",
    }
    if layout.engine == "deepspeed":
        names |= {"backward": "reduce buckets", "gradients complete": "reduce buckets"}
    terms = [f"{held:,.0f} B of DDP buckets"] if held else []
    source = "torch/nn/parallel/distributed.py, torch/optim/adamw.py, deepspeed/runtime/zero/"
    resident = resident_bytes(scenario, stage)
    if runs_megatron(scenario):
        terms.append(f"{resident:,.0f} B of workspaces and gradient placeholders")
        extra -= resident
        source = "transformer_engine/pytorch/module/base.py, megatron/core/tensor_parallel/"
    if layout.engine == "deepspeed" and layout.zero_stage == 3:
        bucket = float(precision.compute_bytes * layout.reduce_bucket_elements)
        terms.append(f"{bucket:,.0f} B of the reduce bucket")
        extra -= bucket
    if extra > 0.5:
        terms.append(f"{extra:,.0f} B of {names.get(report.binding_phase, 'temporaries')}")
    types = f"{gathered_element(precision)} B in gradients, {precision.reduce_bytes} B in reduction"
    return (
        " + ".join(terms) or "0 B",
        (
            ("engine", f"{layout.engine}, ZeRO stage {layout.zero_stage}"),
            ("largest block", f"{max(stage.units, default=0):,} parameters: {types}"),
            ("root unit", f"{stage.root:,} parameters"),
            ("optimizer code", scenario.training.optimizer_implementation),
        ),
        source,
    )


def _worst_stage(report: MemoryReport) -> Stage:
    scenario = report.scenario
    stages = stages_of(scenario.model, scenario.layout, scenario.training.trainable)
    return stages[report.worst.index]


_EXPLAINERS: Mapping[str, Callable[[MemoryReport], _Opened]] = {
    "parameters": _parameters,
    "gradients": _gradients,
    "master weights": _master,
    "optimizer state": _optimizer,
    "gathered layers": _gathered,
    "activations": _activations,
    "logits and loss": _logits,
    "buffers": _buffers,
}
