"""What a GPU holds while FSDP2 wraps a model, against storages counted as `fully_shard` runs."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest

from shardwise.core.memory import estimate
from shardwise.core.memory.loading import OWN_PART, STRAIGHT, THROUGH_RAM
from shardwise.core.memory.report import MemoryReport
from shardwise.core.scenario import Scenario

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.fsdp._fully_shard import _fsdp_init  # noqa: E402
from trace_cases import config_of  # noqa: E402

from shardwise.lab.tracing import fake, labels, wrap  # noqa: E402
from shardwise.lab.tracing.build import from_config  # noqa: E402
from shardwise.lab.tracing.ledger import TEMPORARIES, Ledger  # noqa: E402
from shardwise.lab.tracing.live import LiveStorages  # noqa: E402
from shardwise.lab.tracing.settings import Settings  # noqa: E402

CASES = [("gpt2", 2, 8, "fp32"), ("smollm2-135m", 4, 6, "bf16"), ("olmoe-1b-7b", 2, 48, "bf16")]
each = pytest.mark.parametrize(("model", "layers", "ranks", "precision"), CASES)


def report(model: str, layers: int, ranks: int, precision: str) -> MemoryReport:
    """The estimate of that model over so many ranks."""
    return estimate(
        Scenario.from_dict(
            {
                "model": json.loads(json.dumps(config_of(model, layers))),
                "cluster": {"gpus_per_node": min(8, ranks), "nodes": max(1, ranks // 8)},
                "training": {"precision": precision},
            }
        )
    )


def wrapped_peak(model: str, layers: int, ranks: int, precision: str, *, on_gpu: bool) -> int:
    """Highest bytes of the GPU while the layers and then the root are sharded.

    `on_gpu`: all of the model is there first. Otherwise its units come as FSDP2 asks for them: what
    `_move_states_to_device` moves is counted from then on.
    """
    settings = Settings(world=ranks, precision=precision)
    ledger = Ledger(1)
    live = LiveStorages(ledger)

    def moved(parameters: Any, buffers: Any, device: Any) -> None:
        for parameter in parameters:
            live.see(parameter, TEMPORARIES)

    target = "_move_states_to_device"
    with fake.fake_group(settings):
        meshes = fake._meshes(settings)
        with FakeTensorMode(allow_non_fake_inputs=True), fake.real_meshes():
            built = from_config(config_of(model, layers), settings)
            if on_gpu:
                moved(built.parameters(), (), None)
            ledger.begin("wrap")
            with live, labels.labelling(live), mock.patch.object(_fsdp_init, target, moved):
                wrap.shard(built, settings, meshes["data"])
    assert ledger.windows["wrap"].peak_bytes > 0
    return ledger.windows["wrap"].peak_bytes


@each
def test_a_model_on_the_gpu_is_whole_until_its_first_unit_is_sharded(
    model: str, layers: int, ranks: int, precision: str
) -> None:
    """The whole model and one unit's shards."""
    ways = {way.way: way for way in report(model, layers, ranks, precision).loading}
    traced = wrapped_peak(model, layers, ranks, precision, on_gpu=True)
    assert ways[STRAIGHT].gpu_bytes == pytest.approx(traced, rel=0.001)


@each
def test_units_come_one_by_one_from_ram(
    model: str, layers: int, ranks: int, precision: str
) -> None:
    """All shards so far, a whole unit and its shards: the root is last."""
    ways = {way.way: way for way in report(model, layers, ranks, precision).loading}
    traced = wrapped_peak(model, layers, ranks, precision, on_gpu=False)
    assert ways[THROUGH_RAM].gpu_bytes == pytest.approx(traced, rel=0.001)
    assert ways[OWN_PART].gpu_bytes < ways[STRAIGHT].gpu_bytes
