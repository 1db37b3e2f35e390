"""What of a model is trained: all of it, low-rank adapters over a frozen base, or some parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from shardwise.core.errors import ScenarioError, unknown_key
from shardwise.core.fields import choice, flag, section, whole
from shardwise.core.model import Model
from shardwise.core.structure import Module, Tensor

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
NF4_BLOCK, NF4_NESTED_BLOCK = 64, 256
_EVERY = ("default", "all-linear")
_ALIASES = ("q", "k", "v", "o", "gate", "up", "down")
_BY_ARCHITECTURE: Mapping[str, tuple[str, ...]] = {
    "T5": ("q", "v"),
    "GPT2": ("c_attn",),
    "Bloom": ("query_key_value",),
    "GPTNeoX": ("query_key_value",),
    "Falcon": ("query_key_value",),
    "Bert": ("query", "value"),
    "Roberta": ("query", "value"),
    "XLMRoberta": ("query", "value"),
    "PhiFor": ("q_proj", "v_proj", "fc1", "fc2"),
    "Phi3": ("qkv_proj",),
}


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
        if value == "all":
            return cls()
        given = section(value, FIELD, ("lora", "frozen", "only", "base"))
        named = [key for key in ("lora", "frozen", "only") if key in given]
        if len(named) != 1:
            raise ScenarioError(FIELD, value, "'all', or a dict with one of lora, frozen, only")
        if named[0] == "lora":
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


def check_trainable(model: Model, trainable: Trainable) -> None:
    """Refuse targets that the model does not have, and freezing that leaves nothing to train.

    Raises:
        ScenarioError: names the linear layers that the model has.
    """
    if trainable.everything:
        return
    for target in trainable.targets:
        if not any(_chosen(t, model, (target,)) for t in linears(model)):
            leaves = dict.fromkeys(_leaf(tensor) for tensor in linears(model))
            allowed = [*_EVERY, *_ALIASES, *leaves]
            raise unknown_key(f"{FIELD}.lora.targets", target, allowed)
    if not trained_parameters(model, trainable):
        raise ScenarioError(
            f"{FIELD}.frozen",
            list(trainable.frozen),
            f"a list that leaves a part to train of {', '.join(model.parameters_by_part)}",
        )


@lru_cache(maxsize=64)
def linears(model: Model) -> tuple[Tensor, ...]:
    """The linear layers' weights that an adapter can sit on: not experts, router, head.

    peft's `all-linear` takes every nn.Linear but the output head. transformers 5 holds routed
    experts and routers as plain parameters, which it does not count; where peft still finds a name
    for them (Mixtral, DeepSeek) name the layers instead of `all-linear`.
    """
    return tuple(
        tensor
        for module in model.modules
        for tensor in module.tensors
        if module.block is not None
        and len(tensor.shape) == 2
        and (tensor.part in ("attention", "mlp") or _leaf(tensor) == "shared_expert_gate")
        and tensor.name.endswith(".weight")
        and not _is_table(tensor)
    )


def _is_table(tensor: Tensor) -> bool:
    return "relative_attention_bias" in tensor.name


def _leaf(tensor: Tensor) -> str:
    return tensor.name.removesuffix(".weight").rpartition(".")[2]


def swapped(model: Model) -> bool:
    """Whether linear weights are stored (in, out): GPT-2's Conv1D."""
    return model.architecture.startswith("GPT2")


def reads(tensor: Tensor, model: Model) -> str:
    """Which activation a linear layer reads: attention/MLP input, attention output, MLP product."""
    column = "row" if swapped(model) else "column"
    if tensor.tensor_parallel == column or tensor.tensor_parallel == "replicated":
        return f"{tensor.part} input"
    return f"{tensor.part} result"


def _default(model: Model) -> tuple[str, ...]:
    """peft's default targets (peft/utils/constants.py); `qkv_proj` for Phi-3, which has none."""
    for start, names in _BY_ARCHITECTURE.items():
        if model.architecture.startswith(start):
            return names
    return ("q_proj", "v_proj")


def _chosen(tensor: Tensor, model: Model, targets: tuple[str, ...]) -> bool:
    name, leaf = tensor.name.removesuffix(".weight"), _leaf(tensor)
    for target in targets:
        if target == "all-linear" or leaf == target or name.endswith(f".{target}"):
            return True
        if target == "default" and (leaf in _default(model)):
            return True
        if target in _ALIASES and _is_alias(tensor, model, leaf, target):
            return True
    return False


def _is_alias(tensor: Tensor, model: Model, leaf: str, alias: str) -> bool:
    """q, k, v (or the fused projection that holds them), o, gate, up, down on any architecture."""
    role = reads(tensor, model)
    if alias in ("q", "k", "v"):
        fused = "qkv" in leaf or leaf in ("query_key_value", "c_attn")
        return role == "attention input" and (leaf.startswith(alias) or fused)
    if alias == "o":
        return role == "attention result"
    if alias == "down":
        return role == "mlp result"
    gate = "gate" in leaf
    return role == "mlp input" and (gate if alias == "gate" else not gate or "up" in leaf)


@dataclass(frozen=True)
class Split:
    """A module's tensors: with gradients and without."""

    trained: Module
    frozen: Module


def split(module: Module, model: Model, trainable: Trainable) -> Split:
    """A module's trained tensors (its own or its adapters') and its frozen ones.

    LoRA (Hu et al. 2021): A is [rank, in] and B [out, rank] for each target (peft's `lora_A`,
    `lora_B`). Under tensor parallelism B of a column-cut layer and A of a row-cut one are cut.
    """
    name, kind, block = module.name, module.kind, module.block
    if trainable.everything:
        return Split(module, Module(name, kind, (), block))
    if trainable.rank:
        allowed = set(linears(model))
        chosen = [t for t in module.tensors if t in allowed]
        adapters = [
            pair
            for tensor in chosen
            if _chosen(tensor, model, trainable.targets)
            for pair in _pair(tensor, trainable.rank, swapped(model))
        ]
        return Split(Module(name, kind, tuple(adapters), block), module)
    trained = tuple(t for t in module.tensors if t.part not in trainable.frozen)
    frozen = tuple(t for t in module.tensors if t.part in trainable.frozen)
    return Split(Module(name, kind, trained, block), Module(name, kind, frozen, block))


def _pair(tensor: Tensor, rank: int, stored_swapped: bool) -> tuple[Tensor, Tensor]:
    out, inside = tensor.shape[::-1] if stored_swapped else tensor.shape
    row = tensor.tensor_parallel == ("column" if stored_swapped else "row")
    column = tensor.tensor_parallel == ("row" if stored_swapped else "column")
    stem = tensor.name.removesuffix(".weight")
    return (
        Tensor(
            f"{stem}.lora_A.weight", (rank, inside), tensor.part, "row" if row else "replicated"
        ),
        Tensor(
            f"{stem}.lora_B.weight", (out, rank), tensor.part, "column" if column else "replicated"
        ),
    )


@lru_cache(maxsize=256)
def trained_parameters(model: Model, trainable: Trainable) -> int:
    """Parameters with gradients: the whole model's, the adapters', or those of the parts left.

    >>> from shardwise.core.catalogue import load_model
    >>> trained_parameters(load_model("llama-2-7b"), Trainable.from_dict({"lora": {"rank": 8}}))
    4194304
    """
    if trainable.everything:
        return model.parameters
    return sum(split(module, model, trainable).trained.parameters for module in model.modules)


@lru_cache(maxsize=256)
def trained_tensors(model: Model, trainable: Trainable) -> tuple[Tensor, ...]:
    """The tensors with gradients, adapters as peft names them."""
    modules: Iterable[Module] = (split(m, model, trainable).trained for m in model.modules)
    return tuple(tensor for module in modules for tensor in module.tensors)


@lru_cache(maxsize=256)
def targets_by_input(model: Model, trainable: Trainable) -> Mapping[str, int]:
    """How many targets one block has by the activation that they read (see `reads`)."""
    if not trainable.rank:
        return {}
    allowed = set(linears(model))
    most: dict[str, int] = {}
    for module in model.modules:
        counts: dict[str, int] = {}
        for tensor in module.tensors:
            if tensor in allowed and _chosen(tensor, model, trainable.targets):
                role = reads(tensor, model)
                counts[role] = counts.get(role, 0) + 1
        for role, count in counts.items():
            most[role] = max(most.get(role, 0), count)
    return most


def stored_bytes(tensor: Tensor, trainable: Trainable, in_block: bool) -> tuple[float, float]:
    """(bytes an element, bytes of quantization statistics an element) of a frozen tensor.

    bitsandbytes quantizes the blocks' linear layers; embedding, norms, router and head stay in 16
    bits. LLM.int8 (Dettmers et al. 2022a): one byte and an fp32 scale a row. NF4 (Dettmers et al.
    2023, section 3): half a byte and an fp32 absmax a block of 64, 0.5625 B; with double
    quantization the absmax is 8 bits and an fp32 follows each 256 of them, 0.516 B.

    >>> weight = Tensor("q_proj.weight", (4096, 4096), "attention", "column")
    >>> sum(stored_bytes(weight, Trainable(rank=8, base="nf4"), True))
    0.5625
    """
    linear = in_block and len(tensor.shape) > 1 and tensor.part in ("attention", "mlp", "experts")
    if not trainable.quantized:
        return BASES[trainable.base], 0.0
    if not linear or _is_table(tensor):
        return BASES["16-bit"], 0.0
    if trainable.base == "int8":
        return 1.0, 4.0 / tensor.shape[-1]
    if trainable.double_quantized:
        return 0.5, 1 / NF4_BLOCK + 4 / (NF4_BLOCK * NF4_NESTED_BLOCK)
    return 0.5, 4 / NF4_BLOCK


def largest_linear(module: Module) -> int:
    """Elements of the largest single linear layer of a block; one expert of fused ones."""
    sizes = (
        math.prod(t.shape[-2:]) for t in module.tensors if t.part in ("attention", "mlp", "experts")
    )
    return max(sizes, default=0)
