"""DeepSpeed's own configuration classes read what the export writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deepspeed.runtime import config as deepspeed_config
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.core.errors import ScenarioError
from shardwise.core.memory import deepspeed as buckets
from shardwise.core.optimizers import OPTIMIZERS
from shardwise.core.precision import POLICIES
from shardwise.core.scenario import Scenario
from shardwise.export import export
from shardwise.export.deepspeed import realized


def scenario(**parts: dict[str, object]) -> Scenario:
    """A 7B on two nodes of A100s under DeepSpeed, with some parts changed."""
    return Scenario.from_dict(
        {
            "model": {"parameters": 7e9},
            "cluster": {"gpu": "a100-sxm-80gb", "nodes": 2} | parts.get("cluster", {}),
            "training": {"micro_batch": 2, "global_batch": 128} | parts.get("training", {}),
            "layout": {"engine": "deepspeed"} | parts.get("layout", {}),
        }
    )


def written(of: Scenario) -> dict[str, Any]:
    """The JSON as a dict; a string where a boolean belongs would survive this as a string."""
    (text,) = export(of, "deepspeed").values()
    return json.loads(text)


def read_by_deepspeed(config: dict[str, Any], world: int) -> DeepSpeedConfig:
    """DeepSpeed's configuration of these ranks; it asserts that the three batch sizes agree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deepspeed_config.dist, "get_rank", lambda: 0)
        patch.setattr(deepspeed_config.dist, "get_world_size", lambda: world)
        return DeepSpeedConfig(config)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "v100-sxm-32gb"])
def test_deepspeed_accepts_every_stage_on_new_and_old_cards(stage: int, gpu: str) -> None:
    """Stage, batch and the precision of the card come out of DeepSpeed's own parser as meant."""
    of = scenario(layout={"zero_stage": stage}, cluster={"gpu": gpu})
    config = read_by_deepspeed(written(of), of.cluster.world_size)
    assert config.zero_config.stage == stage
    assert config.train_batch_size == 128
    assert config.gradient_accumulation_steps == 4
    assert config.bfloat16_config.enabled == (gpu == "a100-sxm-80gb")
    assert config.float16_config.enabled == (gpu == "v100-sxm-32gb")


def test_deepspeed_would_refuse_batches_that_disagree() -> None:
    """The parser used here does check: one sample more is refused."""
    config = written(scenario())
    config["train_batch_size"] += 1
    with pytest.raises(AssertionError, match="train_batch_size"):
        read_by_deepspeed(config, 16)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_written_sizes_are_deepspeeds_defaults_and_the_estimates(stage: int) -> None:
    """What is counted, what is written and what DeepSpeed defaults to are one number."""
    written_zero = written(scenario(layout={"zero_stage": stage}))["zero_optimization"]
    read, default = DeepSpeedZeroConfig(**written_zero), DeepSpeedZeroConfig(stage=stage)
    for name in (
        "reduce_bucket_size",
        "allgather_bucket_size",
        "prefetch_bucket_size",
        "max_live_parameters",
        "overlap_comm",
        "contiguous_gradients",
    ):
        assert getattr(read, name) == getattr(default, name)
    assert default.reduce_bucket_size == buckets.REDUCE_BUCKET
    assert default.allgather_bucket_size == buckets.ALLGATHER_BUCKET
    assert default.prefetch_bucket_size == buckets.PREFETCH_BUCKET
    assert default.max_live_parameters == buckets.MAX_LIVE_PARAMETERS


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_offload_reaches_deepspeed(device: str) -> None:
    """Optimizer and parameter offload name their device; NVMe has a path."""
    offload = {"optimizer": device, "parameters": device}
    zero = written(scenario(layout={"offload": offload}))["zero_optimization"]
    read = DeepSpeedZeroConfig(**zero)
    assert read.offload_optimizer.device == device
    assert read.offload_param.device == device
    assert (read.offload_param.nvme_path is not None) == (device == "nvme")


def test_every_flag_is_a_real_boolean() -> None:
    """No "true" or "auto" in quotes: DeepSpeed takes any text for true."""

    def leaves(value: object) -> list[object]:
        if isinstance(value, dict):
            return [leaf for item in value.values() for leaf in leaves(item)]
        return [value]

    for stage in range(4):
        texts = [
            v for v in leaves(written(scenario(layout={"zero_stage": stage}))) if isinstance(v, str)
        ]
        assert set(texts) <= {"AdamW", "bf16", "fp16", "fp32"}


@pytest.mark.parametrize("precision", POLICIES)
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_precision_is_what_deepspeed_keeps_or_is_refused(precision: str, stage: int) -> None:
    """bf16 block, fp32 accumulation and autocast as the policy says; else one clear sentence."""
    of = scenario(training={"precision": precision}, layout={"zero_stage": stage})
    fewer_bytes = precision in ("deepseek-v3", "fp8-lm")
    if fewer_bytes or (stage == 0 and precision in ("mixed-fp32-grads", "bf16")):
        with pytest.raises(ScenarioError, match=r"training\.precision"):
            export(of, "deepspeed")
        return
    config = read_by_deepspeed(written(of), 16)
    stored_in_16_bits = of.training.precision.parameter_bytes == 2
    assert config.bfloat16_config.enabled == stored_in_16_bits
    assert config.torch_autocast_enabled == (precision in ("fsdp-mixed", "autocast"))
    if precision == "mixed-fp32-grads":
        assert config.grad_accum_dtype == "fp32"
    if precision == "bf16":
        assert config.bfloat16_config.bf16_optimizer_states


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_has_deepspeeds_name_or_is_left_to_the_program(optimizer: str) -> None:
    """Named where DeepSpeed (or torch.optim, its fallback) has it; else allowed as untested."""
    config = read_by_deepspeed(written(scenario(training={"optimizer": optimizer})), 16)
    names = {"adamw": "adamw", "sgd": "SGD", "sgd-momentum": "SGD", "lion": "lion", "muon": "muon"}
    assert config.optimizer_name == names.get(optimizer)
    assert config.zero_allow_untested_optimizer == (optimizer != "adamw")


def test_an_axis_that_the_json_cannot_say_is_refused() -> None:
    """Tensor parallelism is the program's; the error names the field."""
    of = scenario(layout={"engine": "fsdp2", "tensor_parallel": 2})
    with pytest.raises(ScenarioError) as error:
        export(of, "deepspeed")
    assert error.value.field == "layout.tensor_parallel"


@settings(max_examples=60, deadline=None)
@given(
    micro=st.integers(1, 64),
    batch=st.integers(1, 5000),
    nodes=st.integers(1, 40),
    stage=st.integers(0, 3),
)
def test_the_batch_always_adds_up(micro: int, batch: int, nodes: int, stage: int) -> None:
    """train_batch_size = micro-batch x accumulation x world size, whatever was asked for."""
    of = scenario(
        training={"micro_batch": micro, "global_batch": batch},
        cluster={"nodes": nodes},
        layout={"zero_stage": stage},
    )
    config = read_by_deepspeed(written(of), of.cluster.world_size)
    assert config.train_batch_size >= batch


def test_the_file_is_realized_as_deepspeeds_own_engine_at_its_stage() -> None:
    """An FSDP2 layout's file runs DeepSpeed's ZeRO-3, whose sizes are other than FSDP2's."""
    laid = scenario(layout={"engine": "fsdp2", "zero_stage": 3})
    real = realized(laid)
    assert (real.layout.engine, real.layout.zero_stage) == ("deepspeed", 3)
    assert real.training == laid.training and real.cluster == laid.cluster
    assert written(real) == written(laid)
    assert realized(real) == real


def test_what_cannot_be_written_is_not_realized_either() -> None:
    """Tensor parallelism is the program's, not the JSON's."""
    with pytest.raises(ScenarioError, match="tensor_parallel"):
        realized(scenario(layout={"engine": "fsdp2", "zero_stage": 3, "tensor_parallel": 2}))
