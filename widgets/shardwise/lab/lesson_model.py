"""What the lessons train: a small GPT-2 in plain torch, a text that ships with it, its scenario.

The model has GPT-2's parameters tensor by tensor, so Shardwise's estimate of the same config.json
speaks of this very model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shardwise.lab.lesson_scenario import CONFIG, corpus


class Block(nn.Module):
    """One transformer layer: attention and MLP, each behind a LayerNorm, each added back."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) in and out."""
        batch, tokens, width = x.shape
        parts = self.attention_in(self.norm_1(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp_out(functional.gelu(self.mlp_in(self.norm_2(x)), approximate="tanh"))


class TinyGPT(nn.Module):
    """GPT-2 of four layers, 64 wide, over bytes; the head shares the embedding's weight."""

    def __init__(self, config: dict[str, Any] = CONFIG) -> None:
        super().__init__()
        width = config["n_embd"]
        self.tokens = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["n_positions"], width)
        self.blocks = nn.ModuleList(
            Block(width, config["n_head"]) for _ in range(config["n_layer"])
        )
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next byte for every position."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def tiny_gpt(seed: int = 0) -> TinyGPT:
    """The model, the same on every rank."""
    torch.manual_seed(seed)
    return TinyGPT()


def batch(step: int, size: int, length: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """`size` windows of the text and the bytes that follow, the same everywhere for one step."""
    text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8).long()
    draw = torch.Generator().manual_seed(step)
    starts = torch.randint(0, len(text) - length - 1, (size,), generator=draw)
    windows = torch.stack([text[start : start + length + 1] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the next byte."""
    return functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
