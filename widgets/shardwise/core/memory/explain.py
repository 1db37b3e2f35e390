"""Each number opened up: its formula, the values put in, and where the formula comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardwise.core.errors import unknown_key
from shardwise.core.memory import explain_activations, explain_engine, explain_states
from shardwise.core.memory.explanation import Explanation, Opened
from shardwise.core.memory.report import PARTS, MemoryReport


def explain(report: MemoryReport, part: str) -> Explanation:
    """Open one part of a report at its peak.

    Raises:
        ScenarioError: not a key of `PARTS`.
    """
    if not isinstance(part, str) or part not in PARTS:
        raise unknown_key("part", part, PARTS)
    formula, values, source = _EXPLAINERS[part](report)
    phase = ("phase", f"{report.binding_phase}, stage {report.worst.index}")
    return Explanation(part, formula, (phase, *values), report.parts[part], source)


_EXPLAINERS: Mapping[str, Callable[[MemoryReport], Opened]] = {
    "parameters": explain_states.parameters,
    "gradients": explain_states.gradients,
    "master weights": explain_states.master,
    "optimizer state": explain_states.optimizer,
    "gathered layers": explain_engine.gathered,
    "activations": explain_activations.activations,
    "logits and loss": explain_activations.logits,
    "buffers": explain_engine.buffers,
}
