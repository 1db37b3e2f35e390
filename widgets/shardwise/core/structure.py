"""What a model is made of: parameter tensors, the modules that hold them, the shape of a block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from shardwise.core.hashed import hashed_once
from shardwise.core.state_space import StateSpace


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter tensor, named and shaped as in transformers' `named_parameters()`.

    `part` is one of embedding, position, attention, mlp, experts, router, norm, head, other.
    `tensor_parallel` says how tensor parallelism cuts it: column (dimension 0 of a Linear's
    weight), row (dimension 1), vocabulary (dimension 0 of an embedding), expert, or replicated.
    `read` is False where forward never does, so that there is no gradient of it.
    """

    name: str
    shape: tuple[int, ...]
    part: str
    tensor_parallel: str
    read: bool = True

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@hashed_once
@dataclass(frozen=True)
class BlockShape:
    """What the activation formulas need of one block; 0 or False where it does not apply.

    `intermediate` is the dense MLP's width (0 when the block has none); `tokens` says which length
    the block sees: sequence, encoder or image; `sliding_window` is 0 for full attention. `mixer` is
    a state-space mixer where `attention` is False; a block may have a mixer alone. `prediction`
    marks a block that predicts tokens further on (`core/prediction.py`).

    What transformers' code adds: `qk_norm` norms queries and keys; `norm_in_fp32` multiplies by
    the weight before it casts back (Gemma, OLMo); `post_norms` counts norms whose result only
    joins the residual; `fused_qkv` is one projection whose slices keep it whole; `rotary_cat` glues
    rotated and plain parts of a head; `sdpa` is False where only eager attention exists; `soft_cap`
    caps scores (Gemma 2), `logit_cap` logits; `position_bias` adds a bias to the scores (T5);
    `masked` always hands attention a mask (Falcon); `parallel_norms` counts the norms of a parallel
    block; `router_in_fp32` scores experts in fp32 (DeepSeek), `scores_in_fp32` leaves the chosen
    scores and what they scale in fp32 (Mixtral too); `shared_gate` scales the shared expert's
    result (Qwen); `sinks` is gpt-oss: one sink a head, clamped experts;
    `softmax_in_fp32` is False where eager attention keeps 16 bits (GPT-2, BERT, T5);
    `embedding_dropout` is False where none follows the embedding (OPT); `fp32_stream`: the residual
    stream is fp32 whatever the weights are (Mamba); `recorded` names the layer in
    `data/layers/layers.json` whose record says what it saves (`memory/operators/recorded.py`), ""
    for none; `norm_first` is False where norms only follow attention and MLP (OLMo 2);
    `fused_gate` is one projection to gate and up;
    `rotary_each` interleaves the rotation's tables anew in every block (ERNIE, Helium);
    `upcast_loss`: an encoder whose loss is fp32 (ModernBERT); `mask_table`: positions of a causal
    mask that is a buffer of the model (GPT-BigCode); `holds_scores`: variables hold scores until
    attention returns (BLOOM, `memory/held_scores.py`); `jitter`: noise scales what the router and
    the experts read (Mixtral). A norm is rmsnorm, layernorm, or
    written-layernorm, which Cohere writes out in fp32.
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
    qk_norm: bool = False
    norm_in_fp32: bool = False
    post_norms: int = 0
    fused_qkv: bool = False
    rotary_cat: bool = False
    sdpa: bool = True
    soft_cap: bool = False
    position_bias: bool = False
    masked: bool = False
    parallel_norms: int = 1
    router_in_fp32: bool = False
    scores_in_fp32: bool = False
    shared_gate: bool = False
    sinks: bool = False
    softmax_in_fp32: bool = True
    embedding_dropout: bool = True
    norm_first: bool = True
    fused_gate: bool = False
    rotary_each: bool = False
    upcast_loss: bool = False
    mask_table: int = 0
    holds_scores: bool = False
    jitter: bool = False
    logit_cap: bool = False
    mixer: StateSpace | None = None
    fp32_stream: bool = False
    recorded: str = ""
    prediction: bool = False

    @property
    def branches(self) -> int:
        """Branches that join the residual stream: a norm and a dropout each, as a rule."""
        mixing = self.attention or self.mixer is not None
        return mixing + self.cross_attention + (self.intermediate > 0 or self.experts > 0)


@dataclass(frozen=True)
class Module:
    """One unit that FSDP would wrap: an embedding, a block, a norm, the head or something else.

    An `idle` one is there and does not run: a vision tower in steps without pictures.
    """

    name: str
    kind: str
    tensors: tuple[Tensor, ...]
    block: BlockShape | None = None
    idle: bool = False

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
