"""Shardwise: what runs out of room in training, and the simplest strategy that fixes it.

>>> import shardwise as sw
>>> s = sw.Scenario.from_dict({"model": {"parameters": 7e9}, "cluster": {"gpu": "a100-sxm-80gb"}})
>>> sw.decide(s).exhausted
'optimizer state'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardwise.core.catalogue import gpus, links, load_model, model_names
    from shardwise.core.cluster import Cluster
    from shardwise.core.decision import Decision, decide
    from shardwise.core.errors import ScenarioError
    from shardwise.core.layout import Layout
    from shardwise.core.memory import MemoryReport, Sweep, estimate, sweep
    from shardwise.core.memory.calibrate import calibrate
    from shardwise.core.memory.extrapolate import extrapolate
    from shardwise.core.memory.sensitivity import sensitivity
    from shardwise.core.memory.snapshot import read_snapshot
    from shardwise.core.model import Model
    from shardwise.core.peers.table import disagreement
    from shardwise.core.policies import policies
    from shardwise.core.scenario import Scenario
    from shardwise.core.training import Training
    from shardwise.export import export
    from shardwise.panels.explorer import Explorer
    from shardwise.panels.small import (
        DecisionPanel,
        LayersPanel,
        MemoryPanel,
        RulePanel,
        ScalingPanel,
        StepPanel,
    )

_WHERE = {
    "Cluster": "shardwise.core.cluster",
    "Decision": "shardwise.core.decision",
    "DecisionPanel": "shardwise.panels.small",
    "Explorer": "shardwise.panels.explorer",
    "Layout": "shardwise.core.layout",
    "LayersPanel": "shardwise.panels.small",
    "MemoryPanel": "shardwise.panels.small",
    "MemoryReport": "shardwise.core.memory",
    "Model": "shardwise.core.model",
    "RulePanel": "shardwise.panels.small",
    "ScalingPanel": "shardwise.panels.small",
    "Scenario": "shardwise.core.scenario",
    "ScenarioError": "shardwise.core.errors",
    "Sweep": "shardwise.core.memory",
    "StepPanel": "shardwise.panels.small",
    "Training": "shardwise.core.training",
    "calibrate": "shardwise.core.memory.calibrate",
    "decide": "shardwise.core.decision",
    "disagreement": "shardwise.core.peers.table",
    "estimate": "shardwise.core.memory",
    "export": "shardwise.export",
    "extrapolate": "shardwise.core.memory.extrapolate",
    "gpus": "shardwise.core.catalogue",
    "links": "shardwise.core.catalogue",
    "load_model": "shardwise.core.catalogue",
    "model_names": "shardwise.core.catalogue",
    "policies": "shardwise.core.policies",
    "read_snapshot": "shardwise.core.memory.snapshot",
    "sensitivity": "shardwise.core.memory.sensitivity",
    "sweep": "shardwise.core.memory",
}
__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str) -> Any:
    """A public name, imported when first asked for: `import shardwise` takes milliseconds."""
    if name not in _WHERE:
        raise AttributeError(f"module 'shardwise' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Every public name, loaded or not."""
    return sorted({*globals(), *_WHERE})
