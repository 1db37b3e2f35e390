"""Real DeepSpeed engines on lesson ranks, and what is read off them."""

from __future__ import annotations

import importlib.util
import json

import pytest

from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.scenario import Scenario
from shardwise.export import export
from shardwise.lab import deepspeed_engine
from shardwise.lab.ranks import run

PROGRAM = """
import torch
from shardwise.lab.deepspeed_engine import deepspeed_on, engine_holds

deepspeed = deepspeed_on(device)
held = {}
for stage in (0, 1, 3):
    model = torch.nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine(torch.ones(1, 8, device=device)).sum())
    engine.step()
    held[stage] = {name: each.elements for name, each in engine_holds(engine, optimizer).items()}
"""


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not here")
def test_what_an_engine_holds_by_stage():
    """64 parameters on 2 ranks: the moments are halved from stage 1, parameters at stage 3."""
    result = run(PROGRAM, 2, outputs=("held",), progress=False, timeout=90)
    moments, step = 2 * 64, 1
    for held in result["held"]:
        assert held[0] == {"parameters": 64, "fp32 copy": 0, "optimizer state": moments + step}
        halved = moments // 2 + step
        assert held[1] == {"parameters": 64, "fp32 copy": 32, "optimizer state": halved}
        assert held[3] == {"parameters": 32, "fp32 copy": 32, "optimizer state": halved}


BOTH_GRADIENTS = """
import json
import torch
from shardwise.lab.deepspeed_engine import deepspeed_on

deepspeed = deepspeed_on(device)
model = torch.nn.Linear(8, 8, bias=False)
optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=json.loads(CONFIG))

def gradients():
    weights = list(engine.module.parameters())
    flat = engine.optimizer.fp32_groups_gradients_flat
    found = [p.grad for p in weights if p.grad is not None] + list(flat)
    return sum(g.numel() * g.element_size() for g in found)

held = [gradients()]
engine.backward(engine(torch.ones(1, 8, device=device, dtype=torch.bfloat16)).sum())
held.append(gradients())
engine.step()
held.append(gradients())
name = type(engine.optimizer).__name__
"""


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not here")
def test_fp32_gradients_outlive_the_step_as_estimated():
    """Stage 1, exported with 16-bit and fp32 gradients: 4 bytes a parameter, 6, and 4 again."""
    asked = Scenario.from_dict(
        {
            "model": {"parameters": 7e9},
            "cluster": {"gpu": "a100-sxm-80gb", "gpus_per_node": 2},
            "training": {"precision": "mixed-20"},
            "layout": {"engine": "deepspeed", "zero_stage": 1},
        }
    )
    written = json.loads(export(asked, "deepspeed")["ds_config.json"])
    kept = {key: written[key] for key in ("bf16", "data_types")}
    config = json.dumps(
        {**kept, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}
    )
    program = f"CONFIG = {config!r}\n{BOTH_GRADIENTS}"
    result = run(program, 2, outputs=("held", "name"), progress=False, timeout=90)
    assert result["name"] == ("BF16_Optimizer", "BF16_Optimizer")
    rows = {row.name: row for row in estimate(asked).timeline}
    counted = [
        rows[name].parts["gradients"] / 7e9
        for name in ("after load and wrap", "optimizer step", "between steps")
    ]
    for held in result["held"]:
        assert [each / 64 for each in held] == pytest.approx(counted)


def test_without_the_library_the_way_to_get_it_is_said(monkeypatch):
    """A sentence, not an ImportError from within."""
    import torch

    monkeypatch.setattr(deepspeed_engine, "find_spec", lambda name: None)
    assert not deepspeed_engine.installed()
    with pytest.raises(ScenarioError, match="pip install deepspeed"):
        deepspeed_engine.deepspeed_on(torch.device("cpu"))
