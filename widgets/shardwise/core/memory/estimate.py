"""The estimate: one scenario in, one memory report out."""

from __future__ import annotations

from functools import lru_cache

from shardwise.core.memory.open_step import open_step
from shardwise.core.memory.phases import step_phases
from shardwise.core.memory.pools import stranded_bytes
from shardwise.core.memory.report import MemoryReport, StageReport
from shardwise.core.memory.reserve import device_bytes, verdict, with_cached
from shardwise.core.scenario import Scenario, the_scenario


def estimate(scenario: Scenario) -> MemoryReport:
    """Memory of every pipeline stage over the phases of a training step.

    Raises:
        ScenarioError: not a scenario.

    >>> from shardwise.core.scenario import Scenario
    >>> report = estimate(Scenario.from_dict({"model": "llama-3.2-1b"}))
    >>> report.verdict
    'fits'
    """
    return _estimated(the_scenario(scenario))


@lru_cache(maxsize=128)
def _estimated(scenario: Scenario) -> MemoryReport:
    step = open_step(scenario)
    found = zip(step.stages, step_phases(scenario, step), strict=True)
    reports = tuple(
        StageReport(stage.frame.stage.index, stage.layers, *figures) for stage, figures in found
    )
    worst = max(reports, key=lambda report: report.peak_bytes)
    usable = scenario.cluster.gpu.usable_bytes
    frame = step.stages[worst.index].frame
    idle = stranded_bytes(scenario, frame, worst.phases, worst.binding_phase)
    needed = device_bytes(worst.peak_bytes, scenario.layout.process_groups)
    figures = with_cached(needed, idle, usable)
    return MemoryReport(
        scenario=scenario,
        stages=reports,
        reserved_bytes=figures.reserved,
        device_bytes=figures.device,
        low_bytes=figures.low,
        high_bytes=figures.high,
        cached_bytes=figures.cached,
        usable_bytes=usable,
        host_bytes_per_node=step.host_bytes,
        verdict=verdict(needed, usable, scenario.model.known, step.complete),
    )
