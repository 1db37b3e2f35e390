"""Every request and release of a traced step in its order, for an allocator to replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from shardwise.lab.tracing.fake import FakeRun
from shardwise.lab.tracing.ledger import Entry, Ledger
from shardwise.lab.tracing.report import TraceReport
from shardwise.lab.tracing.settings import Settings, checkpointing

COMPUTE, GATHER, REDUCE = 0, 1, 2
"""CUDA streams whose pools FSDP2's tensors come from: all-gathers have their inputs and outputs on
one of their own, reduce-scatters their outputs (the gradients' shards)."""


class Event(NamedTuple):
    """One storage born or resized (`number_bytes`) or gone (0); `stream` asked for it."""

    key: int
    number_bytes: int
    stream: int


class Journal(Ledger):
    """A ledger that also writes down what happened, one line an event."""

    def __init__(self, block_bytes: int) -> None:
        """An empty journal."""
        super().__init__(block_bytes)
        self.events: list[Event] = []
        self.stream = COMPUTE
        self._numbers: dict[int, tuple[int, int]] = {}

    def open(self, key: int, entry: Entry) -> None:
        """Enter a new storage under a number that no later one gets."""
        self._numbers[key] = (len(self.events), self.stream)
        self._write(key, entry.number_bytes)
        super().open(key, entry)

    def close(self, key: int) -> None:
        """Strike out a storage that died."""
        if key in self.entries:
            self._write(key, 0)
        super().close(key)

    def resize(self, key: int, number_bytes: int) -> None:
        """Note that a storage now has `number_bytes`."""
        self._write(key, number_bytes)
        super().resize(key, number_bytes)

    @contextmanager
    def on_streams(self) -> Iterator[None]:
        """Tell the streams apart that FSDP2 runs its collectives on (`_fsdp_collectives.py`)."""
        with ExitStack() as stack:
            for name, wrap in (("foreach_all_gather", self._all), ("foreach_reduce", self._second)):
                original = getattr(_fsdp_param_group, name)
                stack.enter_context(mock.patch.object(_fsdp_param_group, name, wrap(original)))
            yield

    def _all(self, original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.stream = GATHER
            try:
                return original(*args, **kwargs)
            finally:
                self.stream = COMPUTE

        return run

    def _second(self, original: Any) -> Any:
        """A reduction's input is made by the computing stream, all after it by the reducing one."""

        def run(params: Any, gradients: Any, group: Any, stream: Any, comm: Any, *rest: Any) -> Any:
            made = []

            def allocate(*args: Any, **kwargs: Any) -> Any:
                self.stream = REDUCE if made else COMPUTE
                made.append(True)
                return type(comm).allocate(comm, *args, **kwargs)

            try:
                with mock.patch.object(comm, "allocate", allocate):
                    return original(params, gradients, group, stream, comm, *rest)
            finally:
                self.stream = COMPUTE

        return run

    def _write(self, key: int, number_bytes: int) -> None:
        number, stream = self._numbers[key]
        self.events.append(Event(number, number_bytes, stream))


def traced_events(
    model: Any,
    *,
    batch: Callable[[], Any] | None = None,
    activation_checkpointing: object = "none",
    **settings: Any,
) -> tuple[TraceReport, list[Event]]:
    """Trace as `shardwise.lab.trace` does; the report and every event behind it.

    Storages appear as torch's Python sees them: what a kernel takes for itself is not among them.
    """
    checked = Settings(activation_checkpointing=checkpointing(activation_checkpointing), **settings)
    run = FakeRun(model, checked, batch)
    journal = Journal(checked.block_bytes)
    run.ledger = run.live.ledger = journal
    with journal.on_streams():
        return run.trace(), journal.events
