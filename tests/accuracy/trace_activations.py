"""Writes `data/traces/ACTIVATIONS.md`: what each architecture's layers save for backward.

Traces every architecture once with sizes that no other product of sizes equals, so that each saved
storage can be written in the model's symbols, then adds the storages up. Run:

    python tests/accuracy/trace_activations.py
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from architectures import ARCHITECTURES, Architecture

from shardwise.lab.trace import SavedRow, TraceReport, trace

TARGET = Path(__file__).parents[2] / "data" / "traces" / "ACTIVATIONS.md"
MICRO_BATCH, SEQUENCE = 3, 512
_ITEM = {"bool": 1, "bfloat16": 2, "float32": 4, "int32": 4, "int64": 8, "uint64": 8}
_INTEGER = {"int32", "int64", "uint64"}

Term = tuple[str, str]  # what it grows with ("b·s"), and the size beside it ("h")


def traced(architecture: Architecture, **settings: object) -> TraceReport:
    """The reference trace: FSDP2 on 8 ranks, fp32 shards, bf16 compute, no rounding."""
    options: dict[str, object] = {
        "engine": "fsdp2",
        "world": 8,
        "micro_batch": MICRO_BATCH,
        "sequence_length": SEQUENCE,
        "block_bytes": 1,
    }
    return trace(architecture.config, **(options | settings))


def term_of(row: SavedRow, sizes: dict[str, int]) -> Term:
    """A storage's element count as (tokens, size); the largest match of tokens wins."""
    elements, rest = divmod(row.each_bytes, _ITEM[row.dtype])
    assert rest == 0, row
    tokens = {
        "b·a·s²": MICRO_BATCH * sizes["a"] * SEQUENCE**2,
        "a·s²": sizes["a"] * SEQUENCE**2,
        "b·s²": MICRO_BATCH * SEQUENCE**2,
        "s²": SEQUENCE**2,
        "b·n": MICRO_BATCH * sizes.get("n", 0),
        "b·s": MICRO_BATCH * SEQUENCE,
        "s": SEQUENCE,
        "": 1,
    }
    for name, count in tokens.items():
        for symbol, size in (sizes | {"1": 1}).items():
            if count and symbol != "n" and elements == count * size:
                return name, symbol
    return "", str(elements)


def formula(rows: list[tuple[Term, int]]) -> str:
    """Bytes added up: `b·s·(16·h + 8·f)`, from (term, bytes for each element)."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (tokens, symbol), each in rows:
        sums[tokens][symbol] += each
    parts = []
    for tokens, factors in sums.items():
        inner = " + ".join(
            str(each * int(symbol)) if symbol.isdigit() else f"{each}·{symbol}"
            for symbol, each in factors.items()
        )
        if not tokens:
            parts.append(inner)
        else:
            parts.append(f"{tokens}·({inner})" if len(factors) > 1 else f"{tokens}·{inner}")
    return " + ".join(parts)


def value(rows: list[tuple[Term, int]], sizes: dict[str, int]) -> int:
    """The formula evaluated, from the same terms."""
    named = sizes | {"b": MICRO_BATCH, "s": SEQUENCE}
    total = 0
    for (tokens, symbol), each in rows:
        factor = 1
        for letter in filter(None, tokens.split("·")):
            factor *= named[letter.rstrip("²")] ** (2 if letter.endswith("²") else 1)
        total += each * factor * (int(symbol) if symbol.isdigit() else named[symbol])
    return total


def merged(rows: tuple[SavedRow, ...]) -> list[SavedRow]:
    """Rows that differ only in who saved them become one (the last layer's sum goes to a norm)."""
    found: dict[object, SavedRow] = {}
    for row in rows:
        key = replace(row, count=0, savers=())
        other = found.get(key)
        if other is not None:
            savers = tuple(dict.fromkeys(other.savers + row.savers))
            row = replace(row, count=row.count + other.count, savers=savers)
        found[key] = row
    return list(found.values())


def section(name: str, architecture: Architecture) -> str:
    """One architecture's chapter."""
    report = traced(architecture)
    layers: dict[str, list[tuple[SavedRow, Term]]] = defaultdict(list)
    for row in merged(report.saved_by_module):
        place = architecture.place_of(row)
        layers[place].append((row, term_of(row, architecture.sizes)))
    text = [f"## {name}", "", architecture.note, ""]
    text += ["attention that ran: " + ", ".join(report.attention_ran) + ".", ""]
    for place, rows in layers.items():
        count = architecture.counts.get(place, 1)
        terms = [(term, _ITEM[row.dtype] * row.count) for row, term in rows]
        total = sum(row.total_bytes for row, _ in rows)
        assert value(terms, architecture.sizes) == total, (name, place)
        per_layer = [(term, each / count) for term, each in terms]
        whole = [(term, int(each)) for term, each in per_layer if each == int(each)]
        odd = [(term, each) for term, each in terms if each % count]
        text.append(f"**{place}**" + (f", each of {count}" if count > 1 else "") + ":")
        text.append(f"`{formula(whole)}` bytes" + (f", once: `{formula(odd)}`" if odd else ""))
        text += ["", *_table(rows, count), ""]
    return "\n".join(text)


def _table(rows: list[tuple[SavedRow, Term]], count: int) -> list[str]:
    lines = ["| made by | operator | elements | dtype | bytes each | times | saved by |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row, (tokens, symbol) in rows:
        elements = "·".join(filter(None, (tokens, symbol if symbol != "1" or not tokens else "")))
        times = f"{row.count // count}" if row.count % count == 0 else f"{row.count} in all"
        operator = row.operator.removeprefix("aten.").removesuffix(".default")
        savers = ", ".join(saver.split("*.")[-1] or "(model)" for saver in row.savers)
        lines.append(
            f"| {row.maker.split('*.')[-1] or '(model)'} | {operator} | {elements} | {row.dtype} "
            f"| {_ITEM[row.dtype]} | {times} | {savers} |"
        )
    return lines


def main() -> None:
    """Write the file."""
    head = (TARGET.parent / "ACTIVATIONS.head.md").read_text()
    body = "\n".join(section(name, one) for name, one in ARCHITECTURES.items())
    TARGET.write_text(head + "\n" + body)


if __name__ == "__main__":
    main()
