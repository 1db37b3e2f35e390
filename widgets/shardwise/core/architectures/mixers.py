"""Templates of state-space and linear-attention mixers, under transformers' names."""

from __future__ import annotations

from shardwise.core.architectures.templates import ALWAYS, COLUMN, ROW, Rows, linear, rows, tensor
from shardwise.core.config_fields import ConfigFields
from shardwise.core.errors import ScenarioError
from shardwise.core.state_space import StateSpace

OTHER = "other"


def convolution(where: str, channels: str = "convolved") -> Rows:
    """A depthwise convolution over the last tokens, with a bias by `conv_bias`."""
    return rows(
        tensor(f"{where}conv1d.weight", channels, 1, "kernel", part=OTHER, cut=COLUMN),
        tensor(f"{where}conv1d.bias", channels, part=OTHER, cut=COLUMN, when="conv_bias"),
    )


def mamba_mixer(where: str = "mixer.") -> Rows:
    """Mamba's selective scan; biases of the projections by `proj_bias`."""
    return rows(
        tensor(f"{where}A_log", "inner", "state", part=OTHER, cut=COLUMN),
        tensor(f"{where}D", "inner", part=OTHER, cut=COLUMN),
        convolution(where, "inner"),
        linear(f"{where}in_proj", "twice_inner", "hidden", OTHER, COLUMN, bias="proj_bias"),
        linear(f"{where}x_proj", "rank_and_states", "inner", OTHER, ROW),
        linear(f"{where}dt_proj", "inner", "rank", OTHER, COLUMN, bias=ALWAYS),
        linear(f"{where}out_proj", "hidden", "inner", OTHER, ROW, bias="proj_bias"),
    )


def mamba2_mixer(where: str = "mamba.", out_bias: str = "proj_bias") -> Rows:
    """Mamba 2's heads with one decay each; the gated norm is there by `gated_norm`."""
    return rows(
        tensor(f"{where}dt_bias", "mixer_heads", part=OTHER, cut=COLUMN),
        tensor(f"{where}A_log", "mixer_heads", part=OTHER, cut=COLUMN),
        tensor(f"{where}D", "mixer_heads", part=OTHER, cut=COLUMN),
        convolution(where),
        linear(f"{where}in_proj", "projected", "hidden", OTHER, COLUMN, bias="proj_bias"),
        tensor(f"{where}norm.weight", "inner", part="norm", when="gated_norm"),
        linear(f"{where}out_proj", "hidden", "inner", OTHER, ROW, bias=out_bias),
    )


def mamba_space(
    inner: int, state: int, kernel: int, rank: int
) -> tuple[StateSpace, dict[str, int]]:
    """Mamba's sizes and the symbols of its template."""
    space = StateSpace("mamba", inner, state, kernel, rank=rank)
    return space, {
        "inner": inner,
        "twice_inner": 2 * inner,
        "state": state,
        "rank": rank,
        "rank_and_states": rank + 2 * state,
        "kernel": kernel,
    }


def time_step_rank(fields: ConfigFields, name: str, hidden: int) -> int:
    """The width before the time steps: `auto` is a sixteenth of the hidden size, rounded up."""
    if fields.config.get(name, "auto") in ("auto", None):
        return -(-hidden // 16)
    return fields.whole(name)


def mamba2_space(
    fields: ConfigFields,
    inner: int,
    heads: int,
    names: tuple[str, str, str, str, str],
) -> tuple[StateSpace, dict[str, int]]:
    """Mamba 2's sizes and the symbols of its template.

    `names` are the fields of groups, state, kernel, chunk and the width of a head ("": none).
    """
    groups, state, kernel, chunk, width = names
    if inner % heads:
        allowed = f"a divisor of the mixer's inner width, which is {inner}"
        raise ScenarioError(fields.spelled("mamba_n_heads"), heads, allowed)
    if width and fields.config.get(width, "auto") not in ("auto", None):
        given = fields.whole(width)
        if given * heads != inner:
            allowed = f"{inner // heads}: the mixer's inner width {inner} over its {heads} heads"
            raise ScenarioError(fields.spelled(width), given, allowed)
    space = StateSpace(
        "mamba2",
        inner,
        fields.whole(state),
        fields.whole(kernel),
        heads=heads,
        groups=fields.whole(groups),
        chunk=fields.whole(chunk),
    )
    if heads % space.groups:
        allowed = f"a divisor of the mixer's heads, which are {heads}"
        raise ScenarioError(fields.spelled(groups), space.groups, allowed)
    return space, space_sizes(space)


def space_sizes(space: StateSpace) -> dict[str, int]:
    """The symbols that templates of mixers with heads use."""
    return {
        "inner": space.inner,
        "mixer_heads": space.heads,
        "convolved": space.convolved,
        "projected": space.projected,
        "kernel": space.kernel,
        "mixer_head_dim": space.head_dim,
    }
