"""Host memory: what loading, saving and NVMe take, with DeepSpeed's own buffer sizes."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest

from shardwise.core.memory import host
from shardwise.core.memory.stages import stages_of
from shardwise.core.scenario import Scenario


def scenario(layout: Any = None, **training: Any) -> Scenario:
    """7B on two nodes of eight cards."""
    return Scenario.from_dict(
        {
            "model": {"parameters": 7e9},
            "cluster": {"gpu": "a100-sxm-80gb", "nodes": 2},
            "training": training,
            "layout": layout or {},
        }
    )


def in_training(laid: Scenario) -> float:
    """Bytes of one node's host memory during training."""
    return host.host_bytes_per_node(laid, stages_of(laid.model, laid.layout))


def test_swap_buffers_have_deepspeeds_default_sizes() -> None:
    """Counts and sizes are the defaults of DeepSpeed's own configuration classes."""
    pytest.importorskip("deepspeed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DeepSpeed's own deprecations are not under test
        offload = importlib.import_module("deepspeed.runtime.zero.offload_config")
        zero = importlib.import_module("deepspeed.runtime.zero.config")
        parameters = offload.DeepSpeedZeroOffloadParamConfig()
        optimizer = offload.DeepSpeedZeroOffloadOptimizerConfig()
        config = zero.DeepSpeedZeroConfig()
    assert parameters.buffer_count == host.PARAMETER_BUFFERS
    assert parameters.buffer_size == host.PARAMETER_BUFFER_ELEMENTS
    assert optimizer.buffer_count == host.OPTIMIZER_BUFFERS
    assert config.sub_group_size == host.SUB_GROUP


def test_only_offloading_takes_host_memory_in_training() -> None:
    """Nothing without offload; NVMe takes buffers, less than the CPU takes for the states."""
    stage_3 = {"engine": "deepspeed", "zero_stage": 3}
    assert in_training(scenario(stage_3)) == 0
    on_cpu, on_nvme = (
        in_training(scenario(stage_3 | {"offload": {"optimizer": device, "parameters": device}}))
        for device in ("cpu", "nvme")
    )
    assert 0 < on_nvme < on_cpu
    shard = 7e9 / 16
    assert on_cpu == pytest.approx(8 * 1.5 * (2 + 4 + 4 + 8) * shard, rel=1e-3)


def test_parameters_alone_can_go_to_nvme() -> None:
    """Five buffers of 1e8 16-bit elements on each of a node's eight ranks: 8 GB."""
    laid = scenario({"engine": "deepspeed", "offload": {"parameters": "nvme"}})
    assert in_training(laid) == 8 * 5 * 1e8 * 2


def test_loading_whole_on_every_rank_takes_a_copy_each() -> None:
    """`from_pretrained` in each of eight processes; zero.Init or rank 0 alone takes one copy."""
    assert host.host_bytes_at_load(scenario()) == 14e9
    assert host.host_bytes_at_load(scenario(), sharded=False) == 8 * 14e9
    assert host.host_bytes_at_load(scenario(precision="fsdp-mixed")) == 28e9
    quantized = scenario({"engine": "ddp"}, trainable={"lora": {"base": "nf4"}})
    assert host.host_bytes_at_load(quantized) == 14e9  # read in 16 bits, quantized on the card


def test_a_whole_checkpoint_passes_through_rank_0() -> None:
    """All weights as they are stored; with adapters only these."""
    assert host.host_bytes_at_save(scenario()) == 14e9
    adapters = host.host_bytes_at_save(scenario(trainable={"lora": {"rank": 8}}))
    assert 0 < adapters < 0.01 * 14e9
