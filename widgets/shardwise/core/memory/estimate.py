"""The estimate: one scenario in, one memory report out."""

from __future__ import annotations

from functools import lru_cache

from shardwise.core.memory.host import host_bytes_per_node
from shardwise.core.memory.phases import stage_phases
from shardwise.core.memory.pools import stranded_bytes
from shardwise.core.memory.recorded import leaves_something_out
from shardwise.core.memory.report import MemoryReport, StageReport
from shardwise.core.memory.reserve import device_bytes, verdict, with_cached
from shardwise.core.memory.stages import stages_of
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
    stages = stages_of(scenario.model, scenario.layout, scenario.training.trainable)
    reports = tuple(_stage_report(scenario, index) for index in range(len(stages)))
    worst = max(reports, key=lambda report: report.peak_bytes)
    usable = scenario.cluster.gpu.usable_bytes
    idle = stranded_bytes(scenario, worst.index, worst.phases, worst.binding_phase)
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
        host_bytes_per_node=host_bytes_per_node(scenario, stages),
        verdict=verdict(needed, usable, scenario.model.known, not leaves_something_out(scenario)),
    )


def _stage_report(scenario: Scenario, index: int) -> StageReport:
    stage, in_flight, phases = stage_phases(scenario, index)
    return StageReport(stage.index, stage.layers, in_flight, phases)
