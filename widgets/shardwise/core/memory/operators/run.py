"""What an operator is run on: the tokens of a rank and the code and element types used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tokens:
    """What one rank's block sees: samples, tokens a sample on this rank, and tokens attended to."""

    samples: int
    length: float
    attended: int

    @property
    def count(self) -> float:
        """Tokens of one micro-batch on this rank."""
        return self.samples * self.length


@dataclass(frozen=True)
class Kernel:
    """How the block is run: element bytes, tensor parallelism, attention kernel.

    `residual_bytes` is an element of the residual stream where that differs (0: it does not):
    under autocast the stream and the norms stay fp32 while matrix products run in 16 bits.
    """

    element_bytes: int
    tensor: int
    sequence_parallel: bool
    attention: str
    model_code: str
    residual_bytes: int = 0

    @property
    def residual(self) -> int:
        """Bytes of one element of the residual stream."""
        return self.residual_bytes or self.element_bytes

    @property
    def eager_modules(self) -> bool:
        """Whether transformers' own modules run, as traced, and not fused ones."""
        return self.model_code == "transformers"
