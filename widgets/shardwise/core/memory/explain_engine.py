"""What the engine holds: gathered layers, autocast's copies, buckets and temporaries."""

from __future__ import annotations

from shardwise.core.memory.autocast import autocasts, block_copies, copies_in_backward
from shardwise.core.memory.buffers import gathered_element, holds_buckets
from shardwise.core.memory.engine_buffers import fsdp_buffers
from shardwise.core.memory.explanation import Opened, worst_stage
from shardwise.core.memory.frame import Frame, frame_of, ranks_reduced
from shardwise.core.memory.megatron import resident_bytes, runs_megatron
from shardwise.core.memory.report import MemoryReport
from shardwise.core.memory.spots import whole_bytes
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.states import stage_states, stage_units

_LIVE = "deepspeed/runtime/zero/config.py: stage3_max_live_parameters, prefetch bucket"
_COPIES = "made by autocast of each matrix, kept for backward"
_FEWER_COPIES = (
    "made by autocast of each matrix; a checkpoint keeps none, its block makes them again"
)


def gathered(report: MemoryReport) -> Opened:
    """Whole layers that the engine has gathered, and the copies of weights that autocast made."""
    layout, stage = report.scenario.layout, worst_stage(report)
    size = report.parts["gathered layers"]
    engine = ("engine", f"{layout.engine}, ZeRO stage {layout.zero_stage}")
    if not size:
        none = ("none now", "this engine gathers no layer, or not at this moment")
        return "0 B", (engine, none), _LIVE
    layers = layer_bytes(report, stage)
    copies = size - layers
    terms: list[str] = []
    values, source = [engine], "torch.amp, weight cache"
    if layout.engine in ("fsdp1", "fsdp2"):
        terms, about = _units(report, stage, layers)
        values += about
        source = "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"
    elif layers:
        element = report.scenario.training.precision.compute_bytes
        terms = [f"{layers / element:,.0f} live parameters x {element} B"]
        source = _LIVE
    if copies > 0.5:
        again = report.scenario.training.activation_checkpointing in ("full", "per-op", "every")
        terms.append(f"{copies:,.0f} B of 16-bit copies")
        values.append(("16-bit copies", _FEWER_COPIES if again else _COPIES))
    return " + ".join(terms), tuple(values), source


def _units(
    report: MemoryReport, stage: Stage, layers: float
) -> tuple[list[str], list[tuple[str, str]]]:
    """FSDP's units in elements (frozen ones, of several types, in bytes), and what they are."""
    scenario = report.scenario
    layout, precision = scenario.layout, scenario.training.precision
    element, largest = gathered_element(precision), max(stage.weights[:-1], default=0)
    units = stage_units(stage, layout, scenario.shard, element)
    whole = whole_bytes(stage, layout, precision, units)
    if stage.frozen or layout.float8_all_gather:
        root, blocks = stage.weights[-1], layers - units.gathered_root
        of_blocks = sum(units.gathered) if whole else blocks
        terms = [f"{units.gathered_root:,.0f} B of the root", f"{of_blocks:,.0f} B of blocks"]
    else:
        root = units.root
        elements = sum(units.blocks) if whole else round(layers / element) - root
        terms = [f"({root:,} root + {elements:,} block parameters) x {element} B"]
    if whole:
        terms.append(f"{stage.elements:,} whole gradients x {precision.reduce_bytes} B")
    kept = "the block at work and the prefetched one"
    return terms, [
        ("root unit", f"embedding, final norm, head: {root:,} parameters"),
        (
            "blocks gathered",
            f"{kept if layout.zero_stage == 3 and not whole else 'all'}; "
            f"the largest has {largest:,} parameters",
        ),
    ]


def layer_bytes(report: MemoryReport, stage: Stage) -> float:
    """Of the gathered bytes at the peak those of layers; the others are autocast's copies.

    Which copies are there depends on the moment: all as forward ends, none of checkpointed blocks
    after it, and in a block's backward those of the blocks before it and its own.
    """
    scenario, size = report.scenario, report.parts["gathered layers"]
    layout, training = scenario.layout, scenario.training
    if not autocasts(layout, training.precision):
        return size
    frame = frame_of(scenario, stage.index)
    if layout.engine not in ("fsdp1", "fsdp2"):
        return frame.buffers.gathered_backward
    element = gathered_element(training.precision)
    units = stage_units(stage, layout, scenario.shard, element)
    whole = whole_bytes(stage, layout, training.precision, units)
    if whole:
        return whole
    if report.binding_phase == "backward":
        return size - _copies_in_backward(report, stage, frame)
    clean = fsdp_buffers(stage, layout, training.precision, 0.0, units)
    if report.binding_phase == "loss":
        return clean.gathered_loss
    if size == frame.buffers.gathered_running:
        return clean.gathered_running
    return size if size == clean.gathered_entering else clean.gathered_forward


def _copies_in_backward(report: MemoryReport, stage: Stage, frame: Frame) -> float:
    """Bytes of copies at the peak of FSDP's backward; the embedding's, its end, has none left."""
    scenario, size = report.scenario, report.parts["gathered layers"]
    training = scenario.training
    _, alive = copies_in_backward(
        block_copies(stage, scenario.layout, training.precision),
        training.activation_checkpointing,
        training.checkpoint_every,
    )
    for spot in frame.run.spots if frame.run is not None else ():
        if size in (spot.gathered, spot.entering, spot.leaving):
            return alive[spot.step.position]
    return 0.0


def buffers(report: MemoryReport) -> Opened:
    """Buckets and temporaries, and what engines and their modules hold all the time."""
    scenario, stage = report.scenario, worst_stage(report)
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
    rounding = frame_of(scenario, stage.index).rounding
    blocks = rounding.parameters + rounding.state
    if blocks:
        terms.append(f"{blocks:,.0f} B of rounding up to whole blocks of the allocator")
        extra -= blocks
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
