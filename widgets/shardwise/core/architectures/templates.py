"""Templates of parameter tensors: a name, symbolic dimensions, and the switch that turns it on.

A family writes its block as rows such as `linear("self_attn.q_proj", "query", "hidden")`. `expand`
puts in the sizes of one config. The order of the rows is that of `named_parameters()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.core.structure import BlockShape, Module, Tensor

# A size by its symbol; switches are 0 or 1 in the same mapping.
Sizes = Mapping[str, int]

COLUMN, ROW, VOCABULARY, EXPERT = "column", "row", "vocabulary", "expert"
REPLICATED = "replicated"
# The switch that is on in every config, for biases that a family always has.
ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of a template; a dimension is a symbol of `Sizes` or a number.

    With the switch `unread` on, the modules have it and never read it.
    """

    name: str
    shape: tuple[str | int, ...]
    part: str
    tensor_parallel: str = REPLICATED
    when: str = ""
    unread: str = ""


Rows = tuple[Row, ...]


def linear(
    name: str,
    rows: str | int,
    columns: str | int,
    part: str,
    cut: str = REPLICATED,
    *,
    bias: str = "",
    when: str = "",
) -> Rows:
    """`torch.nn.Linear`: weight (out, in) and a bias (out) when the switch `bias` is on.

    A row-cut layer's bias is added after the all-reduce, so every rank holds it whole.
    """
    weight = Row(_joined(name, "weight"), (rows, columns), part, cut, when)
    if not bias:
        return (weight,)
    bias_cut = cut if cut in (COLUMN, VOCABULARY) else REPLICATED
    return weight, Row(_joined(name, "bias"), (rows,), part, bias_cut, bias)


def norm(name: str, size: str | int = "hidden", *, bias: str = "", when: str = "") -> Rows:
    """RMSNorm or LayerNorm: a weight, and a bias when the switch `bias` is on."""
    weight = Row(_joined(name, "weight"), (size,), "norm", REPLICATED, when)
    if not bias:
        return (weight,)
    return weight, Row(_joined(name, "bias"), (size,), "norm", REPLICATED, bias)


def _joined(name: str, leaf: str) -> str:
    return f"{name}.{leaf}" if name else leaf


def tensor(name: str, *shape: str | int, part: str, cut: str = REPLICATED, when: str = "") -> Rows:
    """A tensor that is neither: an embedding table, fused experts, a convolution, a sink."""
    return (Row(name, shape, part, cut, when),)


def rows(*groups: Rows) -> Rows:
    """Groups of rows as one template."""
    return tuple(row for group in groups for row in group)


def expand(template: Rows, sizes: Sizes, prefix: str = "") -> tuple[Tensor, ...]:
    """The template's tensors for these sizes, their names behind `prefix`.

    >>> template = linear("q_proj", "query", "hidden", "attention", COLUMN, bias="qkv_bias")
    >>> [t.shape for t in expand(template, {"query": 8, "hidden": 4, "qkv_bias": 1})]
    [(8, 4), (8,)]
    """
    return tuple(
        Tensor(
            prefix + row.name,
            tuple(part if isinstance(part, int) else sizes[part] for part in row.shape),
            row.part,
            row.tensor_parallel,
            not (row.unread and sizes[row.unread]),
        )
        for row in template
        if row.when in ("", ALWAYS) or sizes[row.when]
    )


def unit(
    name: str, kind: str, template: Rows, sizes: Sizes, block: BlockShape | None = None
) -> tuple[Module, ...]:
    """A module of this template, or nothing when all its rows are switched off."""
    tensors = expand(template, sizes, f"{name}.")
    return (Module(name, kind, tensors, block),) if tensors else ()
