"""Layers whose operators were recorded one by one: state-space mixers, linear attention, hybrids.

`data/layers/layers.json` holds, for each kind of layer of transformers' own code without fused
kernels (`slow_forward`, `torch_chunk_gated_delta_rule`, the scan as a loop), the bytes that live at
the end of its forward pass and at the moments of its backward pass, as sums of products of the
layer's sizes (`tests/accuracy/record_layers.py` writes it). Here those sizes are put in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

from shardwise.core.arrays import rounded_up
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.structure import BlockShape

# Bytes for each of a count that grows with the sequence: ("tokens", 12.0), ("pairs", 2.0) ...
Sum = tuple[tuple[str, float], ...]


class Instant(NamedTuple):
    """A moment of a layer's backward: what lives, and the shares of weights with gradients."""

    live: Sum
    feed_forward: float
    others: float


class Layer(NamedTuple):
    """One recorded layer at the sizes of a shape.

    `saved` lives between forward and backward, `entering` of it is the layer's own input where it
    saves that; `forward` are moments of the forward pass.
    """

    saved: Sum
    entering: Sum
    forward: tuple[Sum, ...]
    instants: tuple[Instant, ...]


@cache
def _records() -> Mapping[str, Mapping[str, Any]]:
    from shardwise.core.catalogue import data_root

    text = (data_root() / "layers" / "layers.json").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return found


def recorded_layer(shape: BlockShape, kernel: Kernel) -> Layer | None:
    """The record of this block as this kernel runs it; None where there is none.

    Layers were recorded with all weights trained and none cut by tensor parallelism.
    """
    if not shape.recorded or not kernel.eager_modules:
        return None
    if kernel.tensor > 1 or kernel.frozen is not None:
        return None
    if shape.experts and (kernel.expert_ranks > 1 or kernel.expert_load != 1):
        return None
    if shape.attention and shape.kv_heads == shape.heads and _without_groups(kernel):
        return None
    kind = f" {kernel.attention}" if shape.attention else ""
    if kernel.autocasts:
        return _layer(shape, f"autocast{kind}")
    mixed = _layer(shape, f"mixed{kind}") if kernel.fp32_buffers else None
    return mixed or _layer(shape, f"{8 * kernel.element_bytes}{kind}")


def _without_groups(kernel: Kernel) -> bool:
    """Whether SDPA takes the memory-efficient kernel, which grouped heads rule out."""
    wants_flash = kernel.attention == "flash" and kernel.element_bytes == 4
    return kernel.attention == "efficient" or wants_flash


@lru_cache(maxsize=512)
def _layer(shape: BlockShape, key: str) -> Layer | None:
    record = _records().get(shape.recorded, {}).get(key)
    if record is None:
        return None
    sizes = sizes_of(shape)
    weights = _weights(record["weights"], sizes)
    instants = []
    for moment in record["moments"]:
        made = _weights(moment["made"], sizes)
        shares = [made[part] / weights[part] if weights[part] else 0.0 for part in made]
        instants.append(Instant(_sum(moment["live"], sizes), *shares))
    return Layer(
        saved=_sum(record["saved"], sizes),
        entering=_sum(record["input"], sizes),
        forward=tuple(_untopped([_sum(one, sizes) for one in record["forward"]])),
        instants=tuple(_highest_instants(instants)),
    )


def sizes_of(shape: BlockShape) -> dict[str, int]:
    """A shape's sizes by the letters of the records (`data/layers/README.md`)."""
    sizes = {
        "h": shape.hidden,
        "a": shape.heads,
        "k": shape.kv_heads,
        "d": shape.head_dim,
        "f": shape.intermediate,
        "E": shape.experts,
        "e": shape.experts_per_token,
        "m": shape.expert_intermediate,
        "u": shape.shared_intermediate,
    }
    mixer = shape.mixer
    if mixer is not None:
        sizes |= {
            "i": mixer.inner,
            "n": mixer.state,
            "w": mixer.kernel,
            "H": mixer.heads,
            "G": mixer.groups,
            "r": mixer.rank,
            "c": mixer.chunk,
            "P": mixer.head_dim,
            "B": mixer.groups * mixer.state,
            "C": mixer.convolved,
            "J": mixer.projected,
            "Q": mixer.inner + mixer.convolved,
            "R": mixer.rank + 2 * mixer.state,
        }
    return sizes


def _sum(terms: Mapping[str, float], sizes: Mapping[str, int]) -> Sum:
    found: dict[str, float] = {}
    for term, each in terms.items():
        tokens, _, product = term.partition("|")
        found[tokens] = found.get(tokens, 0.0) + each * _product(product, sizes)
    return tuple(sorted(found.items()))


def _product(names: str, sizes: Mapping[str, int]) -> int:
    size = 1
    for name in filter(None, names.split("·")):
        size *= sizes[name]
    return size


def _weights(terms: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    found = {"feed forward": 0, "others": 0}
    for term, each in terms.items():
        part, _, product = term.partition("|")
        found[part] += each * _product(product, sizes)
    return found


def _tops(one: Sum, other: Sum) -> bool:
    """Whether one sum is at least as large as another in every term."""
    mine, theirs = dict(one), dict(other)
    return all(mine.get(key, 0.0) >= theirs.get(key, 0.0) for key in {*mine, *theirs})


def _untopped(sums: list[Sum]) -> list[Sum]:
    distinct = list(dict.fromkeys(sums))
    return [one for one in distinct if not any(o != one and _tops(o, one) for o in distinct)]


def _highest_instants(instants: list[Instant]) -> list[Instant]:
    distinct = list(dict.fromkeys(instants))

    def topped(one: Instant, other: Instant) -> bool:
        more = other.feed_forward >= one.feed_forward and other.others >= one.others
        return other != one and more and _tops(other.live, one.live)

    return [one for one in distinct if not any(topped(one, other) for other in distinct)]


def counts_of(shape: BlockShape, tokens: Tokens) -> dict[str, float]:
    """What the sums' names count, for these tokens."""
    samples, length = tokens.samples, tokens.length
    counts: dict[str, float] = {
        "tokens": tokens.count,
        "pairs": tokens.count * tokens.attended,
        "mask": length * tokens.attended,
        "rows": samples * 32 * rounded_up(length / 32),
        "samples": samples,
        "positions": length,
        "once": 1,
    }
    mixer = shape.mixer
    if mixer is not None:
        counts["convolved"] = samples * (length + mixer.kernel - 1)
        if mixer.chunk:
            chunks = rounded_up(length / mixer.chunk)
            counts["padded"] = samples * chunks * mixer.chunk
            counts["chunked"] = samples * chunks
            counts["states"] = samples * (chunks + 1)
            counts["pairs of states"] = samples * (chunks + 1) * (chunks + 1)
            counts["state mask"] = (chunks + 1) * (chunks + 1)
    return counts


_LABELS = {
    "padded": "recorded layer, whole chunks",
    "chunked": "states of chunks",
    "pairs": "attention scores",
}


def labelled(terms: Sum, counts: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """A sum's bytes by what they grow with."""
    found: dict[str, float] = {}
    for name, each in terms:
        label = _LABELS.get(name, "recorded layer")
        found[label] = found.get(label, 0.0) + each * counts[name]
    return tuple(found.items())


def bytes_of(terms: Sum, counts: Mapping[str, float]) -> float:
    """A sum in bytes."""
    total = 0.0
    for name, each in terms:
        total = total + each * counts[name]
    return total
