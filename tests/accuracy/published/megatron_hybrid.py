"""Hybrids as Megatron-LM builds them: one letter a layer, each with one mixer or one MLP alone.

megatron/core/models/hybrid/hybrid_layer_specs.py, megatron/core/ssm/mamba_mixer.py. M is Mamba-2,
* attention, - an MLP, E experts; | parts the pipeline's stages.
"""

from __future__ import annotations

from dataclasses import replace

from published.megatron_layout import LETTERS
from published.megatron_model import Sizes, attention, block, experts, gpt, mlp, norm
from shardwise.core.model import BlockShape, Model, Module, Tensor
from shardwise.core.state_space import StateSpace


def mamba(sizes: Sizes, mixer: StateSpace) -> tuple[Tensor, ...]:
    """Projections in and out, the convolution, a decay, a skip and a time step a head, a norm.

    Nothing there has a bias but the convolution.
    """
    inner, heads, wide = mixer.inner, mixer.heads, mixer.convolved
    return (
        Tensor("in_proj.weight", (mixer.projected, sizes.hidden), "other", "column"),
        Tensor("conv1d.weight", (wide, 1, mixer.kernel), "other", "column"),
        Tensor("conv1d.bias", (wide,), "other", "column"),
        *(Tensor(name, (heads,), "other", "column") for name in ("dt_bias", "A_log", "D")),
        Tensor("norm.weight", (inner,), "norm", "column"),
        Tensor("out_proj.weight", (sizes.hidden, inner), "other", "row"),
    )


def layer(sizes: Sizes, mixer: StateSpace, letter: str, index: int) -> Module:
    """One layer of the pattern: a norm, then what its letter says."""
    sparse = replace(sizes, sparse=(letter == "E",) * sizes.layers)
    whole = block(sparse, 0).block
    assert whole is not None
    no_mlp = {"intermediate": 0, "experts": 0, "experts_per_token": 0, "shared_intermediate": 0}
    first = norm(sizes, "norm")
    shape: BlockShape
    if letter == "M":
        shape = replace(whole, attention=False, mixer=mixer, rotary=False, **no_mlp)
        tensors = first + mamba(sizes, mixer)
    elif letter == "*":
        shape, tensors = replace(whole, **no_mlp), first + attention(sizes)
    else:
        shape = replace(whole, attention=False, rotary=False)
        tensors = first + (experts(sizes) if letter == "E" else mlp(sizes, sizes.ffn))
    return Module(f"decoder.layers.{index}", "block", tensors, shape)


def hybrid(sizes: Sizes, name: str, pattern: str, mixer: StateSpace) -> Model:
    """megatron/core/models/hybrid/hybrid_model.py: the pattern between embedding and head."""
    whole = gpt(replace(sizes, layers=1, sparse=()), name)
    letters = [letter for letter in pattern if letter in LETTERS]
    layers = (layer(sizes, mixer, letter, index) for index, letter in enumerate(letters))
    at = next(i for i, module in enumerate(whole.modules) if module.block is not None)
    return replace(whole, modules=(*whole.modules[:at], *layers, *whole.modules[at + 1 :]))
