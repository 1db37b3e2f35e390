"""A tape of requests and releases, written tensor by tensor in the order of a step."""

from __future__ import annotations


class Tape:
    """Events for `allocator.held_for`: (tensor, bytes, stream), 0 bytes where it goes.

    >>> tape = Tape()
    >>> tape.drop(tape.take(512))
    >>> tape.events
    [(1, 512, 0), (1, 0, 0)]
    """

    def __init__(self) -> None:
        """An empty tape."""
        self.events: list[tuple[int, int, int]] = []
        self._last = 0

    def take(self, size: float) -> int:
        """A new tensor of `size` bytes; its number."""
        self._last += 1
        self.events.append((self._last, int(size), 0))
        return self._last

    def drop(self, *tensors: int) -> None:
        """These tensors go, in this order (0: none)."""
        self.events.extend((tensor, 0, 0) for tensor in tensors if tensor)
