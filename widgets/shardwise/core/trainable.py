"""What of a model is trained: all of it, low-rank adapters over a frozen base, or some parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.core.errors import ScenarioError
from shardwise.core.fields import choice, flag, section, whole
from shardwise.core.hashed import hashed_once

FIELD = "training.trainable"
PARTS = ("embedding", "position", "attention", "mlp", "experts", "router", "norm", "head", "other")
BASES: Mapping[str, float] = {
    "as-trained": 0.0,
    "fp32": 4.0,
    "16-bit": 2.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "int8": 1.0,
    "nf4": 0.5,
}
"""Bytes of one frozen weight; `as-trained` is the type that the precision stores weights in."""

QUANTIZED = ("int8", "nf4")


@hashed_once
@dataclass(frozen=True)
class Trainable:
    """What has gradients; the empty value trains everything.

    With a `rank` these are LoRA adapters on the `targets` and the whole model is frozen, stored as
    `base` (a key of `BASES`); without one, the parts in `frozen` are. `double_quantized` says that
    NF4's block statistics are quantized again.
    """

    rank: int = 0
    targets: tuple[str, ...] = ()
    dropout: float = 0.0
    frozen: tuple[str, ...] = ()
    base: str = "as-trained"
    double_quantized: bool = False

    @property
    def everything(self) -> bool:
        """Whether nothing is frozen."""
        return not self.rank and not self.frozen

    @property
    def quantized(self) -> bool:
        """Whether the frozen linear layers of the blocks are stored in 8 or 4 bits."""
        return self.base in QUANTIZED

    @property
    def name(self) -> str:
        """In words: full training, LoRA of rank 16, QLoRA ..."""
        if self.everything:
            return "all parameters"
        if not self.rank:
            return f"all but {', '.join(self.frozen)}"
        kind = f"QLoRA ({self.base} base)" if self.quantized else "LoRA"
        return f"{kind} of rank {self.rank} on {', '.join(self.targets)}"

    @classmethod
    def from_dict(cls, value: object) -> Trainable:
        """`"all"`, `{"lora": {...}}`, `{"frozen": [parts]}` or `{"only": [parts]}`.

        `lora` takes rank (16), targets ("default": those of peft for the architecture), base
        (16-bit), dropout (0) and double_quantized (False).

        Raises:
            ScenarioError: another form, an unknown part or base, a rank or dropout out of range.

        >>> Trainable.from_dict({"lora": {"rank": 8, "base": "nf4"}}).name
        'QLoRA (nf4 base) of rank 8 on default'
        """
        if isinstance(value, Trainable):
            return value
        if isinstance(value, str) and value == "all":
            return cls()
        given = section(value, FIELD, ("lora", "frozen", "only", "base"))
        named = [key for key in ("lora", "frozen", "only") if key in given]
        if len(named) != 1:
            raise ScenarioError(FIELD, value, "'all', or a dict with one of lora, frozen, only")
        if named[0] == "lora":
            if "base" in given:
                raise ScenarioError(
                    f"{FIELD}.base",
                    given["base"],
                    "nothing beside lora: a base stands inside it",
                    f"write {{'lora': {{..., 'base': {given['base']!r}}}}}",
                )
            return _lora(given["lora"])
        parts = _names(given[named[0]], f"{FIELD}.{named[0]}")
        for part in parts:
            choice(part, f"{FIELD}.{named[0]}", PARTS)
        frozen = [p for p in PARTS if (p in parts) == (named[0] == "frozen")]
        base = choice(given.get("base", "as-trained"), f"{FIELD}.base", BASES)
        return cls(frozen=tuple(frozen), base=base)

    def to_dict(self) -> object:
        """What `from_dict` reads back to an equal value."""
        if self.everything:
            return "all"
        if not self.rank:
            return {"frozen": list(self.frozen), "base": self.base}
        return {
            "lora": {
                "rank": self.rank,
                "targets": list(self.targets),
                "base": self.base,
                "dropout": self.dropout,
                "double_quantized": self.double_quantized,
            }
        }


ALL = Trainable()


def _lora(value: object) -> Trainable:
    field = f"{FIELD}.lora"
    given = section(value, field, ("rank", "targets", "base", "dropout", "double_quantized"))
    dropout = given.get("dropout", 0.0)
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise ScenarioError(f"{field}.dropout", dropout, "a number from 0 to less than 1")
    base = choice(given.get("base", "16-bit"), f"{field}.base", BASES)
    double = flag(given.get("double_quantized", False), f"{field}.double_quantized")
    if double and base != "nf4":
        raise ScenarioError(f"{field}.double_quantized", True, "False unless base is nf4")
    return Trainable(
        rank=whole(given.get("rank", 16), f"{field}.rank", 1, 65_536),
        targets=_names(given.get("targets", "default"), f"{field}.targets"),
        dropout=float(dropout),
        base=base,
        double_quantized=double,
    )


def _names(value: object, field: str) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ScenarioError(field, value, "a name or a list of names")
    if not names:
        raise ScenarioError(field, value, "at least one name")
    return tuple(dict.fromkeys(names))
