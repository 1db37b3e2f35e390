"""The layers that `record_layers.py` records: configs whose sizes multiply to unlike products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Recorded:
    """One kind of layer: a config, which layer of it, and the sizes by the letters of `recorded`.

    `chunk` are the tokens of a chunk of its scan (0: none), `kernel` its convolution's length;
    `half` says that its 16-bit record is the only one (grouped products of experts),
    `reads_buffers` that its products with fp32 buffers are recorded too.
    """

    config: Mapping[str, Any]
    layer: int
    sizes: Mapping[str, int]
    length: int = 191
    samples: int = 5
    chunk: int = 0
    kernel: int = 0
    attention: bool = False
    half: bool = False
    fp32_stream: bool = False
    reads_buffers: bool = False

    @property
    def chunks(self) -> int:
        """Chunks of one sample."""
        return -(-self.length // self.chunk) if self.chunk else 0

    @property
    def counts(self) -> dict[str, int]:
        """Every token count by its name, in the order in which they are tried."""
        b, s, c = self.samples, self.length, self.chunks
        named = {"tokens": b * s}
        if self.chunk:
            named |= {"padded": b * c * self.chunk, "pairs of states": b * (c + 1) ** 2}
            named |= {"chunked": b * c, "states": b * (c + 1), "state mask": (c + 1) ** 2}
        if self.kernel:
            named |= {"convolved": b * (s + self.kernel - 1)}
        if self.attention:
            named = {"pairs": b * s * s, "mask": s * s, **named}
            named |= {"rows": b * 32 * -(-s // 32)}
        return named | {"samples": b, "positions": s, "once": 1}


_BASE: dict[str, Any] = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SELECTIVE = _BASE | {
    "hidden_size": 143, "expand": 4, "state_size": 37, "time_step_rank": 19,
    "num_hidden_layers": 2, "conv_kernel": 4,
}  # fmt: skip
_SELECTIVE_SIZES = {"h": 143, "i": 572, "n": 37, "r": 19, "R": 93}
_MAMBA2 = _BASE | {
    "model_type": "mamba2", "hidden_size": 143, "expand": 4, "num_heads": 22, "head_dim": 26,
    "n_groups": 11, "state_size": 37, "chunk_size": 17, "num_hidden_layers": 2, "conv_kernel": 4,
}  # fmt: skip
_ATTENTION = {"num_attention_heads": 33, "num_key_value_heads": 11}
_HEADS = {"a": 33, "k": 11, "d": 24}


def _heads_of(inner: int, heads: int, groups: int, state: int, chunk: int) -> dict[str, int]:
    """The letters of a mixer with heads."""
    convolved = inner + 2 * groups * state
    return {
        "i": inner, "H": heads, "P": inner // heads, "G": groups, "n": state, "c": chunk,
        "B": groups * state, "C": convolved, "J": inner + convolved + heads,
    }  # fmt: skip


_JAMBA = _BASE | _ATTENTION | {
    "model_type": "jamba", "hidden_size": 792, "intermediate_size": 312, "num_hidden_layers": 5,
    "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 3,
    "expert_layer_offset": 1, "num_experts": 17, "num_experts_per_tok": 7, "mamba_d_state": 37,
    "mamba_dt_rank": 19, "mamba_expand": 5,
}  # fmt: skip
_DENSE_JAMBA = _JAMBA | {"num_experts": 1, "num_experts_per_tok": 1}
_JAMBA_MIXER = {"i": 3960, "n": 37, "r": 19, "R": 93}
_EXPERTS = {"E": 17, "e": 7, "m": 312}
_MIXERS = {
    "mamba_n_heads": 60, "mamba_d_head": 66, "mamba_n_groups": 20, "mamba_d_state": 37,
    "mamba_chunk_size": 17, "mamba_expand": 5,
}  # fmt: skip
_TURNS = {"num_hidden_layers": 2, "hidden_size": 792}
_WIDE = {"h": 792}
_SPACE = _heads_of(3960, 60, 20, 37, 17)
_BAMBA = _BASE | _ATTENTION | _MIXERS | _TURNS | {
    "model_type": "bamba", "intermediate_size": 311, "attn_layer_indices": [1],
}  # fmt: skip
_GRANITE = _BASE | _ATTENTION | _MIXERS | _TURNS | {
    "model_type": "granitemoehybrid", "layer_types": ["linear_attention", "full_attention"],
    "intermediate_size": 312, "num_local_experts": 17, "num_experts_per_tok": 7,
    "shared_intermediate_size": 239, "residual_multiplier": 0.22, "embedding_multiplier": 12,
}  # fmt: skip
_DENSE_GRANITE = _GRANITE | {"num_local_experts": 0}
_ROPE = {"position_embedding_type": "rope"}
_FALCON = _BASE | _ATTENTION | _MIXERS | _TURNS | {
    "model_type": "falcon_h1", "hidden_size": 787, "head_dim": 24, "intermediate_size": 311,
    "mamba_d_ssm": 3960,
}  # fmt: skip
_FALCON_SIZES = {"h": 787, "f": 311} | _HEADS | _SPACE
_NEMOTRON = _BASE | _ATTENTION | {
    "model_type": "nemotron_h", "hidden_size": 776, "intermediate_size": 311, "head_dim": 24,
    "mamba_num_heads": 60, "mamba_head_dim": 66, "n_groups": 20, "ssm_state_size": 37,
    "chunk_size": 17, "moe_intermediate_size": 312, "moe_shared_expert_intermediate_size": 239,
    "n_routed_experts": 17, "num_experts_per_tok": 7,
    "layers_block_type": ["mamba", "moe", "attention", "mlp"],
}  # fmt: skip
_DENSE_NEMOTRON = _NEMOTRON | {"layers_block_type": ["mamba", "attention", "mlp"]}
_LFM2 = _BASE | _ATTENTION | _TURNS | {
    "model_type": "lfm2", "intermediate_size": 311, "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention"], "conv_L_cache": 3,
}  # fmt: skip
_DELTA = _BASE | _ATTENTION | {
    "model_type": "qwen3_next", "hidden_size": 776, "head_dim": 24, "intermediate_size": 311,
    "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2,
    "mlp_only_layers": [0, 1], "linear_num_key_heads": 13, "linear_key_head_dim": 37,
    "linear_num_value_heads": 26, "linear_value_head_dim": 41, "num_experts": 17,
    "num_experts_per_tok": 7, "moe_intermediate_size": 312,
    "shared_expert_intermediate_size": 239,
}  # fmt: skip
_DELTA_SPACE = _heads_of(1066, 26, 13, 37, 64) | {"Q": 1066 + 1066 + 2 * 13 * 37}
_DELTA_SPACE.pop("J")
_CHUNKED: dict[str, Any] = {"chunk": 17, "kernel": 4}
_DELTAS: dict[str, Any] = {"chunk": 64, "kernel": 4, "length": 809}


def _feed(experts: bool, *, shared: bool = False) -> dict[str, int]:
    if experts:
        return _EXPERTS | ({"u": 239} if shared else {})
    return {"f": 311}


def _layers() -> dict[str, Recorded]:
    selective: dict[str, Any] = {"kernel": 4, "fp32_stream": True}
    mamba, falcon = ({"model_type": kind} | _SELECTIVE for kind in ("mamba", "falcon_mamba"))
    wide = {"h": 792}
    jamba = wide | _HEADS
    return {
        "mamba": Recorded(mamba, 1, _SELECTIVE_SIZES, **selective),
        "falcon mamba": Recorded(falcon, 1, _SELECTIVE_SIZES, **selective),
        "mamba2": Recorded(
            _MAMBA2, 1, {"h": 143} | _heads_of(572, 22, 11, 37, 17), fp32_stream=True, **_CHUNKED
        ),
        "jamba mamba MLP": Recorded(_DENSE_JAMBA, 2, wide | _JAMBA_MIXER | {"f": 312}, kernel=4),
        "jamba mamba experts": Recorded(
            _JAMBA, 4, wide | _JAMBA_MIXER | _EXPERTS, kernel=4, half=True
        ),
        "jamba attention MLP": Recorded(_DENSE_JAMBA, 3, jamba | {"f": 312}, attention=True),
        "jamba attention experts": Recorded(_JAMBA, 1, jamba | _EXPERTS, attention=True, half=True),
        "bamba mixer": Recorded(_BAMBA, 0, wide | _SPACE | {"f": 311}, **_CHUNKED),
        "bamba attention": Recorded(_BAMBA, 1, wide | _HEADS | {"f": 311}, attention=True),
        "granite mixer MLP": Recorded(_DENSE_GRANITE, 0, wide | _SPACE | {"f": 239}, **_CHUNKED),
        "granite mixer experts": Recorded(
            _GRANITE, 0, wide | _SPACE | _feed(True, shared=True), half=True, **_CHUNKED
        ),
        **_granite_attention(),
        **{
            f"falcon h1{name}": Recorded(
                _FALCON | changes,
                0,
                _FALCON_SIZES,
                attention=True,
                reads_buffers=True,
                **_CHUNKED,
            )
            for name, changes in (
                ("", {}),
                (" norm first", {"mamba_rms_norm": True}),
                (" gate first", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
            )
        },
        **_nemotron(),
        "lfm2 convolution": Recorded(_LFM2, 0, wide | {"f": 311}, kernel=3),
        "lfm2 attention": Recorded(_LFM2, 1, wide | _HEADS | {"f": 311}, attention=True),
        **_qwen3_next(),
    }


def _granite_attention() -> dict[str, Recorded]:
    found = {}
    for experts in (False, True):
        config, feed = (_GRANITE, "experts") if experts else (_DENSE_GRANITE, "MLP")
        sizes = {"h": 792} | _HEADS | (_feed(True, shared=True) if experts else {"f": 239})
        for name, changes in (("", {}), (" rotary", _ROPE)):
            found[f"granite attention {feed}{name}"] = Recorded(
                config | changes, 1, sizes, attention=True, half=experts
            )
    return found


def _nemotron() -> dict[str, Recorded]:
    narrow = {"h": 776}
    return {
        "nemotron mixer": Recorded(_DENSE_NEMOTRON, 0, narrow | _SPACE, **_CHUNKED),
        "nemotron experts": Recorded(_NEMOTRON, 1, narrow | _feed(True, shared=True), half=True),
        "nemotron attention": Recorded(_DENSE_NEMOTRON, 1, narrow | _HEADS, attention=True),
        "nemotron MLP": Recorded(_DENSE_NEMOTRON, 2, narrow | {"f": 311}),
    }


def _qwen3_next() -> dict[str, Recorded]:
    found = {}
    for layer, experts in ((0, False), (2, True)):
        feed = "experts" if experts else "MLP"
        sizes = {"h": 776} | _feed(experts, shared=True)
        config = _DELTA | ({} if experts else {"mlp_only_layers": [0, 1, 2, 3]})
        found[f"qwen3 next delta {feed}"] = Recorded(
            config, layer, sizes | _DELTA_SPACE, half=experts, **_DELTAS
        )
        found[f"qwen3 next attention {feed}"] = Recorded(
            config, layer + 1, sizes | _HEADS, half=experts, attention=True
        )
    return found


RECORDED = _layers()
