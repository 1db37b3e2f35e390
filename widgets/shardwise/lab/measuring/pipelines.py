"""What a pipeline's stages did and when: recorded around the stages' own methods."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from shardwise.lab.measuring.figures import Event, PipelineTimes, pipeline_times


class PipelineRecord:
    """Notes each forward and backward of the stages of this rank.

    The waits for neighbors lie outside these calls, so idle time is never taken for work. Record
    the second step: torch's first one runs an extra forward to learn shapes.
    """

    def __init__(self, *stages: Any) -> None:
        self.events: list[Event] = []
        for stage in stages:
            for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
                setattr(stage, name, self._noted(stage.stage_index, name, getattr(stage, name)))

    def clear(self) -> None:
        """Forget the steps so far and meet the other ranks: the next step is measured alone."""
        dist.barrier()
        self.events.clear()

    def times(self) -> PipelineTimes:
        """The recorded step over all ranks (a collective call: every rank must make it)."""
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, self.events)
        return pipeline_times(gathered)

    def _noted(self, stage: int, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(number: int, *args: Any, **kwargs: Any) -> Any:
            started = _now()
            result = original(number, *args, **kwargs)
            kind = {"forward_one_chunk": "F", "backward_weight_one_chunk": "W"}.get(name)
            if kind is None:
                kind = "BW" if kwargs.get("full_backward", True) else "B"
            self.events.append(Event(stage, kind, number, started, _now()))
            return result

        return call


def _now() -> float:
    """One clock for all processes of a machine; the GPU's queue is emptied first."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.clock_gettime(time.CLOCK_MONOTONIC)
