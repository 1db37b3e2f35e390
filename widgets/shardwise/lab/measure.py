"""Measurements for ranks: bytes held, saved and peaking, traffic, time, pipelines.

Use it in the code that ranks run: `from shardwise.lab import measure`. Every figure is read off the
running program; none is computed from a formula.
"""

from __future__ import annotations

from shardwise.lab.measuring.activations import SavedActivations
from shardwise.lab.measuring.figures import (
    Calls,
    Event,
    Held,
    PipelineTimes,
    State,
    pipeline_times,
    total,
)
from shardwise.lab.measuring.peak import Peak
from shardwise.lab.measuring.phases import Phases
from shardwise.lab.measuring.pipelines import PipelineRecord
from shardwise.lab.measuring.state import held, state
from shardwise.lab.measuring.traffic import Collectives, Wire

__all__ = [
    "Calls",
    "Collectives",
    "Event",
    "Held",
    "Peak",
    "Phases",
    "PipelineRecord",
    "PipelineTimes",
    "SavedActivations",
    "State",
    "Wire",
    "held",
    "pipeline_times",
    "state",
    "total",
]
