"""How the model is trained: sequence, batch, precision, optimizer and the code that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.core.errors import ScenarioError
from shardwise.core.fields import choice, flag, number, section, whole
from shardwise.core.optimizers import OPTIMIZERS
from shardwise.core.precision import POLICIES, Precision, precision_from, precision_to
from shardwise.core.trainable import ALL, Trainable

IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
ATTENTIONS = ("flash", "efficient", "math", "eager")
LOSSES = ("full", "chunked", "fused", "compiled")
RECOMPUTE_MODULES = (
    "core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts",
)  # fmt: skip
CHECKPOINTINGS = ("none", "selective", "per-op", "full")
MODEL_CODES = ("transformers", "torchtitan", "megatron", "nanotron", "compiled")


@dataclass(frozen=True)
class Training:
    """One training set-up.

    `sequence_length` is tokens a sample; `micro_batch` samples a rank and forward pass;
    `global_batch` samples an optimizer step over all ranks (None: one micro-batch a replica, or
    four a stage with a pipeline). `checkpoint_every` is 0 unless checkpointing is `{"every": k}`.
    `expert_imbalance`: routed tokens of the fullest expert-parallel rank over the even share
    (MaxVio + 1 of Wang et al. 2024, arXiv 2408.15664, by rank instead of by expert).
    `expert_capacity_factor` and `expert_capacity_padded` are Megatron-LM's
    `moe_expert_capacity_factor` and `moe_pad_expert_input_to_capacity` (None: drops no token).
    `mtp_layers` is Megatron-LM's `--mtp-num-layers`, multi-token prediction; `recompute_modules` is
    what its selective checkpointing recomputes (`--recompute-modules`), and read there alone.
    `images_per_sample` are the pictures that the vision tower of a two-tower model sees for each
    sample; 0 for text alone.
    """

    sequence_length: int = 4096
    micro_batch: int = 1
    global_batch: int | None = None
    precision: Precision = POLICIES["mixed-16"]
    optimizer: str = "adamw"
    optimizer_implementation: str = "foreach"
    activation_checkpointing: str = "none"
    checkpoint_every: int = 0
    attention: str = "flash"
    loss: str = "full"
    model_code: str = "transformers"
    trainable: Trainable = ALL
    expert_imbalance: float = 1.0
    expert_capacity_factor: float | None = None
    expert_capacity_padded: bool = False
    mtp_layers: int = 0
    recompute_modules: tuple[str, ...] = ("core_attn",)
    images_per_sample: int = 1

    @classmethod
    def from_dict(cls, value: object) -> Training:
        """A training set-up from its dict; missing keys take the defaults above.

        Raises:
            ScenarioError: an unknown key, or a value that is not allowed.
        """
        given = section(value, "training", _KEYS)
        default = cls()
        checkpointing, every = _checkpointing(given.get("activation_checkpointing", "none"))
        global_batch = given.get("global_batch")
        return cls(
            sequence_length=_whole(given, "sequence_length", default.sequence_length, 10**8),
            micro_batch=_whole(given, "micro_batch", default.micro_batch, 10**6),
            global_batch=None
            if global_batch is None
            else whole(global_batch, "training.global_batch", 1, 10**9),
            precision=precision_from(given.get("precision", default.precision)),
            optimizer=_choice(given, "optimizer", default.optimizer, OPTIMIZERS),
            optimizer_implementation=_choice(
                given, "optimizer_implementation", "foreach", IMPLEMENTATIONS
            ),
            activation_checkpointing=checkpointing,
            checkpoint_every=every,
            attention=_choice(given, "attention", default.attention, ATTENTIONS),
            loss=_choice(given, "loss", default.loss, LOSSES),
            model_code=_choice(given, "model_code", default.model_code, MODEL_CODES),
            trainable=Trainable.from_dict(given.get("trainable", "all")),
            expert_imbalance=_factor(given, "expert_imbalance", 1.0) or 1.0,
            expert_capacity_factor=_factor(given, "expert_capacity_factor", 0.01),
            expert_capacity_padded=flag(
                given.get("expert_capacity_padded", False), "training.expert_capacity_padded"
            ),
            mtp_layers=whole(given.get("mtp_layers", 0), "training.mtp_layers", 0, 64),
            recompute_modules=_modules(given.get("recompute_modules", default.recompute_modules)),
            images_per_sample=whole(
                given.get("images_per_sample", 1), "training.images_per_sample", 0, 10_000
            ),
        )

    def to_dict(self) -> dict[str, object]:
        """The dict that `from_dict` reads back to an equal value."""
        every = self.checkpoint_every
        return {
            "sequence_length": self.sequence_length,
            "micro_batch": self.micro_batch,
            "global_batch": self.global_batch,
            "precision": precision_to(self.precision),
            "optimizer": self.optimizer,
            "optimizer_implementation": self.optimizer_implementation,
            "activation_checkpointing": {"every": every}
            if every
            else self.activation_checkpointing,
            "attention": self.attention,
            "loss": self.loss,
            "model_code": self.model_code,
            "trainable": self.trainable.to_dict(),
            "expert_imbalance": self.expert_imbalance,
            "expert_capacity_factor": self.expert_capacity_factor,
            "expert_capacity_padded": self.expert_capacity_padded,
            "mtp_layers": self.mtp_layers,
            "recompute_modules": list(self.recompute_modules),
            "images_per_sample": self.images_per_sample,
        }


_KEYS = tuple(k for k in Training.__dataclass_fields__ if k != "checkpoint_every")


def _whole(given: Mapping[str, object], key: str, default: int, maximum: int) -> int:
    return whole(given.get(key, default), f"training.{key}", 1, maximum)


def _factor(given: Mapping[str, object], key: str, least: float) -> float | None:
    value = given.get(key)
    return None if value is None else number(value, f"training.{key}", least, 100_000)


def _choice(given: Mapping[str, object], key: str, default: str, allowed: object) -> str:
    assert isinstance(allowed, (tuple, Mapping))
    return choice(given.get(key, default), f"training.{key}", allowed)


def _modules(value: object) -> tuple[str, ...]:
    field = "training.recompute_modules"
    if not isinstance(value, (list, tuple)) or not value:
        raise ScenarioError(field, value, f"a list of {', '.join(RECOMPUTE_MODULES)}")
    named = {choice(module, field, RECOMPUTE_MODULES) for module in value}
    return tuple(module for module in RECOMPUTE_MODULES if module in named)


def _checkpointing(value: object) -> tuple[str, int]:
    """(kind, every k-th block); kind is one of `CHECKPOINTINGS` or every."""
    field = "training.activation_checkpointing"
    if isinstance(value, Mapping):
        every = section(value, field, ("every",)).get("every")
        return "every", whole(every, f"{field}.every", 1, 10_000)
    if isinstance(value, str) and value in CHECKPOINTINGS:
        return value, 0
    raise ScenarioError(field, value, f"{', '.join(CHECKPOINTINGS)} or {{'every': k}}")
