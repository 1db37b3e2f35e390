"""The peers' formulas against the peers' own code, printed values and unit tests."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.core.catalogue import load_model, model_names
from shardwise.core.model import Model
from shardwise.core.peers import accelerate, cookbook, deepspeed, llm_analysis, megatron
from shardwise.core.peers.llm_analysis import Run
from shardwise.core.peers.megatron import Degrees
from shardwise.core.peers.shape import Decoder, decoder_of
from shardwise.core.peers.table import disagreement
from shardwise.core.scenario import Scenario
from shardwise.core.units import GIB, MIB

LLAMA = Decoder(32, 4096, 32, 8, 128, 14336, True, 128256, False)
GPUS = st.integers(1, 16)


def scenario(model: object = "llama-3-8b", nodes: int = 1, **sections: Any) -> Scenario:
    """Llama-3-8B at 4096 tokens on nodes of eight cards unless said otherwise."""
    cluster = {"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": nodes}
    return Scenario.from_dict({"model": model, "cluster": cluster, **sections})


def rows_of(laid: Scenario) -> dict[str, Any]:
    """The table by peer."""
    return {row.peer: row for row in disagreement(laid)}


# DeepSpeed


@pytest.fixture(scope="module")
def real() -> tuple[Any, Any]:
    """DeepSpeed's own functions for stages 2 and 3."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that deepspeed imports
        pytest.importorskip("deepspeed")
        from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
        from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
    return estimate_zero2_model_states_mem_needs, estimate_zero3_model_states_mem_needs


@given(st.integers(10**6, 10**12), GPUS, GPUS, st.booleans())
def test_stage_2_is_what_deepspeed_computes(
    real: tuple[Any, Any], parameters: int, gpus: int, nodes: int, offload: bool
) -> None:
    """Any size, any cluster: the installed release's numbers to the byte."""
    expected = real[0](parameters, gpus, nodes, offload)
    assert deepspeed.zero2(parameters, gpus, nodes, offload=offload) == expected


@given(st.integers(10**6, 10**12), GPUS, GPUS, *[st.booleans()] * 3)
def test_stage_3_is_what_deepspeed_computes(
    real: tuple[Any, Any],
    parameters: int,
    gpus: int,
    nodes: int,
    offload: bool,
    both: bool,
    zero_init: bool,
) -> None:
    """Any size, cluster and offload: the installed release's numbers to the byte."""
    ours = deepspeed.zero3(
        parameters, parameters // 50, gpus, nodes,
        offload=offload, offload_parameters=both, zero_init=zero_init,
    )  # fmt: skip
    assert ours == real[1](parameters, parameters // 50, gpus, nodes, offload, both, zero_init)[:2]


# (parameters, largest layer, GPUs, nodes, offload, parameters too, zero.Init), printed (CPU, GPU).
# DeepSpeed's documentation, its issue #4527 and runs of the release at the given sizes.
PRINTED_3 = [
    ((2851e6, 32e6, 8, 1, True, True, True), (71.69, 0.12)),
    ((2851e6, 32e6, 8, 1, True, True, False), (127.45, 0.12)),
    ((2851e6, 32e6, 8, 1, True, False, True), (63.72, 0.78)),
    ((2851e6, 32e6, 8, 1, False, False, True), (1.43, 6.09)),
    ((2851e6, 32e6, 8, 1, False, False, False), (127.45, 6.09)),
    ((2783e6, 65e6, 1, 1, True, True, True), (69.98, 0.24)),
    ((2783e6, 65e6, 1, 1, True, False, True), (62.20, 5.43)),
    ((2783e6, 65e6, 1, 1, False, False, True), (0.36, 46.90)),
    ((6805e6, 131e6, 4, 1, True, True, True), (171.12, 0.49)),
    ((6805e6, 131e6, 4, 1, True, False, True), (152.10, 3.66)),
    ((6805e6, 131e6, 4, 1, False, False, True), (2.93, 29.01)),
    ((8030261248, 525336576, 8, 1, True, True, True), (201.93, 1.96)),
    ((8030261248, 525336576, 8, 1, False, False, True), (23.48, 18.78)),
    ((8030261248, 525336576, 8, 4, True, True, True), (50.48, 1.96)),
    ((8030261248, 525336576, 8, 4, True, False, True), (44.87, 2.42)),
    ((8030261248, 525336576, 8, 4, False, False, True), (23.48, 6.16)),
]


@pytest.mark.parametrize(("given_", "printed"), PRINTED_3)
def test_stage_3_prints_what_deepspeed_prints(
    given_: tuple[Any, ...], printed: tuple[float, float]
) -> None:
    """The two figures of each printed line, in GiB with two digits."""
    parameters, largest, gpus, nodes, offload, both, zero_init = given_
    host, gpu = deepspeed.zero3(
        int(parameters), int(largest), gpus, nodes,
        offload=offload, offload_parameters=both, zero_init=zero_init,
    )  # fmt: skip
    assert (round(host / GIB, 2), round(gpu / GIB, 2)) == printed


@pytest.mark.parametrize(
    ("parameters", "gpus", "nodes", "offload", "printed"),
    [
        (2851e6, 8, 1, True, (127.45, 5.31)),
        (2851e6, 8, 1, False, (127.45, 11.28)),
        (8030261248, 8, 1, True, (358.98, 14.96)),
        (8030261248, 8, 1, False, (358.98, 31.78)),
        (8030261248, 8, 4, True, (1435.92, 14.96)),
        (8030261248, 8, 4, False, (358.98, 19.16)),
    ],
)
def test_stage_2_prints_what_deepspeed_prints(
    parameters: float, gpus: int, nodes: int, offload: bool, printed: tuple[float, float]
) -> None:
    """Also where its code and its documentation part, and where its host figure is four nodes'."""
    host, gpu = deepspeed.zero2(int(parameters), gpus, nodes, offload=offload)
    assert (round(host / GIB, 2), round(gpu / GIB, 2)) == printed


@pytest.mark.parametrize(
    "name", ["gpt2", "opt-350m", "falcon-7b", "t5-small", "vit-base", "mamba-130m", "pythia-160m"]
)
def test_the_largest_layer_is_the_one_that_deepspeed_finds(name: str) -> None:
    """The most parameters that one module of the real model registers itself."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    import json

    from shardwise.core.catalogue import data_root

    config = json.loads((data_root() / "models" / f"{name}.json").read_text())
    with torch.device("meta"):
        made = type(transformers.AutoConfig.for_model(config["model_type"])).from_dict(config)
        model = getattr(transformers, config["architectures"][0])._from_config(made)
    expected = max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules())
    assert deepspeed.largest_layer(load_model(name)) == expected


def test_the_estimator_is_asked_for_the_scenarios_stage() -> None:
    """Stage 3 by FSDP2's layout, stage 2 by its own, and none for DDP."""
    three = rows_of(scenario())["DeepSpeed estimator"]
    assert round(three.total_bytes / GIB, 2) == 18.78
    two = rows_of(scenario(layout={"engine": "deepspeed", "zero_stage": 2}))["DeepSpeed estimator"]
    assert round(two.total_bytes / GIB, 2) == 31.78
    none = rows_of(scenario(layout={"engine": "ddp"}))["DeepSpeed estimator"]
    assert none.total_bytes is None
    assert "stage 0" in none.not_applicable
    offload = {"engine": "deepspeed", "zero_stage": 2, "offload": {"optimizer": "cpu"}}
    far = rows_of(scenario(nodes=4, layout=offload))["DeepSpeed estimator"]
    assert round(far.host_bytes / GIB, 2) == 1435.92
    assert any("node" in line for line in far.defects)


# accelerate


@pytest.fixture(scope="module")
def training_usage() -> Any:
    """accelerate's own function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that accelerate imports
        pytest.importorskip("accelerate")
        from accelerate.commands.estimate import estimate_training_usage
    return estimate_training_usage


@given(st.integers(1, 10**12), st.sampled_from(["float32", "float16"]))
def test_training_use_is_what_accelerate_computes(
    training_usage: Any, size: int, dtype: str
) -> None:
    """The installed release's parts, to the byte."""
    assert accelerate.training_bytes(size, dtype) == training_usage(size, dtype)


def test_accelerates_own_test_value_is_reached_less_its_buffers() -> None:
    """bert-base-cased: 433,249,280 bytes in its tests, 8,192 of them position and type ids."""
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "vocab_size": 28996, "max_position_embeddings": 512, "type_vocab_size": 2,
        "hidden_act": "gelu",
    }  # fmt: skip
    model = Model.from_config(config)
    assert 4 * model.parameters + 2 * 8 * 512 == 433_249_280
    training = accelerate.training_bytes(433_249_280, "float32")
    assert round(max(training.values()) / GIB, 2) == 1.61
    half = max(accelerate.training_bytes(433_249_280, "float16").values())
    assert round(half / MIB, 2) == 826.36


# EleutherAI's cookbook: its documentation's examples, printed values in GiB
# (python calc/calc_transformer_mem.py --num-layers=32 --sequence-length=2048 ..., commit 827ee3b).
COOKBOOK = [
    (
        Decoder(32, 4096, 32, 32, 128, 16384, False, 51200, False), 2048, 8,
        {"gpus": 128, "tensor": 2, "zero": 1, "checkpoint": True, "partition": True},
        [34.00, 6.40, 25.60, 0.60, 0.93, 67.53],
    ),
    (
        Decoder(36, 5120, 40, 40, 128, 20480, False, 51200, False), 2048, 8,
        {"gpus": 256, "tensor": 4, "zero": 1, "checkpoint": True, "partition": True},
        [23.91, 5.52, 44.19, 0.52, 0.93, 75.06],
    ),
    (
        Decoder(44, 6144, 64, 64, 96, 24576, False, 51200, False), 2048, 1,
        {"gpus": 1, "zero": 1, "checkpoint": True, "partition": True},
        [17.53, 38.32, 76.65, 229.95, 0, 362.45],
    ),
    (
        Decoder(32, 4096, 32, 32, 128, 14336, False, 51200, False), 4096, 1,
        {"gpus": 1, "zero": 1},
        [97.00, 11.81, 23.63, 70.89, 0, 203.33],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("model", "sequence", "batch", "flags", "printed"), COOKBOOK)
def test_the_cookbooks_examples_come_out(
    model: Decoder, sequence: int, batch: int, flags: dict[str, Any], printed: list[float]
) -> None:
    """Activations, model, gradients, optimizer, communication and total, as the script prints."""
    parts = cookbook.memory(model, sequence, batch, **flags)
    got = [*parts.values(), sum(parts.values())]
    assert [round(size / GIB, 2) for size in got] == pytest.approx(printed, abs=0.0101)


@pytest.mark.parametrize(("stage", "total"), [(0, 151.91), (1, 74.14), (2, 47.91), (3, 36.66)])
def test_the_cookbook_on_llama_by_stage(stage: int, total: float) -> None:
    """Eight GPUs, checkpointed, three linears and a quarter of the key-value heads."""
    layout = {"engine": "deepspeed", "zero_stage": stage}
    row = rows_of(scenario(layout=layout))["EleutherAI cookbook"]
    assert round(row.total_bytes / GIB, 2) == total
    assert round(row.parts["activations"] / GIB, 2) == 17.00


# llm-analysis


def test_llm_analysis_on_llama() -> None:
    """The peak and its terms as the tool gave them for Llama-3-8B, 4096 tokens, no ZeRO."""
    run = Run(4096, 1, data=8)
    parts = llm_analysis.peak(LLAMA, run)
    assert round(sum(parts.values()) / GIB, 1) == 126.8
    held = llm_analysis.states(LLAMA, run)
    layer = 2 * sum(llm_analysis.parameters_of_layer(LLAMA, 1))
    activations = 32 * llm_analysis.activations_of_layer(LLAMA, run)
    activations += 4096 * (2 * 128256 + 6 * 4096)  # logits, the embedding's result, the last norm
    assert round((sum(held.values()) + activations) / GIB, 1) == 146.4
    assert round((layer + 2 * 128256 * 4096) / GIB, 2) == 1.38  # forward prefetch
    assert round(2 * layer / GIB, 2) == 0.81  # backward prefetch


def test_llm_analysis_takes_the_larger_of_two_twice() -> None:
    """A model small enough for paper: 1320 parameters, 2 samples of 4 tokens, 64 cells.

    Activations are 2 layers of attention 2(64 + 256) + 2(128 + 64) + 64, MLP 128 + 512 and norms
    512, then logits 512, input 128 and last norm 256: 5376, more than the gradients' 4 x 1320. Two
    layers of 528 weights prefetched are 2112 bytes, more than the logits.
    """
    model = Decoder(2, 8, 2, 2, 4, 16, False, 32, False)
    parts = llm_analysis.peak(model, Run(4, 2))
    assert list(parts.values()) == [2 * 1320, 12 * 1320, 5376, 2112]


PLAIN = Decoder(32, 4096, 32, 8, 128, 14336, False, 128256, False)
SMALL = Decoder(24, 2048, 16, 16, 128, 8192, False, 50304, False)
GPT3 = Decoder(96, 12288, 96, 96, 128, 49152, False, 51200, True, rmsnorm=False)

# Release 0.2.2 (the last on PyPI; it knows no gated MLP), run once for each line:
#   LLMAnalysis(ModelConfig("m", layers, heads, hidden, vocabulary, max_seq_len=s,
#               num_key_value_heads=kv, ffn_embed_dim=f, expansion_ratio=f / hidden), gpu,
#               DtypeConfig(), ParallelismConfig(tp, pp, dp, 1, sp)).training(
#               batch_size_per_gpu=b, seq_len=s, ds_zero=DSZeRO(z), activation_recomputation=r,
#               flash_attn=flash)
# -> weight, optimizer_state, gradient and activation _memory_per_gpu. Its activations hold logits
# and the last norm (twice with one sample, and no norm with full recomputation), no input.
RELEASED = [
    (PLAIN, Run(4096, 1, data=8), 11251752960, 67510517760, 22503505920, 23207084032),
    (PLAIN, Run(4096, 1, data=8, zero=3), 1406469120, 8438814720, 2812938240, 23207084032),
    (
        PLAIN, Run(4096, 2, data=4, tensor=2, sequence_parallel=2, zero=1),
        5625876480, 8438814720, 11251752960, 22089302016,
    ),
    (
        GPT3, Run(2048, 1, tensor=8, sequence_parallel=8, pipeline=8),
        5593181184, 33559087104, 11186362368, 12478054400,
    ),
    (
        SMALL, Run(2048, 1, data=8, zero=2, flash=False),
        2622164992, 1966623744, 655541248, 10612637696,
    ),
    (
        SMALL, Run(2048, 1, data=8, zero=2, recomputation=4),
        2622164992, 1966623744, 655541248, 613416960,
    ),
    (
        SMALL, Run(2048, 1, data=8, zero=2, recomputation=1),
        2622164992, 1966623744, 655541248, 4170186752,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "run", "weights", "optimizer", "gradients", "activations"), RELEASED
)
def test_llm_analysis_as_released(
    model: Decoder, run: Run, weights: float, optimizer: float, gradients: float, activations: float
) -> None:
    """States to the byte (its newer code keeps norms whole under TP), activations a layer too."""
    held = llm_analysis.states(model, run)
    norms = 2 * 2 * model.hidden * int(model.layers / run.pipeline) * (1 - 1 / run.tensor)
    assert held["weights"] - norms == weights
    assert held["optimizer state"] == optimizer
    assert held["gradients"] == gradients
    tokens = run.sequence * run.batch
    ends = 2 * model.vocabulary * tokens / run.tensor
    if run.recomputation != 4:
        ends += 4 * tokens * model.hidden / run.sequence_parallel
    layers = model.layers * llm_analysis.activations_of_layer(model, run)
    assert layers + ends * (2 if run.batch == 1 else 1) == activations


# Megatron-LM


def test_megatrons_own_unit_test() -> None:
    """Its test: TP-sharded 352, replicated 36 and routed 64 parameters on a rank, 3195 bytes."""
    model = Decoder(
        2, 8, 2, 2, 4, 16, False, 32, True, experts=4, experts_per_token=1,
        expert_feed_forward=16, shared_feed_forward=8, pattern=(False, True),
    )  # fmt: skip
    degrees = Degrees(data=16, tensor=2, pipeline=2, expert=2, expert_tensor=4)
    assert degrees.expert_data == 4
    assert megatron.weights_and_optimizer(model, degrees) == 352 * 6.75 + 36 * 6.75 + 64 * 9 == 3195


# Runs of the formula, MiB: (tensor, pipeline, data) -> weights and optimizer, activations.
@pytest.mark.parametrize(
    ("tensor", "pipeline", "states", "activations"),
    [
        (1, 1, 57436.90, 18468.03),
        (2, 1, 34463.29, 9234.02),
        (4, 1, 22977.05, 4617.01),
        (8, 1, 17235.07, 2308.50),
        (1, 2, 34462.14, 16416.06),
    ],
)
def test_megatron_on_llama_by_degree(
    tensor: int, pipeline: int, states: float, activations: float
) -> None:
    """Llama-3-8B on eight GPUs with the distributed optimizer, sequence parallel and selective."""
    layout = {
        "engine": "megatron", "zero_stage": 1, "tensor_parallel": tensor,
        "sequence_parallel": tensor > 1, "pipeline_parallel": pipeline,
    }  # fmt: skip
    row = rows_of(scenario(layout=layout))["Megatron-LM formula"]
    assert round(row.parts["weights and optimizer"] / MIB, 2) == pytest.approx(states, abs=0.011)
    assert round(row.parts["activations"] / MIB, 2) == pytest.approx(activations, abs=0.011)


def test_megatron_on_gpt3() -> None:
    """GPT-3 175B, TP 8 x PP 8, 2048 tokens: 48016.18 + 9816.02 MiB."""
    degrees = Degrees(data=1, tensor=8, pipeline=8)
    states = megatron.weights_and_optimizer(GPT3, degrees)
    assert round(states / MIB, 2) == 48016.18
    acts = megatron.activations(GPT3, 2048, 1, degrees, 8, split=True)
    assert round(acts / MIB, 2) == 9816.02


# compute_activation_memory and compute_activation_memory_without_sp, run once with Llama-3-8B's
# sizes and 4096 tokens: (tensor, pipeline, virtual, micro-batches, micro-batch size),
# MiB with and without sequence parallelism.
BOTH_FORMULAS = [
    ((1, 1, 1, 1, 1), 18468.03, 19380.93),
    ((2, 1, 1, 1, 2), 18468.03, 24807.37),
    ((4, 2, 1, 8, 1), 4104.02, 8635.27),
    ((2, 4, 1, 2, 1), 4112.03, 5947.27),
    ((2, 4, 2, 8, 1), 11308.09, 16354.98),
]


@pytest.mark.parametrize(("asked", "split", "whole"), BOTH_FORMULAS)
def test_megatrons_two_activation_formulas(
    asked: tuple[int, int, int, int, int], split: float, whole: float
) -> None:
    """Pipelines with few micro-batches and interleaved ones among them."""
    tensor, pipeline, virtual, micro_batches, batch = asked
    degrees = Degrees(tensor=tensor, pipeline=pipeline, virtual=virtual)
    for expected, mode in ((split, True), (whole, False)):
        size = megatron.activations(LLAMA, 4096, batch, degrees, micro_batches, split=mode)
        assert round(size / MIB, 2) == expected


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3-70b", "mistral-nemo-12b", "mixtral-8x7b"])
def test_megatrons_count_is_the_models(name: str) -> None:
    """Without parallelism 18 bytes for each parameter that transformers has, to the byte."""
    model = decoder_of(load_model(name))
    assert isinstance(model, Decoder)
    whole = Degrees(distributed_optimizer=False)
    assert megatron.weights_and_optimizer(model, whole) == 18 * load_model(name).parameters


# The table


def test_the_same_question_gets_answers_from_60_to_153_gib() -> None:
    """Llama-3-8B, mixed precision, AdamW, one replica a GPU, 4096 tokens: the headline case."""
    rows = rows_of(scenario(layout={"engine": "ddp"}))
    totals = {
        peer: row.total_bytes and round(row.total_bytes / GIB, 2) for peer, row in rows.items()
    }
    assert totals.pop("Shardwise") == round(
        sw.estimate(scenario(layout={"engine": "ddp"})).peak_bytes / GIB, 2
    )
    assert totals == {
        "DeepSpeed estimator": None,
        "accelerate estimate-memory": 59.83,
        "EleutherAI cookbook": 151.91,
        "llm-analysis": 126.79,
        "Megatron-LM formula": 152.65,
    }


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("stage", [0, 3])
def test_every_catalogue_model_gets_a_table(name: str, stage: int) -> None:
    """A total or a reason for each peer, parts that add up, sentences that end."""
    rows = disagreement(
        scenario(name, layout={"engine": "deepspeed", "zero_stage": stage}, training={})
    )
    assert rows[0].peer == "Shardwise"
    for row in rows:
        assert (row.total_bytes is None) == bool(row.not_applicable)
        assert row.version
        for line in (*row.leaves_out, *row.defects, row.not_applicable or "."):
            assert line.endswith(".")
        if row.total_bytes is None:
            continue
        assert row.total_bytes > 0
        assert row.setting
        whole = max if row.peer.startswith("accelerate") else sum
        assert row.total_bytes == pytest.approx(whole(row.parts.values()))


@pytest.mark.parametrize("name", ["vit-base", "mamba-130m", "t5-small", "whisper-large-v3"])
def test_models_that_formulas_do_not_know_are_refused_with_a_reason(name: str) -> None:
    """Formulas for decoders are not put to encoders, pictures or state spaces."""
    rows = rows_of(scenario(name, training={"precision": "bf16"}))
    for peer in ("EleutherAI cookbook", "llm-analysis", "Megatron-LM formula"):
        assert rows[peer].total_bytes is None
        assert "formula knows" in rows[peer].not_applicable
    assert rows["accelerate estimate-memory"].total_bytes


def test_what_is_left_out_depends_on_the_scenario() -> None:
    """Tensor and pipeline parallelism, offload and checkpointing are named where they matter."""
    layout = {
        "engine": "deepspeed", "zero_stage": 1, "tensor_parallel": 2, "pipeline_parallel": 2,
        "offload": {"optimizer": "cpu"},
    }  # fmt: skip
    training = {"activation_checkpointing": "full", "global_batch": 64}
    rows = rows_of(scenario(layout=layout, training=training))
    book = rows["EleutherAI cookbook"]
    assert any("PP" in line for line in book.defects)
    assert any("Full checkpointing" in line for line in book.leaves_out)
    assert any("Offload" in line for line in rows["Megatron-LM formula"].leaves_out)
    plain = rows_of(scenario())["EleutherAI cookbook"]
    assert not any("PP" in line or "Offload" in line for line in plain.defects + plain.leaves_out)


def test_the_cookbooks_flag_is_explained_where_nothing_is_recomputed() -> None:
    """Its only flag that drops scores is asked for FlashAttention too, and the row says so."""
    plain = rows_of(scenario())["EleutherAI cookbook"].setting
    assert "--checkpoint-activations" in plain
    assert "nothing is recomputed: its flag stands for flash attention" in plain
    recomputed = {"activation_checkpointing": "full"}
    asked = rows_of(scenario(training=recomputed))["EleutherAI cookbook"].setting
    assert "--checkpoint-activations" in asked and "nothing is recomputed" not in asked
    kept = rows_of(scenario(training={"attention": "eager"}))["EleutherAI cookbook"].setting
    assert "checkpoint" not in kept


def test_adapters_are_unknown_to_every_peer() -> None:
    """With LoRA each total says first that it is full training's; without, none does."""
    lora = {"trainable": {"lora": {"rank": 16, "targets": ["q_proj"]}}}
    for row in disagreement(scenario(training=lora))[1:]:
        assert row.leaves_out[0].startswith("Adapters")
    assert not any("Adapters" in r.leaves_out[0] for r in disagreement(scenario())[1:])
