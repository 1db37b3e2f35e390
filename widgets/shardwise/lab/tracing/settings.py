"""What one trace runs: the settings, checked."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.errors import ScenarioError

_CHOICES = {
    "engine": ("none", "ddp", "fsdp2"),
    "precision": ("fsdp-mixed", "bf16", "fp32", "autocast"),
    "optimizer": ("adamw", "sgd", "sgd-momentum", "muon", "adafactor", "none"),
    "optimizer_implementation": ("foreach", "fused", "for-loop"),
    "attention": ("flash", "efficient", "math", "eager"),
    "task": ("auto", "causal-lm", "masked-lm", "seq2seq-lm", "image-classification"),
}


@dataclass(frozen=True)
class Settings:
    """One run. Bytes depend on nothing else (but the versions of torch and transformers).

    `world` is `replicate` x shards x `tensor_parallel` (`replicate` over 1: hybrid sharding).
    `vocabulary_parallel` and `sequence_parallel` take torchtitan's tensor-parallel plan instead of
    the one that transformers publishes (`tracing/tensor_parallel.py`).

    `hold_output` keeps the model's output (the logits) alive through backward, as a loop does that
    writes `out = model(...); out.loss.backward()`; `loss = model(...).loss` drops it.

    `images` are the pictures that a sample has for the vision tower of a two-tower model.
    """

    engine: str = "fsdp2"
    world: int = 8
    rank: int = 0
    reshard_after_forward: bool = True
    replicate: int = 1
    tensor_parallel: int = 1
    vocabulary_parallel: bool = False
    sequence_parallel: bool = False
    precision: str = "fsdp-mixed"
    optimizer: str = "adamw"
    optimizer_implementation: str = "foreach"
    sequence_length: int = 2048
    micro_batch: int = 1
    activation_checkpointing: str | tuple[str, int] = "none"
    attention: str = "flash"
    micro_batches: int = 1
    steps: int = 2
    task: str = "auto"
    hold_output: bool = False
    gradient_as_bucket_view: bool = False
    block_bytes: int = 512
    images: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot run, with the reason."""
        for field, allowed in _CHOICES.items():
            if getattr(self, field) not in allowed:
                raise ScenarioError(field, getattr(self, field), ", ".join(allowed))
        for field in (
            "world",
            "replicate",
            "tensor_parallel",
            "sequence_length",
            "micro_batch",
            "micro_batches",
            "steps",
        ):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ScenarioError(field, value, "a whole number of at least 1")
        if not isinstance(self.images, int) or isinstance(self.images, bool) or self.images < 0:
            raise ScenarioError("images", self.images, "a whole number of at least 0")
        if self.world % self.tensor_parallel:
            raise ScenarioError("tensor_parallel", self.tensor_parallel, "a divisor of world")
        if self.data_parallel % self.replicate:
            raise ScenarioError("replicate", self.replicate, "a divisor of world / tensor_parallel")
        if self.replicate > 1 and self.engine != "fsdp2":
            raise ScenarioError("replicate", self.replicate, "1 unless engine is fsdp2")
        if self.vocabulary_parallel and self.tensor_parallel == 1:
            raise ScenarioError("vocabulary_parallel", True, "False when tensor_parallel is 1")
        if self.sequence_parallel and not self.vocabulary_parallel:
            raise ScenarioError(
                "sequence_parallel", True, "False unless vocabulary_parallel is True",
                "the published plan with sequence parallelism splits the vocabulary too",
            )  # fmt: skip
        if not 0 <= self.rank < self.world:
            raise ScenarioError("rank", self.rank, f"0 to {self.world - 1}")
        if self.precision == "fsdp-mixed" and self.engine != "fsdp2":
            raise ScenarioError(
                "precision", self.precision, "bf16, fp32, autocast without fsdp2",
                "fsdp-mixed is FSDP2's MixedPrecisionPolicy",
            )  # fmt: skip
        if self.engine == "none" and self.world != self.tensor_parallel:
            raise ScenarioError("world", self.world, "tensor_parallel when engine is none")
        if self.engine == "ddp" and self.tensor_parallel > 1:
            raise ScenarioError("tensor_parallel", self.tensor_parallel, "1 with ddp")

    @property
    def data_parallel(self) -> int:
        """Ranks that hold different data."""
        return self.world // self.tensor_parallel


def checkpointing(value: object) -> str | tuple[str, int]:
    """`none | full | selective | {"every": k}` as a hashable value.

    >>> checkpointing({"every": 2})
    ('every', 2)
    """
    if isinstance(value, str) and value in ("none", "full", "selective"):
        return value
    if isinstance(value, dict) and set(value) == {"every"}:
        every = value["every"]
        if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
            return ("every", every)
    raise ScenarioError(
        "activation_checkpointing", value, 'none, full, selective, {"every": k} with k at least 1'
    )
