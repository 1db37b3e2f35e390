"""One color a meaning, the same in every chart: the color-blind-safe palette of Okabe and Ito.

Color never stands alone: every mark has an edge, and a label, letter or pattern of dashes.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.core.memory.report import PARTS

PART_COLORS: Mapping[str, str] = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "master weights": "#CC79A7",
    "optimizer state": "#009E73",
    "gathered layers": "#56B4E9",
    "activations": "#D55E00",
    "logits and loss": "#F0E442",
    "buffers": "#999999",
    "reserve": "#DDDDDD",
}
"""Parts of a GPU's memory; `reserve` is context, communicators and fragmentation."""

PART_LABELS: Mapping[str, str] = {
    **PARTS,
    "buffers": "buckets, temporaries",
    "reserve": "context, NCCL, fragmentation",
}
"""As a report calls its parts, shorter where a legend needs it."""

PART_LETTERS: Mapping[str, str] = {
    "parameters": "P",
    "gradients": "G",
    "master weights": "M",
    "optimizer state": "O",
    "gathered layers": "L",
    "activations": "A",
    "logits and loss": "Z",
    "buffers": "B",
    "reserve": "R",
}
"""The letter written into a segment that is wide enough."""

MODULE_COLORS: Mapping[str, str] = {
    "embedding": "#56B4E9",
    "block": "#0072B2",
    "head": "#E69F00",
    "other": "#999999",
}
"""Kinds of module in the chart of layers."""

STRATEGY_COLORS: Mapping[str, str] = {
    "DDP": "#D55E00",
    "ZeRO-1": "#E69F00",
    "ZeRO-2": "#009E73",
    "ZeRO-3 / FSDP": "#0072B2",
}
"""Lines of the chart over GPUs; each has its own point shape besides."""

PEER_COLORS: Mapping[str, str] = {"ours": "#0072B2", "peer": "#BBBBBB"}
"""Bars of the comparison of calculators."""

STATE_COLORS: Mapping[str, str] = {
    "no": "#D55E00",
    "yes": "#009E73",
    "not asked": "#BBBBBB",
}
"""Verdicts on the path of questions; a word stands under each."""

EDGE = "#333333"
INK = "var(--sw-ink)"
"""The page's own letters, light or dark."""
PAPER = "var(--sw-paper)"
"""The page's own background, light or dark, for halos behind labels."""
LIGHT_TEXT = ("#0072B2", "#D55E00", "#009E73")
"""Fills on which a label is white; on the others it is black."""


def label_color(fill: str) -> str:
    """The color of a label inside a mark of this fill.

    >>> label_color("#0072B2"), label_color("#F0E442")
    ('#FFFFFF', '#000000')
    """
    return "#FFFFFF" if fill in LIGHT_TEXT else "#000000"
