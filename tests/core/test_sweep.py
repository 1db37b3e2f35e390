"""Many sizes at once: the same numbers as one by one, and the positions that are looked at."""

from __future__ import annotations

import importlib
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.core.catalogue import model_names
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate, frame, open_step, walk
from shardwise.core.memory.sweep import sweep
from shardwise.core.scenario import Scenario

MODELS = sorted(model_names())
TRAININGS = st.fixed_dictionaries(
    {
        "precision": st.sampled_from(["mixed-16", "fsdp-mixed", "autocast", "bf16", "fp32"]),
        "activation_checkpointing": st.sampled_from(["none", "selective", "full", {"every": 3}]),
        "attention": st.sampled_from(["flash", "math", "eager"]),
        "loss": st.sampled_from(["full", "chunked", "fused"]),
        "model_code": st.sampled_from(["transformers", "torchtitan", "megatron", "compiled"]),
        "trainable": st.sampled_from(["all", {"lora": {"rank": 8}}, {"only": ["norm", "head"]}]),
    }
)
LAYOUTS = st.sampled_from(
    [
        {"engine": "ddp"},
        {"engine": "zero-redundancy"},
        {"engine": "fsdp2"},
        {"engine": "fsdp2", "reshard_after_forward": False},
        {"engine": "deepspeed", "zero_stage": 3},
        {"engine": "megatron"},
        {"engine": "fsdp2", "pipeline_parallel": 2, "schedule": "gpipe"},
        {"engine": "megatron", "pipeline_parallel": 2, "schedule": "interleaved",
         "virtual_stages": 2},
    ]
)  # fmt: skip


@given(
    model=st.sampled_from(MODELS),
    training=TRAININGS,
    layout=LAYOUTS,
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_a_sweep_gives_what_single_estimates_give(
    model: str, training: dict[str, Any], layout: dict[str, Any], seed: int
) -> None:
    """Every phase, the peak and the verdict agree to the last bit for any kinds and sizes."""
    try:
        base = Scenario.from_dict({"model": model, "training": training, "layout": layout})
    except ScenarioError:
        return  # this model has too few layers, or no such kind of attention
    draw = random.Random(seed)
    lengths = [draw.choice((128, 500, 1024, 4096, 8192, 40000)) for _ in range(4)]
    batches = [draw.choice((1, 2, 3, 8)) for _ in range(4)]
    groups = [8 * batch * draw.choice((2, 4, 6)) for batch in batches]
    found = sweep(base, sequence_length=lengths, micro_batch=batches, global_batch=groups)
    verdicts = found.verdicts()
    for i in range(4):
        sizes: dict[str, Any] = {
            "sequence_length": lengths[i],
            "micro_batch": batches[i],
            "global_batch": groups[i],
        }
        report = estimate(base.with_training(replace(base.training, **sizes)))
        assert found.peak_bytes[i] == report.peak_bytes
        assert found.device_bytes[i] == report.device_bytes
        assert verdicts[i] == report.verdict
        for phase, total in found.phases.items():
            most = max(stage.totals[phase] for stage in report.stages)
            assert total[i] == most


def test_sizes_are_broadcast_like_arrays() -> None:
    """Three lengths against two micro-batches make a table of three by two."""
    found = sweep(
        Scenario.from_dict({}), sequence_length=[[512], [1024], [2048]], micro_batch=[1, 2]
    )
    assert found.peak_bytes.shape == found.fits.shape == (3, 2)
    assert np.all(np.diff(found.peak_bytes, axis=0) >= 0)


@pytest.mark.parametrize(
    ("sizes", "field", "value"),
    [
        ({"micro_batch": [1, 0]}, "training.micro_batch", "0"),
        ({"sequence_length": [4096.5]}, "training.sequence_length", "4096.5"),
        ({"micro_batch": ["two"]}, "training.micro_batch", "two"),
        ({"global_batch": []}, "training.global_batch", "[]"),
        ({"sequence_length": [1e9]}, "training.sequence_length", "1000000000"),
    ],
)
def test_a_size_that_cannot_be_is_named(sizes: dict[str, Any], field: str, value: str) -> None:
    """The field and the first wrong value stand in the sentence."""
    with pytest.raises(ScenarioError) as caught:
        sweep(Scenario.from_dict({}), **sizes)
    assert caught.value.field == field
    assert value in str(caught.value)


def test_too_few_micro_batches_for_the_stages_are_refused() -> None:
    """A pipeline of four stages needs four micro-batches at every point."""
    base = Scenario.from_dict({"layout": {"pipeline_parallel": 4}})
    with pytest.raises(ScenarioError, match="global_batch"):
        sweep(base, global_batch=[16, 4])


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
@pytest.mark.parametrize("checkpointing", ["none", "full", {"every": 2}, {"every": 5}])
def test_no_block_that_is_skipped_would_peak_higher(
    engine: str, checkpointing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at every block of every catalogue model finds the same peak in backward."""

    def forget() -> None:
        walk.walk_of.cache_clear()
        frame._frame.cache_clear()
        open_step._open_step.cache_clear()
        importlib.import_module("shardwise.core.memory.estimate")._estimated.cache_clear()

    def peaks() -> list[float]:
        forget()
        found = []
        for model in MODELS:
            training = {"activation_checkpointing": checkpointing, "sequence_length": 2048}
            scenario = {"model": model, "training": training, "layout": {"engine": engine}}
            found.append(estimate(Scenario.from_dict(scenario)).worst.totals["backward"])
        return found

    some = peaks()
    monkeypatch.setattr(walk, "_wanted", lambda listed: set(range(len(listed))))
    every = peaks()
    monkeypatch.undo()
    forget()
    assert some == pytest.approx(every, rel=1e-12)
