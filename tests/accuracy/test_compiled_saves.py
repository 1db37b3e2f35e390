"""What `model_code="compiled"` keeps, against torch's own min-cut partitioner on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from shardwise.core.memory.activations import Kernel, Tokens, block_saved
from shardwise.core.memory.loss import loss_bytes
from shardwise.core.structure import BlockShape

HIDDEN, HEADS, KV_HEADS, WIDTH, INNER = 512, 8, 2, 64, 1792
ROWS, LENGTH, VOCABULARY = 2, 256, 1000


class Block(nn.Module):
    """A Llama block of plain modules, rotation by complex numbers, SDPA."""

    def __init__(self, gated: bool) -> None:
        """Weights in bf16."""
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.q = nn.Linear(HIDDEN, HEADS * WIDTH, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * WIDTH, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * WIDTH, bias=False)
        self.o = nn.Linear(HEADS * WIDTH, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, INNER, bias=False) if gated else None
        self.up = nn.Linear(HIDDEN, INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)
        self.to(torch.bfloat16)
        self.register_buffer("table", torch.ones(LENGTH, 1, WIDTH // 2, dtype=torch.complex64))

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Rotated pairs, computed in fp32."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.table).flatten(-2).type_as(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and MLP over a residual stream."""
        normed = self.norms[0](x)
        q, k, v = (layer(normed).unflatten(-1, (-1, WIDTH)) for layer in (self.q, self.k, self.v))
        q, k, v = (t.transpose(1, 2) for t in (self.rotated(q), self.rotated(k), v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(-2))
        normed = self.norms[1](x)
        if self.gate is None:
            return x + self.down(functional.gelu(self.up(normed)))
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Loss(nn.Module):
    """Cross entropy in fp32 over 16-bit logits."""

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean over all tokens."""
        return functional.cross_entropy(logits.float(), labels)


def saved_bytes(module: nn.Module, *inputs: torch.Tensor) -> int:
    """Bytes that the compiled forward keeps for its backward, weights and tables not counted."""
    from functorch.compile import aot_module, make_boxed_func, min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    kept: dict[str, int] = {}

    def forward(graph: Any, _: Any) -> Callable[..., Any]:
        results = next(n for n in graph.graph.nodes if n.op == "output").args[0]
        for node in results[1:]:  # the first one is the module's own output
            value = getattr(node, "meta", {}).get("val")
            if isinstance(value, torch.Tensor):
                kept[source_of(node)] = value.numel() * value.element_size()
        return make_boxed_func(graph.forward)

    def backward(graph: Any, _: Any) -> Callable[..., Any]:
        return make_boxed_func(graph.forward)

    compiled = aot_module(
        module,
        fw_compiler=forward,
        bw_compiler=backward,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    compiled(*inputs).sum().backward()
    weights = {tuple(p.shape) for p in module.parameters()}
    weights |= {shape[::-1] for shape in weights}
    assert kept
    return sum(size for name, size in kept.items() if not name.startswith("weight"))


def source_of(node: Any) -> str:
    """The name of the node whose storage a kept view shares; weights and buffers are marked."""
    views = ("view", "permute", "alias", "_conj", "transpose", "t", "unsqueeze", "expand", "clone")
    while node.op == "call_function" and getattr(node.target, "_opname", "") in views:
        node = node.args[0]
    value = node.meta["val"]
    is_weight = node.op == "placeholder" and (value.dim() < 3 or value.is_complex())
    return f"weight {node.name}" if is_weight and value.dtype != torch.int64 else node.name


@pytest.mark.parametrize("gated", [True, False])
def test_a_compiled_block_keeps_what_the_partitioner_keeps(gated: bool) -> None:
    """Norm inputs, rsqrts, linear inputs, rotated q and k, v; SiLU is computed again."""
    x = torch.randn(ROWS, LENGTH, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    measured = saved_bytes(Block(gated), x)
    shape = BlockShape(
        hidden=HIDDEN, heads=HEADS, kv_heads=KV_HEADS, head_dim=WIDTH, value_head_dim=WIDTH,
        intermediate=INNER, gated=gated, activation="silu" if gated else "gelu", rotary=True,
    )  # fmt: skip
    kernel = Kernel(2, 1, False, "flash", "compiled")
    saved = block_saved(shape, Tokens(ROWS, LENGTH, LENGTH), kernel)
    assert saved.total == pytest.approx(measured, rel=0.001)


def test_a_compiled_loss_keeps_its_16_bit_logits() -> None:
    """The logits, the labels and two fp32 numbers a row: no fp32 log-softmax."""
    tokens = ROWS * LENGTH
    logits = torch.randn(tokens, VOCABULARY, dtype=torch.bfloat16).view(1, tokens, VOCABULARY)
    logits.requires_grad_(True)
    labels = torch.zeros(1, tokens, dtype=torch.int64)

    class Flat(Loss):
        def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return super().forward(logits.flatten(0, 1), labels.flatten(0, 1))

    measured = saved_bytes(Flat(), logits, labels)
    kept = loss_bytes(tokens, VOCABULARY, 2, "compiled", HIDDEN).saved
    assert kept + 8 * tokens == pytest.approx(measured, rel=0.001)
