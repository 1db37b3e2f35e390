"""The answer at the top: whether the run as it is set fits, then the least machinery that does."""

from __future__ import annotations

from shardwise.core.advice import refusal
from shardwise.core.decision import Decision
from shardwise.core.layout import Layout
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.report import PARTS
from shardwise.core.memory.reserve import EXPANDABLE_SEGMENTS, FRAGMENTATION_HIGH
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import STRATEGIES, code_of
from shardwise.core.units import format_gib
from shardwise.panels.live_text import bullets, facts, heading, paragraph

Block = dict[str, object]

_ENGINES = {
    "ddp": "DDP",
    "zero-redundancy": "ZeroRedundancyOptimizer",
    "fsdp1": "FSDP1",
    "fsdp2": "FSDP2",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron-LM",
}
_AXES = {
    "tensor_parallel": "TP",
    "context_parallel": "CP",
    "expert_parallel": "EP",
    "pipeline_parallel": "PP",
}


def short_name(layout: Layout) -> str:
    """A layout in a few words.

    >>> short_name(Layout(engine="deepspeed", zero_stage=1, tensor_parallel=2))
    'DeepSpeed, ZeRO-1, TP 2'
    """
    words = [_ENGINES.get(layout.engine, layout.engine)]
    words += [f"ZeRO-{layout.zero_stage}"] if layout.zero_stage else []
    degrees = ((name, getattr(layout, axis)) for axis, name in _AXES.items())
    words += [f"{name} {degree}" for name, degree in degrees if degree > 1]
    words += ["optimizer offload"] if layout.offload_optimizer != "none" else []
    return ", ".join(words)


def as_set(report: MemoryReport) -> str:
    """Whether the run as it is set fits: what the card must have, what it has, the verdict."""
    sizes = f"{_gib(report.needed_bytes)} of {format_gib(report.usable_bytes)}"
    said = f"As set ({short_name(report.scenario.layout)}): {sizes}, {report.verdict}"
    if report.verdict == "tight":
        return f"{said}: with fragmentation up to {format_gib(report.needed_high_bytes)}."
    if report.verdict == "uncertain":
        return f"{said}: {report.doubt}."
    if report.verdict == "fits" and (reason := refusal(report)):
        return f"{said} the card, but cannot run. {reason}"
    return f"{said}."


_LARGEST = 3


def fullest(report: MemoryReport) -> str:
    """When the run as it is set is fullest, what fills it most, and the band."""
    sizes = sorted(report.parts.items(), key=lambda part: -part[1])
    named = [f"{PARTS[part]} {format_gib(size)}" for part, size in sizes[:_LARGEST] if size]
    band = f"{_gib(report.low_bytes)} to {format_gib(report.needed_high_bytes)}"
    spread = f"fragmentation from none to {FRAGMENTATION_HIGH:.0%}"
    said = f"Fullest at {report.binding_phase}: {', '.join(named)}. Band {band}: {spread}."
    default = report.default_allocator_bytes
    if report.verdict == "fits" and default > report.usable_bytes:
        more = f"without it up to {format_gib(default)} may be needed"
        said += f" Set {EXPANDABLE_SEGMENTS}: {more}."
    return said


def _gib(size_bytes: float) -> str:
    """A size whose unit stands behind the next one."""
    return format_gib(size_bytes).removesuffix(" GiB")


def answer_blocks(scenario: Scenario, decision: Decision) -> list[Block]:
    """As set, then what runs out and the fix; where nothing is wrong, nothing reads as if it were.

    A run that fits does not need the decided strategy: that one is then offered for its lighter
    machinery, with what it takes and what would run out without it.
    """
    report = estimate(scenario)
    works = report.verdict == "fits" and not refusal(report)
    blocks = [heading(as_set(report)), paragraph(fullest(report))]
    if works and decision.strategy == "none":
        blocks.append(paragraph("None of the five questions' strategies fits; yours does."))
    elif works:
        blocks += _lighter(scenario, report, decision)
    else:
        blocks += [heading(decision.headline), _facts(decision)]
    blocks.append(paragraph(decision.next_step))
    return [*blocks, bullets(list(decision.notes))] if decision.notes else blocks


def _facts(decision: Decision) -> Block:
    if decision.strategy not in STRATEGIES:
        return facts([("Runs out", _CALLED.get(decision.exhausted, decision.exhausted))])
    rows = [("Runs out", decision.exhausted), ("Strategy", STRATEGIES[decision.strategy].name)]
    return facts([*rows, ("Use", _code(decision.scenario))])


def _code(laid: Scenario) -> str:
    """What to use for a layout; a single GPU under DDP needs no engine at all."""
    if laid.cluster.world_size == 1 and laid.layout.engine == "ddp":
        return "torch alone: one GPU has nothing to share"
    return code_of(laid.layout)


def _lighter(scenario: Scenario, report: MemoryReport, decision: Decision) -> list[Block]:
    """The decided strategy beside a run that fits already."""
    chosen, exhausted = estimate(decision.scenario), decision.exhausted
    name = STRATEGIES[decision.strategy].name
    changes = f" with {' and '.join(decision.adjustments)}" if decision.adjustments else ""
    less = "" if decision.strategy == "ddp" else f"; with less, {_CALLED[exhausted]} runs out"
    if chosen.scenario == scenario:
        return [heading(f"It is the least machinery that fits: {name}{less}."), _facts(decision)]
    said = f"Nothing has to change. The least machinery that fits is {name}{changes}{less}."
    sizes = f"{_gib(chosen.needed_bytes)} of {format_gib(chosen.usable_bytes)}"
    if chosen.needed_bytes > report.needed_bytes:
        sizes += ": more memory than yours, and there is room for it"
    short = "throughput, if it is too slow" if exhausted == "throughput" else exhausted
    rows = [
        ("Would run out", short),
        ("Least machinery", f"{name}, {sizes}"),
        ("Use", _code(decision.scenario)),
    ]
    return [heading(said), facts(rows)]


_CALLED = {
    "activations": "room for activations",
    "optimizer state": "room for the optimizer state",
    "parameters": "room for parameters and gradients",
    "single layer": "room for a single layer",
    "whole model": "room for the whole model",
}
