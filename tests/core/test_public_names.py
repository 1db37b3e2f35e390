"""The public names of the package, loaded when first asked for."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import shardwise as sw
import shardwise.core

CORE = sorted(
    module.name for module in pkgutil.walk_packages(shardwise.core.__path__, "shardwise.core.")
)
IN_CORE = [
    "Scenario",
    "Model",
    "Cluster",
    "Training",
    "Layout",
    "MemoryReport",
    "Decision",
    "ScenarioError",
    "estimate",
    "sweep",
    "Sweep",
    "decide",
    "sensitivity",
    "calibrate",
    "extrapolate",
    "read_snapshot",
    "disagreement",
    "policies",
    "gpus",
    "links",
    "load_model",
    "model_names",
]


@pytest.mark.parametrize("name", IN_CORE)
def test_the_cores_names_are_public(name: str) -> None:
    """Each name of the design is an attribute of the package and listed by dir()."""
    assert getattr(sw, name) is not None
    assert name in dir(sw)
    assert name in sw.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The package behaves as any module does."""
    with pytest.raises(AttributeError, match="no attribute 'Senario'"):
        sw.Senario  # noqa: B018


def test_importing_loads_nothing_heavy() -> None:
    """`import shardwise` and an estimate load neither torch, NumPy's users nor widgets."""
    program = (
        "import sys, shardwise as sw\n"
        "assert 'shardwise.core.scenario' not in sys.modules\n"
        "s = sw.Scenario.from_dict({'model': {'parameters': 7e9}})\n"
        "sw.estimate(s); sw.decide(s)\n"
        "heavy = {'torch', 'transformers', 'pandas', 'altair', 'ipywidgets', 'IPython'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_designs_example_runs() -> None:
    """The scenario of the public design gives a report and a decision with the named parts."""
    scenario = sw.Scenario.from_dict(
        {
            "model": "llama-3-8b",
            "cluster": {
                "gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": 1, "intra_node": "nvlink-4",
                "inter_node": "infiniband-ndr", "host_memory_gib": 2048,
            },
            "training": {
                "sequence_length": 4096, "micro_batch": 1, "global_batch": 256,
                "precision": "mixed-16", "optimizer": "adamw",
                "optimizer_implementation": "foreach", "activation_checkpointing": "none",
                "attention": "flash", "loss": "full", "model_code": "transformers",
            },
            "layout": {
                "engine": "fsdp2", "data_parallel": 8, "shard": 8, "zero_stage": 3,
                "reshard_after_forward": True, "tensor_parallel": 1, "sequence_parallel": False,
                "context_parallel": 1, "expert_parallel": 1, "pipeline_parallel": 1,
                "virtual_stages": 1, "schedule": "1f1b", "layers_per_stage": None,
                "offload": {"optimizer": "none", "parameters": "none"},
            },
        }
    )  # fmt: skip
    report, decision = sw.estimate(scenario), sw.decide(scenario)
    for name in [
        "peak_bytes",
        "steady_bytes",
        "phases",
        "host_bytes_per_node",
        "stages",
        "reserved_bytes",
        "device_bytes",
        "low_bytes",
        "high_bytes",
        "verdict",
        "binding_phase",
        "assumptions",
        "not_modelled",
    ]:
        assert getattr(report, name) is not None
    opened = report.explain("gradients")
    assert opened.formula
    assert opened.values
    assert opened.source
    for stage in report.stages:
        assert stage.peak_bytes >= stage.steady_bytes
        assert stage.phases
    assert decision.strategy == "zero-1"
    assert decision.exhausted == "optimizer state"
    assert len(decision.questions) == 5
    for question in decision.questions:
        assert question.question.endswith("?")
        assert question.verdict in ("yes", "no", "not asked")
        assert question.why.endswith(".")


@pytest.mark.parametrize("name", CORE)
def test_the_examples_in_docstrings_run(name: str) -> None:
    """Every doctest of the module gives what it prints."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_packages_own_example_runs() -> None:
    """The example in the package's docstring too."""
    assert doctest.testmod(sw).failed == 0
