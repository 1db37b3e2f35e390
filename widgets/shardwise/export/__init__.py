"""What a scenario becomes outside: programs and configurations, as text by file name.

>>> from shardwise.core.scenario import Scenario
>>> sorted(export(Scenario.from_dict({}), "fsdp2"))
['train.py']
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

from shardwise.core.errors import ScenarioError, unknown_key
from shardwise.core.scenario import Scenario

TARGETS: Mapping[str, str] = {
    "fsdp2": "a program for torchrun, in one file: FSDP2, or DDP, as the layout says",
    "deepspeed": "DeepSpeed's JSON configuration",
}
"""Every target with what it gives."""


def export(scenario: Scenario, target: str) -> dict[str, str]:
    """The files of one target, as text by file name.

    Raises:
        ScenarioError: an unknown target (the nearest is named), or something in the scenario that
            the target cannot do.

    >>> import json
    >>> files = export(Scenario.from_dict({"layout": {"engine": "deepspeed"}}), "deepspeed")
    >>> json.loads(files["ds_config.json"])["zero_optimization"]["stage"]
    3
    """
    if target not in TARGETS:
        raise unknown_key("target", target, TARGETS)
    if not scenario.training.trainable.everything:
        raise ScenarioError(
            "training.trainable",
            scenario.training.trainable.name,
            "all: exported programs train every parameter",
        )
    files: Callable[[Scenario], dict[str, str]]
    files = import_module(f"shardwise.export.{target}").files
    return files(scenario)


class _Export(ModuleType):
    """This package, callable: importing it by its full name rebinds `shardwise.export` to it."""

    def __call__(self, scenario: Scenario, target: str) -> dict[str, str]:
        """As `export`."""
        return export(scenario, target)


sys.modules[__name__].__class__ = _Export
