"""Who counts 12, 16, 18 or 20 bytes a parameter, and which settings of a scenario count so."""

from __future__ import annotations

from dataclasses import dataclass

_16_BIT = ("weights, 16 bits", 2.0, False)
_MOMENTS = (("momentum, fp32", 4.0, True), ("variance, fp32", 4.0, True))
_MASTER = ("master weights, fp32", 4.0, True)


@dataclass(frozen=True)
class Policy:
    """One engine's or paper's bytes a parameter with Adam.

    `parts` are (what, bytes, whether the optimizer's sharding divides it over data parallelism).
    `dtypes` is what `training.precision` takes for it: a policy's name, or pairs for a dict; empty
    where no run keeps exactly these. `engine` and `zero_stage` shard what `parts` says is sharded.
    """

    key: str
    name: str
    parts: tuple[tuple[str, float, bool], ...]
    dtypes: str | tuple[tuple[str, str], ...]
    engine: str
    zero_stage: int
    source: str
    note: str = ""

    def bytes_per_parameter(self, data_parallel: int = 1) -> float:
        """Bytes a parameter on one rank: what is sharded is divided by the data-parallel degree.

        >>> named = {policy.key: policy for policy in policies()}
        >>> named["megatron"].bytes_per_parameter(), named["megatron"].bytes_per_parameter(8)
        (18.0, 7.5)
        """
        return sum(size / (data_parallel if shared else 1) for _, size, shared in self.parts)

    @property
    def precision(self) -> str | dict[str, str]:
        """The value for `training.precision`; "" where there is none."""
        return self.dtypes if isinstance(self.dtypes, str) else dict(self.dtypes)

    def training(self) -> dict[str, object]:
        """The `training` section that counts so, empty where no run does."""
        return {"precision": self.precision, "optimizer": "adamw"} if self.dtypes else {}

    def layout(self) -> dict[str, object]:
        """The `layout` section whose sharding counts so, empty where no run does."""
        return {"engine": self.engine, "zero_stage": self.zero_stage} if self.dtypes else {}


def _whole(*parts: tuple[str, float, bool]) -> tuple[tuple[str, float, bool], ...]:
    """The same parts, all of them sharded, as FSDP does."""
    return tuple((what, size, True) for what, size, _ in parts)


_POLICIES = (
    Policy(
        "zero-paper", "ZeRO paper",
        (_16_BIT, ("gradients, 16 bits", 2.0, False), _MASTER, *_MOMENTS),
        "mixed-16", "deepspeed", 1,
        "Rajbhandari et al. 2020, section 3.1: 2 + 2 + (4 + 4 + 4); stage 1 shards the 12",
    ),
    Policy(
        "megatron", "Megatron-LM",
        (_16_BIT, ("gradients, fp32", 4.0, False), _MASTER, *_MOMENTS),
        "mixed-fp32-grads", "megatron", 1,
        "megatron/training/theoretical_memory_usage.py: 18, or 6 + 12/d with the distributed "
        "optimizer",
    ),
    Policy(
        "mt-nlg", "Megatron-Turing NLG",
        (
            _16_BIT, ("gradients, 16 bits", 2.0, False), ("gradients, fp32", 4.0, False),
            _MASTER, *_MOMENTS,
        ),
        "mixed-20", "deepspeed", 1,
        "Smith et al. 2022, section 2: 20 bytes, 16-bit and fp32 gradients both kept",
    ),
    Policy(
        "maxtext-fp32", "MaxText, fp32",
        _whole(("weights, fp32", 4.0, True), *_MOMENTS),
        (
            ("parameters", "fp32"), ("gradients", "none"), ("master_weights", "none"),
            ("optimizer_state", "fp32"), ("compute", "bf16"), ("reduce", "fp32"),
        ),
        "fsdp2", 3,
        "AI-Hypercomputer/maxtext#606: fp32 weights and two moments",
        "Gradients live inside the compiled step only; XLA frees them as they are used.",
    ),
    Policy(
        "fsdp", "FSDP mixed precision, torchtitan",
        _whole(("weights, fp32 shards", 4.0, True), ("gradients, fp32", 4.0, True), *_MOMENTS),
        "fsdp-mixed", "fsdp2", 3,
        "torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32)",
        "Gathered layers come in 16 bits on top.",
    ),
    Policy(
        "autocast", "torch.autocast, fp32 weights",
        (
            ("weights, fp32", 4.0, False), ("gradients, fp32", 4.0, False),
            *((what, size, False) for what, size, _ in _MOMENTS),
        ),
        "autocast", "ddp", 0,
        "torch.amp: 16-bit copies of the weights live through forward and backward only",
        "The 16-bit copies (2 bytes) are counted as gathered layers while they live.",
    ),
    Policy(
        "fp8-lm-baseline", "FP8-LM, the 16-bit baseline",
        (_MASTER, ("gradients, fp32", 4.0, False), *_MOMENTS),
        "", "", 0,
        "Peng et al. 2023, FP8-LM, section 2.2: 4 + 4 + (4 + 4)",
        "Without the 16-bit weights and gradients that the step also holds.",
    ),
    Policy(
        "bf16", "pure bf16",
        (
            ("weights, bf16", 2.0, False), ("gradients, bf16", 2.0, False),
            ("momentum, bf16", 2.0, False), ("variance, bf16", 2.0, False),
        ),
        "bf16", "ddp", 0,
        "a module cast with .to(torch.bfloat16) before torch.optim.AdamW is made",
    ),
)  # fmt: skip


def policies() -> tuple[Policy, ...]:
    """The named policies: each one's parts in bytes a parameter, and where they are from.

    Users ask whether it is 12, 16, 18 or 20 bytes (NVIDIA/Megatron-LM#654): each figure is right
    for somebody's engine. `training()` and `layout()` give the scenario sections that count so.

    >>> {policy.key: policy.bytes_per_parameter() for policy in policies()}["mt-nlg"]
    20.0
    """
    return _POLICIES
