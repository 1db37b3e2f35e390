"""The training-memory model: states, activations, buffers, phases; analytic, without torch."""

from shardwise.core.memory.estimate import estimate
from shardwise.core.memory.report import MemoryReport, StageReport
from shardwise.core.memory.sweep import Sweep, sweep

__all__ = ["MemoryReport", "StageReport", "Sweep", "estimate", "sweep"]
