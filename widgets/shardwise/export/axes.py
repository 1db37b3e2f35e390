"""The mesh axes that an export can write: data parallelism only."""

from __future__ import annotations

from shardwise.core.errors import ScenarioError
from shardwise.core.layout import Layout

_OTHERS = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_parallel")


def data_parallel_only(layout: Layout, why: str) -> None:
    """Refuse a layout with another axis than data parallelism.

    Raises:
        ScenarioError: tensor, context, expert or pipeline parallelism over 1; `why` ends the
            sentence.
    """
    for axis in _OTHERS:
        degree = getattr(layout, axis)
        if degree > 1:
            raise ScenarioError(f"layout.{axis}", degree, f"1 for this export{why}")
