"""DeepSpeed's JSON: the ZeRO stage, batch, precision and bucket sizes that the estimate assumes."""

from __future__ import annotations

import json
from dataclasses import replace

from shardwise.core.errors import ScenarioError
from shardwise.core.layout import Layout
from shardwise.core.memory.deepspeed import ALLGATHER_BUCKET, MAX_LIVE_PARAMETERS, PREFETCH_BUCKET
from shardwise.core.scenario import Scenario
from shardwise.export.axes import data_parallel_only

Json = dict[str, object]

_ADAM = {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
_OPTIMIZERS: dict[str, Json] = {
    "adamw": {"type": "AdamW", "params": _ADAM},
    "sgd": {"type": "SGD", "params": {"lr": 1e-4}},
    "sgd-momentum": {"type": "SGD", "params": {"lr": 1e-4, "momentum": 0.9}},
    "lion": {"type": "Lion", "params": {"lr": 1e-5, "betas": [0.9, 0.99], "weight_decay": 0.1}},
    "muon": {"type": "Muon", "params": {"lr": 1e-3, "momentum": 0.95, "weight_decay": 0.01}},
}


def files(scenario: Scenario) -> dict[str, str]:
    """`ds_config.json` for `deepspeed.initialize(config=...)` or a Hugging Face Trainer.

    Raises:
        ScenarioError: an axis or a precision that DeepSpeed's configuration cannot say.
    """
    _check(scenario)
    training, layout = scenario.training, scenario.layout
    config: Json = {
        "train_batch_size": scenario.global_batch,
        "train_micro_batch_size_per_gpu": training.micro_batch,
        "gradient_accumulation_steps": scenario.micro_batches,
        **_precision(scenario),
        "zero_optimization": _zero(layout),
    }
    if training.optimizer in _OPTIMIZERS:
        config["optimizer"] = _OPTIMIZERS[training.optimizer]
        if training.optimizer == "adamw" and layout.offload_optimizer == "none":
            config["optimizer"] = _adamw(training.optimizer_implementation)
    if training.optimizer != "adamw" and layout.zero_stage:
        # adamw-8bit and adafactor are handed to deepspeed.initialize(optimizer=...) by the program
        config["zero_allow_untested_optimizer"] = True
    if layout.offload_optimizer != "none" and training.optimizer not in ("adamw", "lion"):
        config["zero_force_ds_cpu_optimizer"] = False
    return {"ds_config.json": json.dumps(config, indent=2) + "\n"}


def realized(scenario: Scenario) -> Scenario:
    """The scenario as DeepSpeed runs the file: its own engine at the same ZeRO stage.

    Raises:
        ScenarioError: what `files` raises.
    """
    _check(scenario)
    _precision(scenario)
    layout = replace(scenario.layout, engine="deepspeed", shard=None, gradient_as_bucket_view=False)
    return scenario.with_layout(layout)


def _adamw(implementation: str) -> Json:
    """DeepSpeed's FusedAdam for `fused`, else torch's AdamW as it is counted."""
    if implementation == "fused":
        return _OPTIMIZERS["adamw"]
    torchs = {"torch_adam": True, "foreach": implementation == "foreach"}
    return {"type": "AdamW", "params": _ADAM | torchs}


def _check(scenario: Scenario) -> None:
    layout = scenario.layout
    data_parallel_only(layout, ": in DeepSpeed the program sets this axis, not the JSON")
    if 1 < scenario.shard < scenario.data_parallel:
        raise ScenarioError(
            "layout.shard",
            scenario.shard,
            f"{scenario.data_parallel}: ZeRO shards over all data-parallel ranks",
            "leave it out",
        )


def _zero(layout: Layout) -> Json:
    """The stage, with every size that the estimate counts written out (in elements)."""
    stage = layout.zero_stage
    zero: Json = {"stage": stage}
    if stage == 0:
        return zero
    zero |= {
        "contiguous_gradients": True,
        "overlap_comm": layout.overlaps,
        "reduce_scatter": True,
        "reduce_bucket_size": layout.reduce_bucket_elements,
    }
    if stage < 3:
        zero["allgather_partitions"] = True
        zero["allgather_bucket_size"] = ALLGATHER_BUCKET
    else:
        zero["stage3_prefetch_bucket_size"] = PREFETCH_BUCKET
        zero["stage3_max_live_parameters"] = MAX_LIVE_PARAMETERS
        zero["stage3_max_reuse_distance"] = MAX_LIVE_PARAMETERS
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if layout.offload_optimizer != "none":
        zero["offload_optimizer"] = _offload(layout.offload_optimizer)
    if layout.offload_parameters != "none":
        zero["offload_param"] = _offload(layout.offload_parameters)
    return zero


def _offload(device: str) -> Json:
    offload: Json = {"device": device, "pin_memory": True}
    return offload | ({"nvme_path": "/local_nvme"} if device == "nvme" else {})


def _precision(scenario: Scenario) -> Json:
    """The block that gives the scenario's bytes: `bf16` on cards that have it, else `fp16`.

    With fp32 weights and 16-bit compute DeepSpeed runs torch's autocast (`torch_autocast`).

    Raises:
        ScenarioError: dtypes that no block gives.
    """
    precision = scenario.training.precision
    half = "bf16" if scenario.cluster.gpu.bf16 else "fp16"
    stored, compute, gradients = (
        half if name in ("16-bit", "16-bit+fp32") else name
        for name in (precision.parameters, precision.compute, precision.gradients)
    )
    if stored == compute == "fp32":
        return {"bf16": {"enabled": False}, "fp16": {"enabled": False}}
    if stored == "fp32" and compute in ("bf16", "fp16"):
        dtype = {"bf16": "bfloat16", "fp16": "float16"}[compute]
        return {"torch_autocast": {"enabled": True, "dtype": dtype}}
    zero = scenario.layout.zero_stage
    same_type = gradients == stored or zero > 0  # stage 0 accumulates in the model's type only
    master = precision.master_bytes == 4 and same_type and precision.state_bytes == 4
    if master and stored == compute and stored in ("bf16", "fp16"):
        both = precision.gradients == "16-bit+fp32" and zero == 1  # `BF16_Optimizer` keeps both
        accumulated = "fp32" if gradients == "fp32" or both else stored
        return {
            stored: {"enabled": True} | ({"loss_scale": 0} if stored == "fp16" else {}),
            "data_types": {"grad_accum_dtype": accumulated},
        }
    no_masters = precision.state_bytes == 2 and not precision.master_bytes
    if stored == compute == "bf16" and no_masters and zero:
        pure = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        return {"bf16": {"enabled": True, **pure}}
    raise ScenarioError(
        "training.precision",
        precision.key,
        "mixed-16, mixed-20, fsdp-mixed, autocast, fp32; from ZeRO-1 on mixed-fp32-grads, bf16",
    )
