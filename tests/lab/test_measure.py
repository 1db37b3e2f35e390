"""Measured figures on real ranks: exact where theory is exact."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.core.errors import ScenarioError
from shardwise.lab import run
from shardwise.lab.measuring.figures import Calls, Event, live_micro_batches, pipeline_times, total

NETWORK = """
import torch
import torch.distributed as dist
from torch import nn
from shardwise.lab import measure

def network(layers=4, width=64):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])
"""


def test_adam_in_fp32_holds_sixteen_bytes_a_parameter_and_four_a_tensor():
    """4 + 4 + 8 bytes a parameter (ZeRO, section 3.1, all fp32), and a step counter a tensor."""
    source = """
model = network()
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(2, 64)).sum().backward()
optimizer.step()
state = measure.state(model, optimizer)
"""
    (state,) = run(NETWORK + source, 1, outputs=("state",), device="cpu")["state"]
    parameters = 4 * 64 * 64
    assert state.parameters.bytes == state.gradients.bytes == 4 * parameters
    assert state.optimizer.bytes == 8 * parameters + 4 * 4
    assert state.optimizer.elements == 2 * parameters + 4
    assert state.bytes == 16 * parameters + 16


def test_tied_weights_count_once():
    """An embedding that is also the head is one storage."""
    source = """
embedding = nn.Embedding(100, 8)
head = nn.Linear(8, 100, bias=False)
head.weight = embedding.weight
state = measure.state(nn.ModuleList([embedding, head]))
"""
    (state,) = run(NETWORK + source, 1, outputs=("state",), device="cpu")["state"]
    assert state.parameters.elements == 800


@pytest.mark.parametrize("world", [2, 4])
def test_zero_1_splits_the_optimizer_state_and_nothing_else(world):
    """ZeroRedundancyOptimizer: state over all ranks is one optimizer's; parameters stay whole."""
    source = """
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(network())
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
model(torch.ones(2, 64)).sum().backward()
optimizer.step()
state = measure.state(model, optimizer)
"""
    states = run(NETWORK + source, world, outputs=("state",), device="cpu")["state"]
    parameters = 4 * 64 * 64
    assert sum(state.optimizer.elements for state in states) == 2 * parameters + 4
    assert {state.optimizer.elements for state in states} == {(2 * parameters + 4) // world}
    assert {state.parameters.elements for state in states} == {parameters}


@pytest.mark.parametrize(("reshard", "gathers"), [(True, 8), (False, 4)])
def test_fsdp2_gathers_twice_a_layer_or_once_and_holds_its_shard(reshard, gathers):
    """2L all-gathers with resharding after forward, L without; L reduce-scatters; 1/N of it all."""
    source = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (world,))
model = network()
for layer in model:
    fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
optimizer = torch.optim.Adam(model.parameters())
with measure.Collectives() as collectives:
    model(torch.ones(2, 64)).sum().backward()
optimizer.step()
calls = collectives.calls
state = measure.state(model, optimizer)
"""
    result = run(
        NETWORK + source, 4, inputs={"reshard": reshard}, outputs=("calls", "state"), device="cpu"
    )
    parameters, each = 4 * 64 * 64, 4 * 64 * 64
    for calls, state in zip(result["calls"], result["state"], strict=True):
        assert calls["all_gather"] == Calls(gathers, gathers * each)
        assert calls["reduce_scatter"] == Calls(4, 4 * each)
        assert state.parameters.elements == state.gradients.elements == parameters // 4
        assert state.optimizer.elements == 2 * parameters // 4 + 4


def test_ddp_reduces_each_gradient_byte_once():
    """The buckets DDP makes in C++ are seen: their bytes are those of the gradients."""
    source = """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(network(), bucket_cap_mb=0.02)
seen = []
for _ in range(2):
    with measure.Collectives() as collectives:
        model(torch.ones(2, 64)).sum().backward()
    seen.append(collectives.calls["all_reduce"])
"""
    for seen in run(NETWORK + source, 2, outputs=("seen",), device="cpu")["seen"]:
        assert [calls.bytes for calls in seen] == [4 * 64 * 64 * 4] * 2
        assert seen[1].calls > 1


def test_tensor_parallel_mlp_takes_two_all_reduces():
    """One after the row-wise layer in forward, one for the input's gradient in backward."""
    source = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)
mesh = init_device_mesh("cpu", (world,))
mlp = parallelize_module(network(2), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
x = torch.ones(2, 64, requires_grad=True)
with measure.Collectives() as collectives:
    mlp(x).sum().backward()
calls = collectives.calls
"""
    for calls in run(NETWORK + source, 2, outputs=("calls",), device="cpu")["calls"]:
        assert total(calls) == Calls(2, 2 * 2 * 64 * 4)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_ring_all_reduce_sends_exactly_2_n_minus_1_over_n_of_the_tensor(world):
    """Patarasuk and Yuan (2009): each rank sends 2(N-1) chunks of S/N bytes, counted singly."""
    source = """
numbers = torch.arange(12_000, dtype=torch.float32) * (rank + 1)
chunks = list(numbers.chunk(world))
right, left = (rank + 1) % world, (rank - 1) % world
with measure.Collectives() as collectives:
    for step in range(2 * (world - 1)):
        give, take = (rank - step) % world, (rank - step - 1) % world
        received = torch.empty_like(chunks[take])
        sending = dist.isend(chunks[give], right)
        dist.recv(received, left)
        sending.wait()
        chunks[take][:] = chunks[take] + received if step < world - 1 else received
sent = collectives.calls["send"]
right_answer = torch.equal(torch.cat(chunks),
    torch.arange(12_000, dtype=torch.float32) * sum(range(1, world + 1)))
"""
    result = run(NETWORK + source, world, outputs=("sent", "right_answer"), device="cpu")
    size = 12_000 * 4
    assert result["right_answer"] == (True,) * world
    assert set(result["sent"]) == {Calls(2 * (world - 1), 2 * (world - 1) * size // world)}


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's TCP counters")
@pytest.mark.parametrize("world", [2, 4])
def test_the_wire_carries_what_the_ring_formula_says(world):
    """gloo's all-reduce, counted by the system on its sockets: the formula and < 1 % headers."""
    source = """
x = torch.ones(1_000_000)
dist.all_reduce(x)
with measure.Wire() as wire:
    dist.all_reduce(x)
sent = wire.sent_bytes
"""
    expected = 2 * (world - 1) / world * 4_000_000
    for sent in run(NETWORK + source, world, outputs=("sent",), device="cpu")["sent"]:
        assert expected <= sent <= 1.01 * expected


def test_saved_activations_are_the_inputs_autograd_keeps():
    """Each linear layer saves its input; checkpointing saves one input a segment and recomputes."""
    source = """
from torch.utils.checkpoint import checkpoint
model = network()
x = torch.ones(8, 64)
with measure.SavedActivations(model) as plain:
    loss = model(x).sum()
forward = plain.bytes
loss.backward()
after = plain.bytes
with measure.SavedActivations(model) as less:
    h = checkpoint(model[:2], x, use_reentrant=False)
    loss = checkpoint(model[2:], h, use_reentrant=False).sum()
    checkpointed = less.bytes
figures = (forward, after, checkpointed)
"""
    (figures,) = run(NETWORK + source, 1, outputs=("figures",), device="cpu")["figures"]
    one = 8 * 64 * 4
    assert figures[0] == 4 * one and figures[1] == 0
    assert figures[2] <= 2 * one


def test_the_peak_of_a_step_counts_every_storage_alive():
    """Both results of (x + 1) * 2 live at the highest point; freed ones do not stay."""
    source = """
x = torch.ones(1000)
with measure.Peak(x) as peak:
    a = x + 1
    b = a * 2
    del a
    c = b + 1
    del b, c
figures = (peak.start_bytes, peak.peak_bytes, peak.end_bytes, peak.above_start_bytes, peak.source)
"""
    (figures,) = run(NETWORK + source, 1, outputs=("figures",), device="cpu")["figures"]
    assert figures == (4000, 12000, 4000, 8000, "counted tensor storages")


def test_the_peak_sees_storages_resized_in_place():
    """FSDP frees gathered parameters by resizing their storage to nothing."""
    source = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (world,))
figures = []
for reshard in (True, False):
    model = network(8)
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    with measure.Peak(model) as peak, torch.no_grad():
        model(torch.ones(1, 64))
    figures.append((peak.start_bytes, peak.above_start_bytes, peak.end_bytes))
"""
    layer = 64 * 64 * 4
    for figures in run(NETWORK + source, 2, outputs=("figures",), device="cpu")["figures"]:
        (start, resharded, end), (_, kept, kept_end) = figures
        assert start == 8 * layer // 2
        assert kept >= 8 * layer > 4 * layer >= resharded
        assert kept_end - end >= 7 * layer


PIPELINE = """
import time
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

class Paced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.02)
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.04)
        return gradient

class Layer(nn.Linear):
    def forward(self, x):
        return Paced.apply(super().forward(x))

stage = PipelineStage(Layer(8, 8), rank, world, device)
record = measure.PipelineRecord(stage)
kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[name]
schedule = kind(stage, 8, loss_fn=lambda output, target: ((output - target) ** 2).mean())
for _ in range(2):
    record.clear()
    if rank == 0:
        schedule.step(torch.ones(8, 8))
    else:
        schedule.step(target=torch.zeros(8, 8)) if rank == world - 1 else schedule.step()
times = record.times()
"""


@pytest.mark.parametrize(("name", "live"), [("gpipe", (8, 8, 8, 8)), ("1f1b", (4, 3, 2, 1))])
def test_a_pipelines_live_micro_batches_and_idle_share(name, live):
    """GPipe keeps m micro-batches, 1F1B p - r; both idle about (p-1)/(m+p-1) = 3/11 of the time."""
    result = run(NETWORK + PIPELINE, 4, inputs={"name": name}, outputs=("times",), device="cpu")
    for times in result["times"]:
        assert times.live_micro_batches == live
        assert 3 / 11 - 0.02 < times.idle_share < 0.6
        assert [len(events) for events in times.events] == [16] * 4


def test_phases_add_up_the_time_inside():
    """A phase entered twice is one entry with both times."""
    source = """
import time
phases = measure.Phases()
for _ in range(2):
    with phases("sleep"):
        time.sleep(0.05)
with phases("nothing"):
    pass
seconds = phases.seconds
"""
    (seconds,) = run(NETWORK + source, 1, outputs=("seconds",), device="cpu")["seconds"]
    assert list(seconds) == ["sleep", "nothing"]
    assert seconds["sleep"] >= 0.1 > seconds["nothing"]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_idle_share_is_a_share_whatever_the_work(lengths):
    """Ranks that work one after another: the idle share is what arithmetic says."""
    events, at = [], 0.0
    for rank, length in enumerate(lengths):
        events.append([Event(rank, "F", 0, at, at + length)])
        at += length
    times = pipeline_times(events)
    assert times.span_seconds == sum(lengths)
    assert times.idle_share == pytest.approx(1 - 1 / len(lengths))


def test_a_split_backward_keeps_the_micro_batch_until_its_weight_gradient():
    """B alone does not free a micro-batch's activations, W does."""
    events = [
        Event(0, kind, number, float(i), i + 1.0)
        for i, (kind, number) in enumerate(
            [("F", 0), ("B", 0), ("F", 1), ("B", 1), ("W", 0), ("W", 1)]
        )
    ]
    assert live_micro_batches(events) == 2


def test_times_of_nothing_are_an_error():
    """A record without events says that a step must be recorded."""
    with pytest.raises(ValueError, match="record a step"):
        pipeline_times([[], []])


def test_the_wire_needs_the_systems_counters(monkeypatch):
    """Where there is no /proc the counter refuses instead of reading zero."""
    from shardwise.lab.measuring import traffic

    monkeypatch.setattr(traffic.Path, "exists", lambda self: False)
    with pytest.raises(ScenarioError, match="Linux"):
        traffic.Wire()
