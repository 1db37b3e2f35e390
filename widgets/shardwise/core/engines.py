"""The sharding engines and their ZeRO stages; pipeline schedules, offload targets, exchanges."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.core.errors import ScenarioError
from shardwise.core.fields import flag, whole

ENGINES = ("ddp", "zero-redundancy", "fsdp1", "fsdp2", "deepspeed", "megatron", "nanotron")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
OFFLOADS = ("none", "cpu", "nvme")
CONTEXT_EXCHANGES = ("p2p", "a2a")
ZERO_STAGES: Mapping[str, tuple[int, ...]] = {
    "ddp": (0,),
    "zero-redundancy": (1,),
    "fsdp1": (2, 3),
    "fsdp2": (2, 3),
    "deepspeed": (0, 1, 2, 3),
    "megatron": (0, 1),
    "nanotron": (0, 1),
}


def zero_stage(given: Mapping[str, object], engine: str) -> int:
    """The ZeRO stage asked for; for FSDP, `reshard_after_forward` says 3 (True) or 2 (False)."""
    allowed = ZERO_STAGES[engine]
    reshard = given.get("reshard_after_forward")
    if reshard is not None and engine in ("fsdp1", "fsdp2"):
        from_reshard = 3 if flag(reshard, "layout.reshard_after_forward") else 2
        if given.get("zero_stage") not in (None, from_reshard):
            raise ScenarioError(
                "layout.reshard_after_forward",
                reshard,
                f"{given['zero_stage'] == 3} with zero_stage {given['zero_stage']}",
                "give one of the two",
            )
        return from_reshard
    stage = whole(given.get("zero_stage", allowed[-1]), "layout.zero_stage", 0, 3)
    if stage not in allowed:
        listed = " or ".join(str(s) for s in allowed)
        raise ScenarioError("layout.zero_stage", stage, f"{listed} with engine {engine}")
    if reshard is not None and flag(reshard, "layout.reshard_after_forward") != (stage == 3):
        raise ScenarioError(
            "layout.reshard_after_forward", reshard, f"{stage == 3} with zero_stage {stage}"
        )
    return stage
