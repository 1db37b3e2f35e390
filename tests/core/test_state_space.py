"""Sizes of state-space mixers against transformers' own modules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.core.memory.activations import Kernel, Tokens, block_saved
from shardwise.core.memory.operators.state_space import mixer_backward, scan_counted
from shardwise.core.model import BlockShape, Model
from shardwise.core.state_space import StateSpace

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def test_mamba2_projects_and_convolves_what_transformers_mixer_does() -> None:
    """Rows of in_proj and channels of conv1d of a real Mamba2Mixer."""
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = transformers.Mamba2Config(
        hidden_size=256, num_heads=8, head_dim=64, state_size=32, n_groups=4, expand=2
    )
    with torch.device("meta"):
        mixer = Mamba2Mixer(config, 0)
    own = StateSpace("mamba2", inner=512, state=32, heads=8, groups=4)
    assert own.projected == mixer.in_proj.out_features
    assert own.convolved == mixer.conv1d.in_channels


def test_a_gated_delta_net_projects_what_transformers_layer_does() -> None:
    """Rows of its two input projections together, and channels of its convolution."""
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    config = transformers.Qwen3NextConfig(
        hidden_size=256,
        linear_num_value_heads=8,
        linear_num_key_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=64,
    )
    with torch.device("meta"):
        layer = Qwen3NextGatedDeltaNet(config, 0)
    own = StateSpace("gated-delta", inner=8 * 64, state=32, heads=8, groups=4)
    assert own.projected == layer.in_proj_qkvz.out_features + layer.in_proj_ba.out_features
    assert own.convolved == layer.conv1d.in_channels


def test_mamba_describes_its_mixer() -> None:
    """The catalogue's first kind: a state for each channel, no heads."""
    model = Model.from_config({"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 2})
    shape = model.blocks[0].block
    assert shape is not None and shape.mixer is not None
    assert (shape.mixer.inner, shape.mixer.state, shape.mixer.rank) == (1536, 16, 48)
    assert shape.mixer.projected == 2 * 1536 and shape.mixer.convolved == 1536


MIXER = StateSpace("mamba2", inner=2048, state=128, heads=32, groups=8, chunk=128)
ALONE = BlockShape(hidden=1024, attention=False, mixer=MIXER)


def fused(tensor: int = 1) -> Kernel:
    """Megatron-LM's modules in bf16."""
    return Kernel(2, tensor, False, "flash", "megatron")


def test_a_fused_mixer_saves_its_projections_and_three_tensors_of_its_width() -> None:
    """Per token: 2h norm, 2h input, 2 x 6176 projections, 3 x 2 x 2048 results, a rsqrt a group."""
    saved = dict(block_saved(ALONE, Tokens(4, 1024, 1024), fused()).operators)
    assert saved["norms"] == saved["mixer input"] == 4096 * 2 * 1024
    assert saved["mixer projections"] == 4096 * 2 * (2 * 2048 + 2 * 8 * 128 + 32)
    assert saved["mixer scan"] + saved["mixer output"] == 4096 * (3 * 2 * 2048 + 4 * 8)
    assert set(saved) == {"norms", "mixer input", "mixer projections", "mixer scan", "mixer output"}


def test_tensor_ranks_share_a_mixer_but_not_its_norm() -> None:
    """Heads and groups are cut over tensor ranks; input and norm are whole on each."""
    tokens = Tokens(1, 2048, 2048)
    whole, half = block_saved(ALONE, tokens, fused()), block_saved(ALONE, tokens, fused(2))
    shared = 2 * 2 * 2048 * 1024
    assert whole.total - shared == pytest.approx(2 * (half.total - shared))


def test_the_worst_moment_of_a_mixer_grows_with_its_states() -> None:
    """States and their gradients of each chunk, in fp32 and in 16 bits: 12 bytes an element."""
    twice = replace(ALONE, mixer=replace(MIXER, chunk=256))
    tokens = Tokens(1, 2048, 2048)
    more = mixer_backward(ALONE, tokens, fused()) - mixer_backward(twice, tokens, fused())
    assert more == 2048 * (12 * 2048 * 128 / 256 - 4 * 8 * 128)


def test_a_layer_alone_has_one_norm_and_one_dropout() -> None:
    """Megatron-LM's hybrids have a mixer, attention or an MLP in each layer, never two."""
    assert ALONE.branches == 1
    assert BlockShape(hidden=8, heads=1).branches == 1
    assert BlockShape(hidden=8, attention=False, intermediate=32).branches == 1
    assert BlockShape(hidden=8, heads=1, intermediate=32).branches == 2
    assert BlockShape(hidden=8, heads=1, experts=4, cross_attention=True).branches == 3


def test_only_counted_scans_may_fit() -> None:
    """Mamba-2 over fused kernels is counted; a scan that is not never gets a confident verdict."""
    assert scan_counted(ALONE, "megatron")
    assert not scan_counted(ALONE, "compiled")
    assert scan_counted(BlockShape(hidden=8, attention=False, intermediate=32), "transformers")
