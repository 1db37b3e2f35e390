"""What a scenario becomes outside: programs and configurations, as text by file name.

>>> from shardwise.core.scenario import Scenario
>>> sorted(export(Scenario.from_dict({}), "fsdp2"))
['config.json', 'train.py']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from shardwise.core.errors import unknown_key
from shardwise.core.scenario import Scenario

TARGETS: Mapping[str, str] = {
    "fsdp2": "a torchrun program: FSDP2 (or DDP, as the layout says) and the model's config.json",
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
    files: Callable[[Scenario], dict[str, str]]
    files = import_module(f"shardwise.export.{target}").files
    return files(scenario)
