"""State-space mixers: the sizes of what stands where other blocks have attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StateSpace:
    """One mixer's sizes, whoever's code runs it.

    `kind`: mamba (arXiv 2312.00752: a state for each channel, selected through a low rank), mamba2
    (arXiv 2405.21060: heads with one decay each) or gated-delta (arXiv 2412.06464). `inner` is the
    width of its values and of their gate, `state` the size of a head's state along its keys (of a
    channel's in mamba), `kernel` the convolution's length, `heads` the value heads (0 in mamba),
    `groups` those that share keys and queries (B and C), `rank` the width before the time steps
    (mamba alone), `chunk` the tokens that one step of a chunked scan takes (0: none).

    >>> two = StateSpace("mamba2", inner=2048, state=128, heads=32, groups=8, chunk=128)
    >>> two.projected, two.convolved, two.head_dim
    (6176, 4096, 64)
    """

    kind: str
    inner: int
    state: int
    kernel: int = 4
    heads: int = 0
    groups: int = 1
    rank: int = 0
    chunk: int = 0

    @property
    def head_dim(self) -> int:
        """Width of one value head."""
        return self.inner // self.heads if self.heads else 1

    @property
    def convolved(self) -> int:
        """Channels that the convolution runs over: values, and with heads keys and queries too."""
        return self.inner + (2 * self.groups * self.state if self.heads else 0)

    @property
    def projected(self) -> int:
        """Rows of the projections into the mixer: gate, what is convolved, time steps or decays."""
        steps = 2 if self.kind == "gated-delta" else 1
        return self.inner + self.convolved + steps * self.heads
