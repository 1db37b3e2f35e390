"""Logits and loss against torch's own saved tensors and traced peaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.core.memory.loss import CHUNKS, loss_bytes

TOKENS = st.integers(1, 10**6)
WORDS = st.integers(1, 300_000)


def test_a_full_loss_has_the_traced_peaks() -> None:
    """10 V bytes a token at the end of forward, 12 V in backward (data/traces/ACTIVATIONS.md)."""
    loss = loss_bytes(4096, 128_256, 2, "full", 4096)
    assert loss.forward == 10 * 128_256 * 4096
    assert loss.backward == 12 * 128_256 * 4096


def test_in_fp32_nothing_is_upcast() -> None:
    """fp32 logits are their own fp32 copy: 4 + 4 bytes at the end of forward."""
    assert loss_bytes(1, 1000, 4, "full", 64).forward == 8 * 1000


def test_what_waits_for_backward_is_what_torch_saves() -> None:
    """torch's cross entropy over fp32 logits saves one fp32 log-softmax: 4 V bytes a token."""
    torch = pytest.importorskip("torch")
    tokens, vocabulary = 12, 1000
    logits = torch.randn(tokens, vocabulary, requires_grad=True)
    saved: dict[int, int] = {}

    def pack(tensor):  # type: ignore[no-untyped-def]
        if tensor.is_floating_point() and tensor.dim() == 2:
            saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.nn.functional.cross_entropy(logits, torch.zeros(tokens, dtype=torch.long))
    assert sum(saved.values()) == loss_bytes(tokens, vocabulary, 2, "full", 64).saved


def test_the_fp32_logits_of_a_long_context_are_huge() -> None:
    """131,072 tokens x 128,256 entries x 4 B = 62.6 GiB for one fp32 tensor alone."""
    loss = loss_bytes(131_072, 128_256, 2, "full", 8192)
    assert loss.saved / 2**30 == pytest.approx(62.6, abs=0.05)
    assert loss.backward == 3 * loss.saved


@given(TOKENS, WORDS, st.sampled_from([2, 4]), st.integers(1, 20_000))
def test_chunks_hold_an_eighth_and_the_heads_input(
    tokens: int, vocabulary: int, element: int, hidden: int
) -> None:
    """A chunked loss holds one chunk's bytes and the input of the head."""
    full = loss_bytes(tokens, vocabulary, element, "full", hidden)
    chunked = loss_bytes(tokens, vocabulary, element, "chunked", hidden)
    head_input = tokens * hidden * element
    assert chunked.forward == pytest.approx(full.forward / CHUNKS + head_input)
    assert chunked.backward == pytest.approx(full.backward / CHUNKS + head_input)
    assert chunked.saved == head_input


@given(TOKENS, st.integers(32_000, 300_000), st.sampled_from([2, 4]), st.integers(64, 8192))
def test_lighter_losses_need_less(tokens: int, vocabulary: int, element: int, hidden: int) -> None:
    """With a real vocabulary, fused needs less than chunked, chunked less than full."""
    full, chunked, fused = (
        loss_bytes(tokens, vocabulary, element, kind, hidden)
        for kind in ("full", "chunked", "fused")
    )
    assert fused.backward < chunked.backward < full.backward
    assert chunked.forward < full.forward


@given(TOKENS, WORDS, st.integers(2, 9), st.sampled_from(["full", "chunked", "fused"]))
def test_bytes_grow_with_tokens(tokens: int, vocabulary: int, times: int, kind: str) -> None:
    """Everything is proportional to the tokens."""
    one, many = (loss_bytes(n, vocabulary, 2, kind, 512) for n in (tokens, tokens * times))
    assert many.forward == pytest.approx(times * one.forward)
    assert many.backward == pytest.approx(times * one.backward)
    assert 0 <= many.saved <= max(many.forward, many.backward)
