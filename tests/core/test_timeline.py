"""A run in order of time: what is there after loading, in the first step, in each micro-batch."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.core.memory import estimate
from shardwise.core.memory.report import PARTS, MemoryReport
from shardwise.core.scenario import Scenario

STATES = ("parameters", "gradients", "master weights", "optimizer state")
MIXED, MEGATRON = {"precision": "mixed-16"}, {"precision": "mixed-fp32-grads"}
# Bytes a parameter right after loading: parameters, gradients, master weights, optimizer state.
LOADED = [
    ({"engine": "ddp"}, {"precision": "fp32"}, (4, 0, 0, 0)),
    ({"engine": "fsdp2"}, {"precision": "fsdp-mixed"}, (4 / 8, 0, 0, 0)),
    ({"engine": "deepspeed", "zero_stage": 0}, MIXED, (2, 0, 4, 8)),
    ({"engine": "deepspeed", "zero_stage": 1}, MIXED, (2, 0, 4 / 8, 0)),
    ({"engine": "deepspeed", "zero_stage": 1}, {"precision": "mixed-20"}, (2, 4, 4 / 8, 0)),
    ({"engine": "deepspeed", "zero_stage": 3}, MIXED, (2 / 8, 2 / 8, 4 / 8, 0)),
    ({"engine": "megatron", "zero_stage": 0}, MEGATRON, (2, 4, 4, 0)),
    ({"engine": "megatron", "zero_stage": 1}, MEGATRON, (2, 4, 4 / 8, 0)),
    ({"engine": "nanotron", "zero_stage": 1}, MEGATRON, (2, 4, 4 / 8, 0)),
]


def report(layout: dict[str, Any], **training: Any) -> MemoryReport:
    """Llama-3-8B on eight cards."""
    return estimate(
        Scenario.from_dict({"model": "llama-3-8b", "layout": layout, "training": training})
    )


@pytest.mark.parametrize(("layout", "training", "each"), LOADED, ids=str)
def test_each_engine_has_its_own_states_after_loading(
    layout: dict[str, Any], training: dict[str, Any], each: tuple[float, ...]
) -> None:
    """Gradient buffers and masters where engines make them at once; moments hardly anywhere."""
    found = report(layout, **training)
    row = found.timeline[0]
    assert row.name == "after load and wrap"
    assert row.first_step_bytes is None
    parameters = found.scenario.model.parameters
    counted = [row.parts[name] / parameters for name in STATES]
    assert counted == pytest.approx(each, rel=1e-4)


def test_ddps_buckets_are_there_once_it_wraps() -> None:
    """torch's Reducer makes its buckets in DistributedDataParallel's constructor (traced: init)."""
    found = report({"engine": "ddp"}, precision="bf16")
    assert found.timeline[0].parts["buffers"] == pytest.approx(2 * found.scenario.model.parameters)


def test_one_micro_batch_has_its_phases_once() -> None:
    """Without accumulation a step's phases are those of the report, in order of time."""
    found = report({"engine": "fsdp2"}, precision="fsdp-mixed", global_batch=8)
    names = [row.name for row in found.timeline]
    assert names == ["after load and wrap", *list(found.phases)[1:], "between steps"]
    for row in found.timeline[1:]:
        assert row.parts == found.phases[row.name]
        assert list(row.parts) == list(PARTS)


@pytest.mark.parametrize("engine", ["ddp", "fsdp1", "fsdp2"])
def test_the_first_micro_batch_finds_no_gradients(engine: str) -> None:
    """Later ones find all of them throughout; what is saved for backward is the same."""
    found = report({"engine": engine}, precision="bf16", global_batch=32)
    rows = {row.name: row for row in found.timeline}
    for phase in ("forward", "loss", "backward"):
        first, later = rows[f"{phase} 1"], rows[f"{phase} 2+"]
        assert later.parts == found.phases[phase]
        assert first.total_bytes < later.total_bytes <= found.peak_bytes
    assert rows["forward 1"].parts["gradients"] == 0
    assert rows["forward 2+"].parts["gradients"] == found.phases["optimizer step"]["gradients"]
    assert rows["forward 1"].parts["activations"] == rows["forward 2+"].parts["activations"]


def test_persistent_gradient_buffers_are_in_the_first_micro_batch_too() -> None:
    """Megatron-LM's are made with the model and live on."""
    rows = {row.name: row for row in report({"engine": "megatron"}, global_batch=32).timeline}
    assert rows["forward 1"].parts == rows["forward 2+"].parts


def test_a_pipeline_under_fsdp_has_no_whole_gradients_before_its_first_backward() -> None:
    """torch.distributed.pipelining accumulates them unsharded, in the reduction's type."""
    layout = {"engine": "fsdp2", "pipeline_parallel": 4}
    found = report(layout, precision="fsdp-mixed", global_batch=32)
    rows = {row.name: row for row in found.timeline}
    whole = rows["forward 2+"].total_bytes - rows["forward 1"].total_bytes
    assert whole == pytest.approx(4 * found.scenario.model.parameters / 4, rel=0.2)
    assert rows["backward 1"].total_bytes == rows["backward 2+"].total_bytes


def test_the_first_step_lacks_the_optimizers_state_until_it_steps() -> None:
    """AdamW makes its moments in the first `step` (torch/optim/adam.py, `_init_group`)."""
    found = report({"engine": "ddp"}, precision="fp32")
    state = found.phases["forward"]["optimizer state"]
    rows = {row.name: row for row in found.timeline}
    for phase in ("forward", "loss", "backward", "gradients complete"):
        lacking = rows[phase].total_bytes - (rows[phase].first_step_bytes or 0.0)
        assert state <= lacking <= state + 1e6  # and what the allocator adds to it
    assert rows["optimizer step"].first_step_bytes == rows["optimizer step"].total_bytes
    assert rows["between steps"].first_step_bytes is None


def test_a_step_at_init_leaves_nothing_lacking() -> None:
    """DeepSpeed without ZeRO steps once before the first batch (fp16/fused_optimizer.py)."""
    found = report({"engine": "deepspeed", "zero_stage": 0}, precision="mixed-16")
    assert all(row.first_step_bytes in (None, row.total_bytes) for row in found.timeline)
