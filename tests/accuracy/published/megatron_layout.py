"""How Megatron-LM parts layers over virtual stages, from its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping

LETTERS = "M*-E"


def _expanded(layout: str) -> str:
    """`Et*3|(tt|)*6L` with its repetitions written out."""
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout)
    return re.sub(r"(\w)\*(\d+)", lambda m: m[1] * int(m[2]), text)


def listed_layers(layout: str) -> list[int]:
    """Decoder layers of each virtual stage of a `--pipeline-model-parallel-layout`.

    megatron/core/transformer/pipeline_parallel_layer_layout.py: E embedding, t decoder layer,
    m multi-token prediction, L loss.
    """
    return [part.count("t") for part in _expanded(layout).split("|")]


def pattern_layers(pattern: str) -> list[int] | None:
    """Layers of each stage where a hybrid's pattern parts them."""
    if "|" not in pattern:
        return None
    return [sum(letter in LETTERS for letter in part) for part in pattern.split("|")]


def accounted_layers(row: Mapping[str, str]) -> list[int] | None:
    """Layers of each virtual stage where the embedding or the loss counts as a layer.

    megatron/core/transformer/transformer_block.py, `get_num_layers_to_build`.
    """
    stages = int(row["pipeline_parallel"]) * int(row["virtual_stages"] or 1)
    first = "account-for-embedding-in-pipeline-split" in row["strategy"]
    last = "account-for-loss-in-pipeline-split" in row["strategy"]
    if not (first or last):
        return None
    each = [(int(row["layers"]) + first + last) // stages] * stages
    each[0] -= first
    each[-1] -= last
    return each
