"""The strategies side by side: which there are for a scenario, and what is said of their bars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwise.charts import bars
from shardwise.core.decision import Decision, decide
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import STRATEGIES, scenario_for, split_degrees, tensor_degrees


def bars_section(scenario: Scenario) -> Mapping[str, object]:
    """Chart (b) and its sentence, which speaks of the chosen strategy."""
    decision = decide(scenario)
    shown = compared(scenario, decision)
    name = "Yours" if decision.strategy == "none" else STRATEGIES[decision.strategy].name
    report = estimate(decision.scenario)
    said = bars.sentence(name, report)
    if decision.adjustments:
        said += f" All bars but yours: {'; '.join(decision.adjustments)}."
    return {"bars": bars.rows(shown), "bars.text": said + _asked_otherwise(decision)}


def _asked_otherwise(decision: Decision) -> str:
    """Where nothing fits, the questions count each strategy at its smallest, the bars do not."""
    if decision.strategy != "none":
        return ""
    attempts = (attempt for question in decision.questions for attempt in question.attempts)
    changed = [
        f"{STRATEGIES[attempt.strategy].name} with {', '.join(attempt.adjustments)}"
        for attempt in attempts
        if attempt.adjustments
    ]
    if not changed:
        return " Nothing fits; bars and questions are of the training as it is set."
    return (
        " Nothing fits, so all bars are of the training as it is set, while the questions count "
        f"these at their smallest: {'; '.join(changed)}."
    )


def compared(scenario: Scenario, decision: Decision) -> tuple[tuple[str, MemoryReport], ...]:
    """Every strategy that can be laid out, with the chosen degrees where it splits the model."""
    chosen = decision.scenario.layout
    listed: list[tuple[str, MemoryReport]] = [(_own_name(scenario), estimate(scenario))]
    training = decision.scenario.training if decision.strategy != "none" else scenario.training
    asked = replace(scenario, training=training)  # checked with each layout below
    for key in ("ddp", "zero-1", "zero-2", "zero-3", "offload", "tensor", "pipeline"):
        tensor, pipeline = _degrees(scenario, key, chosen.tensor_parallel, chosen.pipeline_parallel)
        if tensor == 0:
            continue
        laid = scenario_for(asked, key, tensor, pipeline)
        if key == "pipeline" and decision.strategy in ("pipeline", "3d"):
            laid = decision.scenario  # its stages may have layers of their own number
        if laid is not None:
            listed.append((_bar_name(key, tensor, pipeline), estimate(laid)))
    if decision.strategy in ("tensor-offload", "pipeline-offload"):
        rung = decision.strategy.removesuffix("-offload")
        name = _bar_name(rung, chosen.tensor_parallel, chosen.pipeline_parallel)
        name = name.removesuffix(" + FSDP")  # what is longer is cut off beside the bars
        listed.append((f"{name} + offload", estimate(decision.scenario)))
    return tuple(listed)


def _own_name(scenario: Scenario) -> str:
    """The layout as it is set, told apart from the strategies by its name."""
    layout = scenario.layout
    name = f"yours: {layout.engine} Z{layout.zero_stage}"
    return name + (" ckpt" if scenario.training.activation_checkpointing != "none" else "")


def _degrees(scenario: Scenario, key: str, tensor: int, pipeline: int) -> tuple[int, int]:
    """The chosen degrees, else the smallest; (0, 0) where there are none."""
    if key == "tensor":
        possible = tensor_degrees(scenario)
        return (tensor if tensor in possible else possible[0], 1) if possible else (0, 0)
    if key == "pipeline":
        if pipeline > 1:
            return tensor, pipeline
        return next(split_degrees(scenario), (0, 0))
    return 1, 1


def _bar_name(key: str, tensor: int, pipeline: int) -> str:
    short = {"offload": "ZeRO-3 + offload", "zero-3": "ZeRO-3 / FSDP"}
    if key == "tensor":
        return f"TP {tensor} + FSDP"
    if key == "pipeline":
        return f"PP {pipeline}" + (f" x TP {tensor}" if tensor > 1 else "")
    return short.get(key, STRATEGIES[key].name)
