"""What a model is made of: parameter tensors, the modules that hold them, the shape of a block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter tensor, named and shaped as in transformers' `named_parameters()`.

    `part` is one of embedding, position, attention, mlp, experts, router, norm, head, other.
    `tensor_parallel` says how tensor parallelism cuts it: column (dimension 0 of a Linear's
    weight), row (dimension 1), vocabulary (dimension 0 of an embedding), expert, or replicated.
    """

    name: str
    shape: tuple[int, ...]
    part: str
    tensor_parallel: str

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class BlockShape:
    """What the activation formulas need of one block; 0 or False where it does not apply.

    `intermediate` is the dense MLP's width (0 when the block has none); `tokens` says which length
    the block sees: sequence, encoder or image; `sliding_window` is 0 for full attention.
    """

    hidden: int
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    value_head_dim: int = 0
    intermediate: int = 0
    gated: bool = False
    activation: str = ""
    norm: str = "rmsnorm"
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False
    attention: bool = True
    cross_attention: bool = False
    causal: bool = True
    rotary: bool = False
    parallel: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    tokens: str = "sequence"
    sliding_window: int = 0


@dataclass(frozen=True)
class Module:
    """One unit that FSDP would wrap: an embedding, a block, a norm, the head or something else."""

    name: str
    kind: str
    tensors: tuple[Tensor, ...]
    block: BlockShape | None = None

    @cached_property
    def parameters(self) -> int:
        """Elements of all its tensors."""
        return sum(tensor.elements for tensor in self.tensors)

    @cached_property
    def active_parameters(self) -> int:
        """Elements that one token meets: of the routed experts only the chosen ones."""
        if self.block is None or not self.block.experts:
            return self.parameters
        routed = sum(tensor.elements for tensor in self.tensors if tensor.part == "experts")
        idle = self.block.experts - self.block.experts_per_token
        return self.parameters - routed // self.block.experts * idle
