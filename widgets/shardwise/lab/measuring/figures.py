"""What measurements return: plain values that a notebook can read without loading torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Held:
    """Tensors a rank holds: `bytes` of their elements, `storage_bytes` with padding."""

    tensors: int = 0
    elements: int = 0
    bytes: int = 0
    storage_bytes: int = 0


@dataclass(frozen=True)
class State:
    """What lives between steps on one rank."""

    parameters: Held
    gradients: Held
    optimizer: Held
    buffers: Held

    @property
    def bytes(self) -> int:
        """All four together."""
        return sum(
            part.bytes for part in (self.parameters, self.gradients, self.optimizer, self.buffers)
        )


@dataclass(frozen=True)
class Calls:
    """One kind of collective: how often it was called and with how many bytes in all.

    `bytes` is the size of the full tensor: what all_reduce and broadcast are given, what all_gather
    returns, what reduce_scatter is given, what send sends.
    """

    calls: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Event:
    """One piece of work of a pipeline stage: F, B (input gradient), W (weight gradient) or BW."""

    stage: int
    kind: str
    micro_batch: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class PipelineTimes:
    """One step of a pipeline, all ranks on one clock.

    `idle_share` is what is left of ranks × span after the work: the bubble with everything that
    makes ranks wait, communication included.
    """

    span_seconds: float
    busy_seconds: tuple[float, ...]
    idle_share: float
    live_micro_batches: tuple[int, ...]
    events: tuple[tuple[Event, ...], ...] = field(repr=False)


def pipeline_times(events_by_rank: Sequence[Sequence[Event]]) -> PipelineTimes:
    """Span, work and idle share of one step, from the events each rank recorded.

    >>> one = [Event(0, "F", 0, 0.0, 1.0), Event(0, "BW", 0, 3.0, 4.0)]
    >>> two = [Event(1, "F", 0, 1.0, 2.0), Event(1, "BW", 0, 2.0, 3.0)]
    >>> times = pipeline_times([one, two])
    >>> times.span_seconds, times.idle_share, times.live_micro_batches
    (4.0, 0.5, (1, 1))
    """
    every = [event for events in events_by_rank for event in events]
    if not every:
        raise ValueError("no events: record a step before asking for its times")
    span = max(event.end for event in every) - min(event.start for event in every)
    busy = tuple(sum(event.seconds for event in events) for events in events_by_rank)
    return PipelineTimes(
        span_seconds=span,
        busy_seconds=busy,
        idle_share=1 - sum(busy) / (span * len(busy)),
        live_micro_batches=tuple(live_micro_batches(events) for events in events_by_rank),
        events=tuple(tuple(events) for events in events_by_rank),
    )


def live_micro_batches(events: Sequence[Event]) -> int:
    """The most micro-batches whose forward was done and whose backward was not.

    A backward split into B and W ends with its W: until then the stage keeps the activations.
    """
    live = most = 0
    for event in sorted(events, key=lambda event: event.start):
        live += {"F": 1, "B": 0}.get(event.kind, -1)
        most = max(most, live)
    return most


def total(calls: Mapping[str, Calls]) -> Calls:
    """All kinds together.

    >>> total({"all_gather": Calls(8, 100), "reduce_scatter": Calls(4, 50)})
    Calls(calls=12, bytes=150)
    """
    return Calls(
        sum(each.calls for each in calls.values()), sum(each.bytes for each in calls.values())
    )
