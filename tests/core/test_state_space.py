"""Sizes of state-space mixers against transformers' own modules."""

from __future__ import annotations

import pytest

from shardwise.core.model import Model
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
