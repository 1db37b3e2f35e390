"""How much of each model state a rank holds: parameters, gradients, master weights, optimizer."""

from __future__ import annotations

from shardwise.core.adapters import trained_parameters
from shardwise.core.memory.explanation import Opened, plural, sharing, worst_stage
from shardwise.core.memory.report import MemoryReport
from shardwise.core.memory.states import frozen_bytes, stage_states
from shardwise.core.optimizers import OPTIMIZERS
from shardwise.core.scenario import Scenario


def parameters(report: MemoryReport) -> Opened:
    """Parameters as they are stored, whole or sharded."""
    precision = report.scenario.training.precision
    from_stage = 2 if report.scenario.layout.engine in ("fsdp1", "fsdp2") else 3
    if not report.scenario.training.trainable.everything or worst_stage(report).frozen:
        return _parted(report, from_stage)
    return _states(
        report, "parameters", precision.parameter_bytes, from_stage, precision.parameters
    )


def _parted(report: MemoryReport, from_stage: int) -> Opened:
    """Parameters where some are frozen: the trained ones and the rest, each as it is stored."""
    scenario, stage = report.scenario, worst_stage(report)
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
        sharing(scenario, from_stage),
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


def gradients(report: MemoryReport) -> Opened:
    """Gradients as they are accumulated."""
    precision = report.scenario.training.precision
    return _states(report, "gradients", precision.gradient_bytes, 2, precision.gradients)


def master(report: MemoryReport) -> Opened:
    """The fp32 copies of weights that the optimizer updates."""
    precision = report.scenario.training.precision
    return _states(report, "master weights", precision.master_bytes, 1, precision.master_weights)


def optimizer(report: MemoryReport) -> Opened:
    """The optimizer's moments."""
    scenario = report.scenario
    optimizer = OPTIMIZERS[scenario.training.optimizer]
    stage = worst_stage(report)
    sharded = scenario.layout.zero_stage >= 1
    states = stage_states(
        stage, scenario.layout, scenario.training.precision, optimizer.key, scenario.shard
    )
    elements = states.sharded_elements if sharded else stage.elements
    size = report.parts["optimizer state"]
    values = [
        sharing(scenario, 1),
        ("optimizer", f"{optimizer.name}, {plural(optimizer.moments, 'moment')} a weight"),
        ("stored as", scenario.training.precision.optimizer_state),
    ]
    if not size and optimizer.moments:
        values.append(("none now", "offloaded to the host"))
    return (
        f"{elements:,.0f} elements on this rank x {size / elements if elements else 0:.9g} B",
        tuple(values),
        optimizer.source,
    )


def _states(report: MemoryReport, part: str, element: float, stage: int, name: str) -> Opened:
    scenario = report.scenario
    elements = report.parts[part] / element if element else 0.0
    values = [
        ("model", f"{scenario.model.parameters:,} parameters"),
        sharing(scenario, stage),
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
