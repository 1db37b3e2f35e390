"""Activations against the published formulas and against traces of real modules."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.core.catalogue import data_root, load_model
from shardwise.core.memory.activations import (
    Kernel,
    Saved,
    Tokens,
    block_saved,
    kept_bytes,
    recomputed_bytes,
)
from shardwise.core.structure import BlockShape

# Korthikanti et al. 2022, table 3: heads, hidden size, micro-batch; sequence 2048, t = 8.
MODELS = {
    "22B": (64, 6144, 4),
    "175B": (96, 12288, 1),
    "530B": (128, 20480, 1),
    "1T": (160, 25600, 1),
}
SEQUENCE = 2048
shapes = pytest.mark.parametrize(("heads", "hidden", "batch"), MODELS.values(), ids=MODELS)


def gpt(heads: int, hidden: int) -> BlockShape:
    """A GPT block of the paper: MLP of 4h, dropout everywhere, LayerNorm with bias."""
    return BlockShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        value_head_dim=hidden // heads,
        intermediate=4 * hidden,
        norm="layernorm",
        dropout=0.1,
        attention_dropout=0.1,
    )


def saved(
    heads: int,
    hidden: int,
    batch: int,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
    attention: str = "math",
) -> Saved:
    """What one block of the paper keeps, with 16-bit elements."""
    kernel = Kernel(2, tensor, sequence_parallel, attention, "megatron")
    return block_saved(gpt(heads, hidden), Tokens(batch, SEQUENCE, SEQUENCE), kernel)


@shapes
def test_a_block_keeps_34_and_5as_over_h(heads: int, hidden: int, batch: int) -> None:
    """Equation 1: s b h (34 + 5 a s / h)."""
    unit, scores = SEQUENCE * batch * hidden, 5 * heads * SEQUENCE / hidden
    assert saved(heads, hidden, batch).total == pytest.approx(unit * (34 + scores), rel=1e-12)


@shapes
@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_tensor_parallelism_splits_24_of_the_34(
    heads: int, hidden: int, batch: int, tensor: int
) -> None:
    """Equation 2: s b h (10 + 24/t + 5 a s / (h t))."""
    unit, scores = SEQUENCE * batch * hidden, 5 * heads * SEQUENCE / hidden
    expected = unit * (10 + 24 / tensor + scores / tensor)
    assert saved(heads, hidden, batch, tensor=tensor).total == pytest.approx(expected, rel=1e-12)


@shapes
@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_sequence_parallelism_splits_everything(
    heads: int, hidden: int, batch: int, tensor: int
) -> None:
    """Equation 4: s b h (34 + 5 a s / h) / t."""
    split = saved(heads, hidden, batch, tensor=tensor, sequence_parallel=True)
    assert split.total == pytest.approx(saved(heads, hidden, batch).total / tensor, rel=1e-12)


@shapes
@pytest.mark.parametrize("tensor", [1, 8])
def test_selective_recomputation_keeps_34(heads: int, hidden: int, batch: int, tensor: int) -> None:
    """Equation 6: 34 s b h / t a layer, whatever the sequence's square."""
    block = saved(heads, hidden, batch, tensor=tensor, sequence_parallel=tensor > 1)
    expected = 34 * SEQUENCE * batch * hidden / tensor
    assert kept_bytes(block, "selective") == pytest.approx(expected, rel=1e-12)


@shapes
def test_full_recomputation_keeps_the_blocks_input(heads: int, hidden: int, batch: int) -> None:
    """Table 2: 2 s b h; with sequence parallelism the input is split as well."""
    unit = SEQUENCE * batch * hidden
    assert kept_bytes(saved(heads, hidden, batch), "full") == 2 * unit
    assert kept_bytes(saved(heads, hidden, batch, tensor=8), "full") == 2 * unit
    split = saved(heads, hidden, batch, tensor=8, sequence_parallel=True)
    assert kept_bytes(split, "full") == 2 * unit / 8


@pytest.mark.parametrize(("name", "ratio", "saving"), [("175B", 80, 0.70), ("530B", 64, 0.65)])
def test_scores_are_most_of_a_large_gpt(name: str, ratio: float, saving: float) -> None:
    """Section 5: 5as/h is 80 for GPT-3 and 64 for MT-NLG, so selective saves 70 % and 65 %."""
    heads, hidden, batch = MODELS[name]
    block = saved(heads, hidden, batch)
    assert block.score_bytes / (SEQUENCE * batch * hidden) == pytest.approx(ratio)
    assert 1 - kept_bytes(block, "selective") / block.total == pytest.approx(saving, abs=0.006)


def test_with_flash_attention_selective_saves_next_to_nothing() -> None:
    """A fused kernel stores no scores: selective recomputation gains less than 2 %, not 70 %.

    NVIDIA/Megatron-LM#1225 measured 25.52 to 24.94 GB.
    """
    heads, hidden, batch = MODELS["175B"]
    block = saved(heads, hidden, batch, attention="flash")
    assert kept_bytes(block, "selective") > 0.98 * block.total
    assert block.total < 0.31 * saved(heads, hidden, batch).total


def traced_layer(architecture: str) -> str:
    """The traced formula of one decoder layer, as Python."""
    text = (data_root() / "traces" / "ACTIVATIONS.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {architecture}\n")[1].split("\n## ")[0]
    found = re.search(r"\*\*layer\*\*[^`]*`([^`]+)` bytes", section)
    assert found is not None
    return re.sub(r"(?<=\d)(?=[a-z])", "*", found[1].replace("·", "*"))


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "llama-3-8b"),
        ("llama", "llama-2-7b"),
        ("llama", "llama-3-70b"),
        ("mistral", "mistral-7b"),
        ("qwen2", "qwen2.5-0.5b"),
        ("qwen2", "qwen2.5-7b"),
        ("qwen3", "qwen3-8b"),
        ("phi3", "phi-4"),
        ("gpt_neox", "pythia-1.4b"),
        ("bert", "bert-large"),
        ("gpt2", "gpt2-xl"),
        ("opt", "opt-1.3b"),
    ],
)
@pytest.mark.parametrize(("batch", "length"), [(1, 2048), (3, 512)])
def test_transformers_layers_agree_with_their_trace(
    architecture: str, name: str, batch: int, length: int
) -> None:
    """The formula is the traced one but for 24 bytes of the kernel's random-number state."""
    shape = load_model(name).block_groups[0][0]
    names = {
        "b": batch, "s": length, "h": shape.hidden, "a": shape.heads, "kv": shape.kv_heads,
        "d": shape.head_dim, "f": shape.intermediate,
    }  # fmt: skip
    traced = eval(traced_layer(architecture), {"__builtins__": {}}, names)
    kernel = Kernel(2, 1, False, "flash", "transformers")
    ours = block_saved(shape, Tokens(batch, length, length), kernel).total
    assert traced - ours == 24


def test_fused_modules_keep_about_half_of_the_norms() -> None:
    """torchtitan's fused RMSNorm keeps its 16-bit input and a rsqrt: 4h for two norms, not 12h."""
    shape = load_model("llama-3-8b").block_groups[0][0]
    tokens = Tokens(1, 4096, 4096)
    by_code = {
        code: dict(block_saved(shape, tokens, Kernel(2, 1, False, "flash", code)).operators)
        for code in ("transformers", "torchtitan", "megatron", "compiled")
    }
    unit = 4096 * shape.hidden
    assert by_code["transformers"]["norms"] == 12 * unit + 2 * 4 * 4096
    assert by_code["torchtitan"]["norms"] == by_code["compiled"]["norms"] == 4 * unit + 2 * 4 * 4096
    assert by_code["megatron"]["norms"] == 4 * unit
    assert by_code["megatron"]["MLP"] < by_code["torchtitan"]["MLP"]


def test_routed_experts_do_not_shrink_with_expert_parallelism() -> None:
    """Expert activations follow top-k and the expert's width; no degree of EP divides them.

    NVIDIA/Megatron-LM#1784 divided by EP and took it back: tokens are traded, not removed.
    """
    shape = load_model("qwen3-30b-a3b").block_groups[0][0]
    assert (shape.experts, shape.experts_per_token, shape.expert_intermediate) == (128, 8, 768)
    block = block_saved(shape, Tokens(1, 4096, 4096), Kernel(2, 1, False, "flash", "transformers"))
    operators = dict(block.operators)
    assert operators["expert inputs"] == 2 * 4096 * 8 * 2048
    assert operators["experts"] == 2 * 4096 * 8 * 4 * 768


KERNELS = st.builds(
    Kernel,
    st.sampled_from([2, 4]),
    st.just(1),
    st.just(False),
    st.sampled_from(["flash", "math", "eager"]),
    st.sampled_from(["transformers", "torchtitan", "megatron", "compiled"]),
)


@given(
    st.sampled_from(
        ["llama-3-8b", "gpt2", "mixtral-8x7b", "t5-small", "deepseek-v3", "mamba-130m"]
    ),
    st.integers(1, 64),
    st.integers(1, 8192),
    KERNELS,
)
def test_checkpointing_never_adds(name: str, batch: int, length: int, kernel: Kernel) -> None:
    """full <= selective <= none, and what was dropped plus what was kept is everything."""
    for shape, _ in load_model(name).block_groups:
        block = block_saved(shape, Tokens(batch, length, length), kernel)
        full, selective, none = (kept_bytes(block, kind) for kind in ("full", "selective", "none"))
        assert 0 < full <= selective <= none == block.total
        for kind in ("full", "selective", "none"):
            assert kept_bytes(block, kind) + recomputed_bytes(block, kind) == block.total
        assert all(size > 0 for _, size in block.operators)
