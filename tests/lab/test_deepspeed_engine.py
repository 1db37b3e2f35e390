"""Real DeepSpeed engines on lesson ranks, and what is read off them."""

from __future__ import annotations

import importlib.util

import pytest

from shardwise.core.errors import ScenarioError
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


def test_without_the_library_the_way_to_get_it_is_said(monkeypatch):
    """A sentence, not an ImportError from within."""
    import torch

    monkeypatch.setattr(deepspeed_engine, "find_spec", lambda name: None)
    assert not deepspeed_engine.installed()
    with pytest.raises(ScenarioError, match="pip install deepspeed"):
        deepspeed_engine.deepspeed_on(torch.device("cpu"))
