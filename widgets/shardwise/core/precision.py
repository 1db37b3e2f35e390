"""What each tensor of a training run is stored in: named policies, in bytes a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.core.errors import ScenarioError, unknown_key
from shardwise.core.hashed import hashed_once

DTYPE_BYTES: Mapping[str, int] = {
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "16-bit": 2,
    "16-bit+fp32": 6,
    "fp8": 1,
    "none": 0,
}
"""Bytes an element. `16-bit` is bf16 where the card has it, else fp16; `none`: not kept."""

STATE_BYTES: Mapping[str, float] = {**DTYPE_BYTES, "fp8+fp16": 1.5}
"""Bytes of one element of optimizer state; `fp8+fp16`: first moments in fp8, second in fp16."""


@hashed_once
@dataclass(frozen=True)
class Precision:
    """Storage types of one training run; each field is a key of `DTYPE_BYTES`.

    `parameters` are the weights that the optimizer's engine keeps, `compute` the type of the
    matrix products (and of gathered layers), `master_weights` a second fp32 copy, `reduce` the
    type in which gradients are summed over ranks.
    """

    key: str
    name: str
    parameters: str
    gradients: str
    master_weights: str
    optimizer_state: str
    compute: str
    reduce: str
    source: str

    @property
    def compute_bytes(self) -> int:
        """Bytes of one activation element."""
        return DTYPE_BYTES[self.compute]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one stored weight."""
        return DTYPE_BYTES[self.parameters]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one stored gradient element."""
        return DTYPE_BYTES[self.gradients]

    @property
    def master_bytes(self) -> int:
        """Bytes of the master copy of one weight; 0 without one."""
        return DTYPE_BYTES[self.master_weights]

    @property
    def state_bytes(self) -> float:
        """Bytes of one element of optimizer state; the mean of both moments where they differ."""
        return STATE_BYTES[self.optimizer_state]

    @property
    def reduce_bytes(self) -> int:
        """Bytes of one gradient element while it is reduced."""
        return DTYPE_BYTES[self.reduce]


_SIXTEEN = "16-bit"
POLICIES: Mapping[str, Precision] = {
    p.key: p
    for p in (
        Precision(
            "mixed-16", "mixed precision, 16 bytes (ZeRO paper)",
            _SIXTEEN, _SIXTEEN, "fp32", "fp32", _SIXTEEN, _SIXTEEN,
            "Rajbhandari et al. 2020, ZeRO, section 3.1: 2+2+4+4+4",
        ),
        Precision(
            "mixed-fp32-grads", "mixed precision, fp32 gradients, 18 bytes (Megatron)",
            _SIXTEEN, "fp32", "fp32", "fp32", _SIXTEEN, "fp32",
            "Megatron-LM theoretical_memory_usage.py: 18, or 6 + 12/d with distributed optimizer",
        ),
        Precision(
            "mixed-20", "mixed precision, 16-bit and fp32 gradients, 20 bytes (MT-NLG)",
            _SIXTEEN, "16-bit+fp32", "fp32", "fp32", _SIXTEEN, _SIXTEEN,
            "Smith et al. 2022, Megatron-Turing NLG 530B, section 2: 2+2+4+4+4+4",
        ),
        Precision(
            "fsdp-mixed", "FSDP mixed precision: fp32 shards, 16-bit compute, fp32 reduce",
            "fp32", "fp32", "none", "fp32", _SIXTEEN, "fp32",
            "torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32)",
        ),
        Precision(
            "autocast", "autocast: fp32 weights, 16-bit compute",
            "fp32", "fp32", "none", "fp32", _SIXTEEN, "fp32",
            "torch.autocast over an fp32 module",
        ),
        Precision(
            "bf16", "pure bf16, 8 bytes with Adam",
            "bf16", "bf16", "none", "bf16", "bf16", "bf16",
            "a module cast with .to(torch.bfloat16) before the optimizer is made",
        ),
        Precision(
            "deepseek-v3", "fp8 products, bf16 moments, fp32 gradients, 14 bytes (DeepSeek-V3)",
            _SIXTEEN, "fp32", "fp32", "bf16", _SIXTEEN, "fp32",
            "DeepSeek-AI 2024, DeepSeek-V3 Technical Report, section 3.3.2: master weights and "
            "gradients in fp32, AdamW's moments in bf16",
        ),
        Precision(
            "fp8-lm", "fp8 weights, gradients and first moments, fp16 masters, 7 bytes (MS-AMP)",
            "fp8", "fp8", "fp16", "fp8+fp16", _SIXTEEN, "fp8",
            "Peng et al. 2023, FP8-LM, section 2.2: 6 bytes = 2 master + 1 gradient + 1 + 2 "
            "moments, and the fp8 weights",
        ),
        Precision(
            "fp32", "full fp32, 16 bytes with Adam",
            "fp32", "fp32", "none", "fp32", "fp32", "fp32",
            "torch's default dtype",
        ),
    )
}  # fmt: skip

_DTYPE_FIELDS = (
    "parameters",
    "gradients",
    "master_weights",
    "optimizer_state",
    "compute",
    "reduce",
)


def precision_from(value: object) -> Precision:
    """A policy from its name or from a dict of dtypes.

    The dict may hold parameters, gradients, master_weights, optimizer_state, compute and reduce;
    what is missing is taken from `mixed-16`.

    Raises:
        ScenarioError: an unknown name, an unknown field, or a dtype that isn't in `DTYPE_BYTES`.

    >>> precision_from("mixed-fp32-grads").gradient_bytes
    4
    """
    if isinstance(value, Precision):
        return value
    if isinstance(value, str):
        if value not in POLICIES:
            raise unknown_key("training.precision", value, POLICIES)
        return POLICIES[value]
    if not isinstance(value, Mapping):
        raise ScenarioError("training.precision", value, "a policy's name or a dict of dtypes")
    base = POLICIES["mixed-16"]
    chosen = {name: getattr(base, name) for name in _DTYPE_FIELDS}
    for name, dtype in value.items():
        if name not in _DTYPE_FIELDS:
            raise unknown_key("training.precision", name, _DTYPE_FIELDS)
        allowed = STATE_BYTES if name == "optimizer_state" else DTYPE_BYTES
        if not isinstance(dtype, str) or dtype not in allowed:
            raise unknown_key(f"training.precision.{name}", dtype, allowed)
        chosen[name] = dtype
    for name in ("parameters", "compute", "reduce"):
        if chosen[name] == "none":
            raise ScenarioError(f"training.precision.{name}", "none", "a dtype: fp32, bf16, fp16")
    return Precision("custom", "dtypes as given", **chosen, source="dtypes as given")


def precision_to(precision: Precision) -> object:
    """The inverse of `precision_from`: the name, or the dict of a custom policy."""
    if precision.key in POLICIES:
        return precision.key
    return {name: getattr(precision, name) for name in _DTYPE_FIELDS}
