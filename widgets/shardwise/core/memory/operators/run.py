"""What an operator is run on: the tokens of a rank and the code and element types used."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.hashed import hashed_once, once


@dataclass(frozen=True)
class Tokens:
    """What one rank's block sees: samples, tokens a sample on this rank, and tokens attended to.

    `crossed` are the encoder's tokens that cross attention reads (0: as many as its own).
    """

    samples: int
    length: float
    attended: int
    crossed: int = 0

    @once
    def count(self) -> float:
        """Tokens of one micro-batch on this rank."""
        return self.samples * self.length


@dataclass(frozen=True)
class Frozen:
    """How a block runs whose weights do not all have gradients.

    `trained` are the parts that do; `flows` is False where nothing before the block's end has any.
    Adapters: `rank`, and how many read each activation. `dropout` says that each drops its input,
    `cast` that adapters are fp32 under autocast; `dequantized_bytes` is the largest linear layer
    written out from 8 or 4 bits; `keeps_inputs`: int8 layers hold their inputs all the same.
    """

    trained: tuple[str, ...] = ()
    flows: bool = True
    rank: int = 0
    attention_input: int = 0
    attention_result: int = 0
    mlp_input: int = 0
    mlp_result: int = 0
    dropout: bool = False
    cast: bool = False
    dequantized_bytes: float = 0.0
    keeps_inputs: bool = False


@hashed_once
@dataclass(frozen=True)
class Kernel:
    """How the block is run: element bytes, tensor parallelism, attention kernel.

    `residual_bytes` is an element of the residual stream where that differs (0: it does not):
    under autocast the stream and the norms stay fp32 while matrix products run in 16 bits.
    `context_a2a`: context ranks trade sequence for heads around attention, by all-to-all;
    `gathers_inputs`: sequence parallelism saves a linear layer's input as it was gathered;
    `output_copied`: attention's output is laid out anew for more than one sample; `expert_tensor`:
    ranks that an expert's matrices are cut over (0: as `tensor`); `expert_ranks`: ranks that the
    experts are spread over; `expert_load`: rows of the fullest of them over the even share;
    `fp32_buffers`: modules stay fp32, only their parameters are cast (FSDP2's mixed precision);
    `recomputed`: modules that selective checkpointing recomputes.
    """

    element_bytes: int
    tensor: int
    sequence_parallel: bool
    attention: str
    model_code: str
    residual_bytes: int = 0
    frozen: Frozen | None = None
    context_a2a: bool = False
    output_copied: bool = False
    gathers_inputs: bool = False
    expert_tensor: int = 0
    expert_ranks: int = 1
    expert_load: float = 1.0
    fp32_buffers: bool = False
    recomputed: tuple[str, ...] = ("core_attn",)

    @once
    def autocasts(self) -> bool:
        """Whether autocast runs, over an fp32 stream or over a frozen base of 16 bits."""
        return self.residual_bytes > 0 or (self.frozen is not None and self.frozen.cast)

    @once
    def residual(self) -> int:
        """Bytes of one element of the residual stream."""
        return self.residual_bytes or self.element_bytes

    @once
    def eager_modules(self) -> bool:
        """Whether transformers' own modules run, as traced, and not fused ones."""
        return self.model_code == "transformers"

    @once
    def separate(self) -> bool:
        """Whether every operator saves its own inputs, over norms that are one kernel each."""
        return self.model_code in ("torchtitan", "nanotron")

    @once
    def followed(self) -> bool:
        """Whether the order of operators in backward is known, and not only what they save."""
        return self.model_code != "megatron"
