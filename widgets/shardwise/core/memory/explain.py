"""Each number opened up: its formula, the values put in, and where the formula comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwise.core.errors import unknown_key
from shardwise.core.memory.activations import block_saved
from shardwise.core.memory.phases import kernel_of, stage_activations, tokens_of
from shardwise.core.memory.report import PARTS, MemoryReport
from shardwise.core.memory.stages import Stage, stages_of
from shardwise.core.memory.states import stage_states
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


def _sharing(scenario: Scenario, from_stage: int) -> tuple[str, str]:
    sharded = scenario.layout.zero_stage >= from_stage
    ranks = scenario.shard if sharded else 1
    why = f"ZeRO stage {scenario.layout.zero_stage}"
    return ("sharded over", f"{ranks} rank(s): {why}, tensor {scenario.layout.tensor_parallel}")


def _states(report: MemoryReport, size: float, element: float, stage: int, name: str) -> _Opened:
    scenario = report.scenario
    elements = size / element if element else 0.0
    return (
        f"{elements:,.0f} elements on this rank x {element:g} B",
        (
            ("model", f"{scenario.model.parameters:,} parameters"),
            _sharing(scenario, stage),
            ("stored as", f"{name}, {element:g} B an element"),
        ),
        scenario.training.precision.source,
    )


def _parameters(report: MemoryReport) -> _Opened:
    precision = report.scenario.training.precision
    from_stage = 2 if report.scenario.layout.engine in ("fsdp1", "fsdp2") else 3
    return _states(
        report,
        report.parts["parameters"],
        precision.parameter_bytes,
        from_stage,
        precision.parameters,
    )


def _gradients(report: MemoryReport) -> _Opened:
    precision = report.scenario.training.precision
    size = report.parts["gradients"]
    return _states(report, size, precision.gradient_bytes, 2, precision.gradients)


def _master(report: MemoryReport) -> _Opened:
    precision = report.scenario.training.precision
    size = report.parts["master weights"]
    return _states(report, size, precision.master_bytes, 1, precision.master_weights)


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
    return (
        f"{elements:,.0f} elements on this rank x {size / elements:.4g} B",
        (
            _sharing(scenario, 1),
            ("optimizer", f"{optimizer.name}, {optimizer.moments} moment(s) a weight"),
            ("stored as", scenario.training.precision.optimizer_state),
        ),
        optimizer.source,
    )


def _gathered(report: MemoryReport) -> _Opened:
    stage, scenario = _worst_stage(report), report.scenario
    element = scenario.training.precision.compute_bytes
    return (
        "(root unit + the block at work + the one prefetched) x bytes of the compute type",
        (
            ("root unit (embedding, final norm, head)", f"{stage.root:,} parameters"),
            ("largest block", f"{max(stage.units, default=0):,} parameters"),
            ("compute type", f"{scenario.training.precision.compute}, {element} B"),
            ("engine", f"{scenario.layout.engine}, ZeRO stage {scenario.layout.zero_stage}"),
        ),
        "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; "
        "deepspeed/runtime/zero/config.py for DeepSpeed",
    )


def _activations(report: MemoryReport) -> _Opened:
    scenario, stage = report.scenario, _worst_stage(report)
    shape = stage.blocks[0][0] if stage.blocks else None
    values: list[tuple[str, str]] = []
    if shape is not None:
        saved = block_saved(shape, tokens_of(scenario, shape), kernel_of(scenario))
        values += [(f"one block, {name}", format_gib(size)) for name, size in saved.operators]
        values.append(("one block, all saved", format_gib(saved.total)))
    totals = stage_activations(scenario, stage)
    values += [
        ("checkpointing", scenario.training.activation_checkpointing),
        (f"kept by {stage.layers} blocks for one micro-batch", format_gib(totals.kept)),
        ("micro-batches in flight", f"{report.worst.in_flight:g}"),
        ("working set of one block's backward", format_gib(totals.working_set)),
    ]
    return (
        "kept by the blocks x micro-batches in flight + one block's working set in backward",
        tuple(values),
        "Korthikanti et al. 2022, section 4 and table 2: sbh(34 + 5as/h) by operator",
    )


def _logits(report: MemoryReport) -> _Opened:
    scenario = report.scenario
    training, tensor = scenario.training, scenario.layout.tensor_parallel
    tokens = training.micro_batch * training.sequence_length / scenario.layout.context_parallel
    size = report.parts["logits and loss"]
    cells = tokens * scenario.model.vocabulary / tensor
    return (
        f"{tokens:,.0f} tokens x {scenario.model.vocabulary:,} vocabulary / {tensor} "
        f"x {size / cells if cells else 0:g} B",
        (("loss", training.loss),),
        "transformers/loss/loss_utils.py: 16-bit logits, fp32 copy, fp32 log-softmax (2 + 4 + 4 B "
        "in forward, 4 + 4 + 4 B in backward)",
    )


def _buffers(report: MemoryReport) -> _Opened:
    scenario = report.scenario
    return (
        "what the engine holds besides: reduce buckets, gradients on their way, the step's copy",
        (
            ("engine", f"{scenario.layout.engine}, ZeRO stage {scenario.layout.zero_stage}"),
            ("optimizer code", scenario.training.optimizer_implementation),
        ),
        "torch/nn/parallel/distributed.py, torch/optim/adamw.py, deepspeed/runtime/zero/config.py",
    )


def _worst_stage(report: MemoryReport) -> Stage:
    return stages_of(report.scenario.model, report.scenario.layout)[report.worst.index]


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
