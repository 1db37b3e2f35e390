"""Which layouts cannot be: axes, schedules and offloads that do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwise.core.errors import ScenarioError

if TYPE_CHECKING:
    from shardwise.core.layout import Layout


def check_layout(layout: Layout) -> None:
    """Refuse what no cluster can make good.

    Raises:
        ScenarioError: sequence parallelism without a tensor axis, virtual stages without the
            interleaved schedule or a pipeline, or an offload that the engine does not have.
    """
    if layout.sequence_parallel and layout.tensor_parallel == 1:
        raise ScenarioError("layout.sequence_parallel", True, "False when tensor_parallel is 1")
    if layout.float8_all_gather and layout.engine != "fsdp2":
        raise ScenarioError(
            "layout.float8_all_gather",
            True,
            f"False with engine {layout.engine}",
            "torchao's fp8 weights are gathered by FSDP2's own hook: choose fsdp2",
        )
    _check_stages(layout)
    _check_offload(layout)


def _check_stages(layout: Layout) -> None:
    if layout.schedule == "interleaved" and layout.virtual_stages < 2:
        raise ScenarioError(
            "layout.virtual_stages",
            layout.virtual_stages,
            "2 or more with the interleaved schedule",
        )
    if layout.virtual_stages > 1 and layout.schedule != "interleaved":
        raise ScenarioError(
            "layout.schedule", layout.schedule, "interleaved when virtual_stages is over 1"
        )
    if layout.virtual_stages > 1 and layout.pipeline_parallel == 1:
        raise ScenarioError(
            "layout.virtual_stages", layout.virtual_stages, "1 without pipeline parallelism"
        )


def _check_offload(layout: Layout) -> None:
    if layout.offload_parameters != "none" and layout.zero_stage != 3:
        raise ScenarioError(
            "layout.offload.parameters",
            layout.offload_parameters,
            "none unless zero_stage is 3",
            "only sharded parameters can be offloaded",
        )
    if layout.offload_optimizer == "none":
        return
    if (layout.engine, layout.zero_stage) == ("deepspeed", 0):
        raise ScenarioError(
            "layout.offload.optimizer",
            layout.offload_optimizer,
            "none with zero_stage 0",
            "offloading is part of ZeRO: take stage 1, 2 or 3",
        )
    if layout.engine in ("ddp", "zero-redundancy"):
        raise ScenarioError(
            "layout.offload.optimizer",
            layout.offload_optimizer,
            f"none with engine {layout.engine}",
            "choose deepspeed, fsdp2, fsdp1 or megatron",
        )


def check_experts(layout: Layout, group: int) -> None:
    """Refuse expert degrees that do not fold into `group`, the data x context ranks (times tensor).

    Raises:
        ScenarioError: what the degree would have to divide.
    """
    if layout.expert_tensor_parallel is None:
        if group % layout.expert_parallel:
            raise ScenarioError(
                "layout.expert_parallel",
                layout.expert_parallel,
                f"a divisor of data x context = {group}: expert parallelism is folded into it",
            )
        return
    ranks = group * layout.tensor_parallel
    if ranks % (layout.expert_parallel * layout.expert_tensor_parallel):
        raise ScenarioError(
            "layout.expert_tensor_parallel",
            layout.expert_tensor_parallel,
            f"a degree that divides data x context x tensor = {ranks} together with "
            f"expert_parallel {layout.expert_parallel}",
        )
