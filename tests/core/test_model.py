"""The table of tensors: public counts, active parameters, block shapes, totals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.core.errors import ScenarioError
from shardwise.core.model import BlockShape, Model, Module, Tensor

CATALOGUE = Path(__file__).parents[2] / "data" / "models"
NAMES = sorted(path.stem for path in CATALOGUE.glob("*.json"))


PARTS = {
    "embedding",
    "position",
    "attention",
    "mlp",
    "experts",
    "router",
    "norm",
    "head",
    "other",
}
CUTS = {"column", "row", "vocabulary", "expert", "replicated"}


def read(name: str) -> dict[str, Any]:
    """The config of one catalogue model."""
    return json.loads((CATALOGUE / f"{name}.json").read_text())


def load(name: str, **changes: Any) -> Model:
    """A catalogue model, with some fields changed."""
    return Model.from_config(read(name) | changes, name)


# Exact counts as model pages, issue threads or other people's code state them; they were looked up,
# so they also say that the file in the catalogue has the sizes of the model it is named after.
PUBLIC_COUNTS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "gpt-oss-20b": 20_914_757_184,
    "gemma-2-9b": 9_241_705_984,
    "gpt2": 124_439_808,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "bloom-176b": 176_247_271_424,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "bert-base": 109_514_298,
    "vit-base": 86_567_656,
    "whisper-large-v3": 1_543_490_560,
    "mamba-130m": 129_135_360,
    "mamba-2.8b": 2_768_345_600,
    "llama-4-scout": 108_641_793_536,
    "llama-4-maverick": 401_583_781_376,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-4b": 4_300_079_472,
    "gemma-3-12b": 12_187_325_040,
    "gemma-3-27b": 27_432_406_640,
    "gpt2-xl": 1_557_611_200,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x22b": 140_620_634_112,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-235b-a22b": 235_093_634_560,
    "tinyllama-1.1b": 1_100_048_384,
    "yi-34b": 34_388_917_248,
}


@pytest.mark.parametrize(("name", "count"), PUBLIC_COUNTS.items())
def test_totals_are_the_public_exact_counts(name: str, count: int) -> None:
    """The total is the one that is published for the model."""
    assert load(name).parameters == count


def test_deepseek_v3_differs_from_its_checkpoint_by_the_router_buffers() -> None:
    """671,026,419,200 numbers are stored; 58 layers x 256 of them are a buffer, not parameters."""
    assert load("deepseek-v3").parameters == 671_026_419_200 - 58 * 256


BARE = [
    ("gpt-j-6b", "GPTJModel", 5_844_393_984),
    ("bert-base", "BertModel", 109_482_240),
    ("bert-large", "BertModel", 335_141_888),
]


@pytest.mark.parametrize(("name", "architecture", "count"), BARE)
def test_the_class_decides_whether_the_head_counts(
    name: str, architecture: str, count: int
) -> None:
    """The bare class has the published backbone count; the head is 3 % of GPT-J-6B."""
    assert load(name, architectures=[architecture]).parameters == count


ACTIVE = {
    "mixtral-8x7b": 12_879_925_248,
    "qwen3-30b-a3b": 3_353_032_704,
    "gpt-oss-20b": 4_187_440_704,
}


@pytest.mark.parametrize(("name", "count"), ACTIVE.items())
def test_active_parameters_leave_out_idle_experts(name: str, count: int) -> None:
    """A token meets its chosen experts and everything that is not a routed expert."""
    assert load(name).active_parameters == count


def test_deepseek_v3_activates_37_billion() -> None:
    """671.03 B in memory, 37.55 B for each token."""
    assert round(load("deepseek-v3").active_parameters / 1e9, 2) == 37.55


@pytest.mark.parametrize("name", NAMES)
def test_parts_modules_and_tensors_agree(name: str) -> None:
    """Every way of adding up gives the total; names are unique; active is never more."""
    model = load(name)
    assert sum(model.parameters_by_part.values()) == model.parameters
    assert sum(tensor.elements for tensor in model.tensors) == model.parameters
    assert len({tensor.name for tensor in model.tensors}) == len(model.tensors)
    assert len({module.name for module in model.modules}) == len(model.modules)
    assert 0 < model.active_parameters <= model.parameters
    assert (model.active_parameters < model.parameters) == any(
        module.block.experts for module in model.blocks if module.block
    )
    assert sum(count for _, count in model.block_groups) == model.layers == len(model.blocks)
    assert model.largest_layer.parameters == max(module.parameters for module in model.modules)


@pytest.mark.parametrize("name", NAMES)
def test_words_are_those_agreed(name: str) -> None:
    """Parts, cuts and kinds come from the agreed vocabulary; blocks, and only they, have shapes."""
    model = load(name)
    for module in model.modules:
        assert module.kind in ("embedding", "block", "head", "norm", "other")
        assert (module.kind == "block") == (module.block is not None)
    for tensor in model.tensors:
        assert tensor.part in PARTS
        assert tensor.tensor_parallel in CUTS
        assert tensor.tensor_parallel != "row" or len(tensor.shape) == 2
        assert (tensor.tensor_parallel == "expert") == (tensor.part == "experts")


@pytest.mark.parametrize("name", NAMES)
def test_block_shapes_reproduce_the_matrices(name: str) -> None:
    """Attention's and the MLP's elements follow from the block's shape alone."""
    for module in load(name).blocks:
        shape = module.block
        assert shape is not None
        mlp = sum(t.elements for t in module.tensors if t.part == "mlp" and len(t.shape) > 1)
        width = shape.intermediate + shape.shared_intermediate
        if shape.attention:
            assert mlp == (3 if shape.gated else 2) * shape.hidden * width
        experts = sum(t.elements for t in module.tensors if t.part == "experts" and t.shape[2:])
        assert experts == 3 * shape.hidden * shape.expert_intermediate * shape.experts
        assert shape.attention == (shape.heads > 0)
        if shape.attention and not shape.kv_lora_rank:
            weights = sum(
                t.elements for t in module.tensors if t.part == "attention" and len(t.shape) > 1
            )
            one = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
            if name.startswith("qwen3-next"):  # the query projection makes each head's gate too
                one += shape.hidden * shape.head_dim * shape.heads
            assert weights == one * (2 if shape.cross_attention else 1)


def shapes(name: str) -> list[BlockShape]:
    """The block shapes of a catalogue model."""
    return [module.block for module in load(name).blocks if module.block is not None]


def test_deepseek_starts_with_dense_layers() -> None:
    """DeepSeek-V3: three dense layers, then 58 with 256 experts, a shared one and latent ranks."""
    (dense, first), (sparse, rest) = load("deepseek-v3").block_groups
    assert (first, rest) == (3, 58)
    assert (dense.intermediate, dense.experts) == (18432, 0)
    assert (sparse.experts, sparse.experts_per_token) == (256, 8)
    assert (sparse.expert_intermediate, sparse.shared_intermediate) == (2048, 2048)
    assert (sparse.q_lora_rank, sparse.kv_lora_rank, sparse.rope_head_dim) == (1536, 512, 64)
    assert (sparse.head_dim, sparse.value_head_dim, sparse.kv_heads) == (192, 128, 128)


def test_maverick_interleaves_dense_and_sparse_layers() -> None:
    """Llama 4 Maverick: experts in every second layer, no rotary embedding in every fourth."""
    text = [shape for shape in shapes("llama-4-maverick") if shape.tokens == "sequence"]
    assert [shape.experts for shape in text] == [0, 128] * 24
    assert [shape.rotary for shape in text] == [True, True, True, False] * 12
    vision = [shape for shape in shapes("llama-4-maverick") if shape.tokens == "image"]
    assert len(vision) == 34
    assert load("llama-4-maverick").fixed_sequence == (336 // 14) ** 2 + 1


def test_gemma_3_mixes_windows() -> None:
    """Gemma-3-1b: five layers of 512 tokens, one that sees everything."""
    windows = [shape.sliding_window for shape in shapes("gemma-3-1b")]
    assert windows[:6] == [512] * 5 + [0]
    assert windows.count(0) == 4


def test_encoder_and_decoder_blocks_differ() -> None:
    """T5: 24 bidirectional blocks, then 24 causal ones with cross attention."""
    (encoder, first), (decoder, rest) = load("t5-3b").block_groups
    assert (first, rest) == (24, 24)
    assert (encoder.causal, encoder.cross_attention, encoder.tokens) == (False, False, "encoder")
    assert (decoder.causal, decoder.cross_attention, decoder.tokens) == (True, True, "sequence")
    assert load("t5-3b").heads == 32
    assert (encoder.head_dim, encoder.hidden) == (128, 1024)


def test_fixed_lengths_come_from_the_architecture() -> None:
    """ViT-B/16 sees 197 tokens, Whisper's encoder 1,500 frames, LLaMA what you ask for."""
    assert load("vit-base").fixed_sequence == 197
    assert load("whisper-large-v3").fixed_sequence == 1500
    assert load("llama-3-8b").fixed_sequence == 0


def test_a_model_without_attention_has_no_heads() -> None:
    """Mamba: heads are 0, and no block has attention."""
    model = load("mamba-2.8b")
    assert (model.heads, model.kv_heads) == (0, 0)
    assert not any(shape.attention for shape in shapes("mamba-2.8b"))


def test_parallel_blocks_and_position_kinds() -> None:
    """GPT-J and Falcon are parallel; GPT-2 and BLOOM have no rotary embedding."""
    assert shapes("gpt-j-6b")[0].parallel
    assert shapes("falcon-40b")[0].parallel
    assert not shapes("llama-3-8b")[0].parallel
    assert [shapes(name)[0].rotary for name in ("gpt2", "bloom-560m", "llama-3-8b")] == [
        False,
        False,
        True,
    ]


def test_largest_layer_names_what_must_be_gathered() -> None:
    """The embedding is largest in Gemma-2-2b, a block in LLaMA-2-70B, an MoE block in Mixtral."""
    assert load("gemma-2-2b").largest_layer.name == "model.embed_tokens"
    assert load("llama-2-70b").largest_layer.kind == "block"
    assert load("mixtral-8x7b").largest_layer.block.experts == 8  # type: ignore[union-attr]


def test_a_tied_head_counts_once() -> None:
    """A tied model has no head of its own; untying it adds one table."""
    tied, free = load("qwen2.5-0.5b"), load("qwen2.5-0.5b", tie_word_embeddings=False)
    assert tied.tied
    assert not any(module.kind == "head" for module in tied.modules)
    assert free.parameters - tied.parameters == 151_936 * 896


def test_explicit_head_dim_needs_no_divisible_hidden_size() -> None:
    """1792 hidden, 24 heads of 128: accepted, as the heads need not fill the hidden size."""
    changes = {"hidden_size": 1792, "num_attention_heads": 24, "head_dim": 128}
    model = load("llama-3-8b", **changes)
    assert model.tensors[1].shape == (24 * 128, 1792)


def test_what_a_config_leaves_open_is_said() -> None:
    """Defaults that change the count stand in one sentence that names the config class."""
    assert load("llama-3-8b").assumptions == ()
    (sentence,) = load("llama-2-7b").assumptions
    assert "LlamaConfig" in sentence
    assert "attention_bias = false" in sentence
    assert any("fp8" in sentence for sentence in load("deepseek-v3").assumptions)
    assert any("GPT2LMHeadModel" in s for s in load("gpt2", architectures=None).assumptions)


def test_an_unknown_head_of_a_known_family_is_said() -> None:
    """The body is exact, the head is not, so the model is not called known."""
    model = load("llama-3-8b", architectures=["LlamaForTimeTravel"])
    assert not model.known
    assert any("LlamaForTimeTravel" in sentence for sentence in model.assumptions)


def test_an_unknown_model_type_with_a_known_class_is_exact() -> None:
    """A fork's model_type is read by the class it names, and that is said."""
    model = load("deepseek-v3", model_type="kimi_k2")
    assert model.known
    assert model.parameters == load("deepseek-v3").parameters
    assert any("kimi_k2" in sentence for sentence in model.assumptions)


def test_an_unknown_architecture_is_a_stated_llama() -> None:
    """Fields found are used, the rest takes LLaMA's proportions, and every sentence says so."""
    config = {"model_type": "nonesuch", "n_embd": 512, "n_layer": 4, "vocab_size": 1000}
    model = Model.from_config(config)
    assert not model.known
    assert (model.hidden, model.layers, model.heads) == (512, 4, 4)
    text = " ".join(model.assumptions)
    assert "nonesuch" in text
    assert "LLaMA-like" in text
    assert "intermediate_size = 1536" in text
    assert "num_key_value_heads = 4" in text


def test_an_unknown_mixture_counts_its_experts() -> None:
    """Experts of an unknown model are counted as Mixtral's are."""
    config = {
        "model_type": "nonesuch_moe",
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "vocab_size": 1000,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    }
    model = Model.from_config(config)
    assert [module.block.experts for module in model.blocks if module.block] == [0, 8, 8, 8]
    assert model.parameters_by_part["experts"] == 3 * 8 * 3 * 512 * 256


def test_the_text_part_of_an_unknown_multimodal_model_is_counted() -> None:
    """Only the decoder of a nested config counts, and the model says so."""
    text = {k: v for k, v in read("llama-3-8b").items() if k != "architectures"}
    config = {"model_type": "nonesuch_vl", "text_config": text, "vision_config": {"depth": 32}}
    model = Model.from_config(config)
    assert model.parameters == load("llama-3-8b").parameters
    assert not model.known
    assert any("text_config" in sentence for sentence in model.assumptions)


@given(st.integers(10**6, 10**14))
def test_parameters_only_is_exact(parameters: int) -> None:
    """The stated shape sums to exactly the number, with a leftover below 15 % of it."""
    model = Model.from_parameters(parameters)
    assert model.parameters == parameters
    assert not model.known
    assert len(model.assumptions) == 1
    assert model.parameters_by_part.get("other", 0) < 0.15 * parameters
    assert model.heads % model.kv_heads == 0
    assert all(size >= 0 for tensor in model.tensors for size in tensor.shape)
    assert model.blocks[0].block.intermediate > 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("parameters", "hidden", "layers"),
    [(7e9, 4096, 32), (13e9, 5120, 40), (70e9, 8192, 88), ("7B", 4096, 32)],
)
def test_parameters_only_has_familiar_shapes(
    parameters: float | str, hidden: int, layers: int
) -> None:
    """7B and 13B come out with LLaMA's own hidden size and depth."""
    model = Model.from_parameters(parameters)
    assert (model.hidden, model.layers) == (hidden, layers)


@pytest.mark.parametrize("parameters", [0, -7e9, 1e5, 1e15, float("nan"), "seven", True, "7 0 0"])
def test_parameters_only_refuses_what_is_no_size(parameters: Any) -> None:
    """One sentence that names the field and the range."""
    with pytest.raises(ScenarioError, match="parameters"):
        Model.from_parameters(parameters)


def test_models_are_values() -> None:
    """Equal configs give equal models with equal hashes; another field gives another model."""
    assert load("gpt2") == load("gpt2")
    assert hash(load("gpt2")) == hash(load("gpt2"))
    assert load("gpt2") != load("gpt2", n_layer=11)
    assert Module("a", "other", (Tensor("a.b", (2, 3), "other", "replicated"),)).parameters == 6


def test_totals_are_computed_once() -> None:
    """The estimator asks often, so every aggregate is kept with the model."""
    model = load("deepseek-v3")
    assert model.tensors is model.tensors
    assert model.block_groups is model.block_groups
    assert model.parameters_by_part is model.parameters_by_part
    assert model.largest_layer is model.largest_layer


def test_the_catalogue_s_table_states_each_model_and_its_count() -> None:
    """data/models/README.md lists every file with the count that it gives."""
    table = (CATALOGUE / "README.md").read_text()
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    stated = {row[0].removeprefix("| "): row[3] for row in rows}
    assert stated == {name: f"{load(name).parameters:,}" for name in NAMES}
