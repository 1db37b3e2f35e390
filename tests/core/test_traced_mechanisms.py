"""Mechanisms of torch and transformers that the traces brought to light, by their sources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardwise.core.catalogue import data_root
from shardwise.core.memory import estimate
from shardwise.core.memory.operators.attention import attention_kernel, softmax_bytes
from shardwise.core.memory.operators.mlp import mlp_widths
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.model import Model
from shardwise.core.permalink import from_query, to_query
from shardwise.core.scenario import Scenario
from shardwise.core.structure import BlockShape

VOCABULARY, HIDDEN, PARAMETERS = 128_256, 4096, 8_030_261_248  # meta-llama/Meta-Llama-3-8B
BLOOM = {"model_type": "bloom", "vocab_size": 50001, "hidden_size": 1152, "n_layer": 3, "n_head": 9}
BLOOM |= {"attention_dropout": 0.1, "hidden_dropout": 0.1}


def llama(gpus: int = 8, layout: dict[str, Any] | None = None, **training: Any) -> Scenario:
    """Llama-3-8B on H100s, FSDP2 with fp32 shards unless said otherwise."""
    return Scenario.from_dict(
        {
            "model": "llama-3-8b",
            "cluster": {
                "gpu": "h100-sxm-80gb",
                "gpus_per_node": min(gpus, 8),
                "nodes": max(1, gpus // 8),
            },
            "training": {"precision": "fsdp-mixed", "sequence_length": 1024, **training},
            "layout": layout or {},
        }
    )


def tensor_parallel(split: bool) -> Scenario:
    """Eight tensor ranks in bf16, without sharding."""
    layout = {"engine": "ddp", "tensor_parallel": 8, "vocabulary_parallel": split}
    return llama(8, layout, precision="bf16")


def test_transformers_plan_keeps_the_embedding_whole() -> None:
    """`base_model_tp_plan` names no embedding: seven eighths of it more on each of eight ranks."""
    split, whole = (
        estimate(tensor_parallel(value)).phases["between steps"] for value in (True, False)
    )
    more = whole["parameters"] - split["parameters"]
    assert more == 2 * VOCABULARY * HIDDEN * 7 / 8


def test_logits_are_whole_without_vocabulary_parallelism() -> None:
    """transformers gathers logits: 10 bytes a cell in forward; `loss_parallel` has 14 an eighth."""
    split, whole = (estimate(tensor_parallel(value)).phases["forward"] for value in (True, False))
    cells = 1024 * VOCABULARY
    assert whole["logits and loss"] == 10 * cells
    assert split["logits and loss"] == 14 * cells / 8


def test_a_split_embedding_has_a_whole_gradient() -> None:
    """DTensor's embedding backward makes all rows, and the slice keeps them (traced)."""
    parts = estimate(tensor_parallel(True)).phases["optimizer step"]
    extra = parts["gradients"] - parts["parameters"]
    assert extra == 2 * VOCABULARY * HIDDEN * 7 / 8


@pytest.mark.parametrize("split", [True, False])
def test_vocabulary_parallel_survives_dict_and_link(split: bool) -> None:
    """The field comes back from `to_dict` and from a permalink."""
    scenario = tensor_parallel(split)
    assert Scenario.from_dict(scenario.to_dict()) == scenario
    opened = from_query(to_query(scenario))
    assert opened.scenario == scenario
    assert not opened.notes


@pytest.mark.parametrize(
    ("kv_heads", "window", "expected"),
    [(32, 0, "efficient"), (8, 0, "math"), (8, 512, "efficient")],
)
def test_the_efficient_kernel_knows_no_grouped_heads(
    kv_heads: int, window: int, expected: str
) -> None:
    """`use_gqa_in_sdpa` hands grouped heads on unless there is a mask; then they are repeated."""
    shape = BlockShape(4096, 32, kv_heads, 128, 128, 14336, True, sliding_window=window)
    kernel = Kernel(2, 1, False, "efficient", "transformers")
    assert attention_kernel(shape, Tokens(1, 1024, 1024), kernel) == expected


def test_adamw_as_a_loop_has_two_tensors_at_once() -> None:
    """torch/optim/adamw.py `_single_tensor_adamw`: (exp_avg_sq.sqrt() / ...) of one parameter."""
    loop = estimate(llama(optimizer_implementation="for-loop"))
    fused = estimate(llama(optimizer_implementation="fused"))
    temporary = loop.phases["optimizer step"]["buffers"]
    counters = fused.phases["between steps"]["buffers"]  # each tensor's, on the GPU
    assert fused.phases["optimizer step"]["buffers"] == counters < 1e6
    assert temporary == 2 * 4 * VOCABULARY * HIDDEN / 8


def test_one_rank_alone_gathers_nothing_ahead() -> None:
    """FSDP2 skips the all-gather in a group of one: only the root is whole at forward's end."""
    parts = estimate(llama(1)).phases["forward"]
    assert parts["gathered layers"] == 2 * (2 * VOCABULARY * HIDDEN + HIDDEN)


def test_replicas_of_shards_hold_their_all_reduce_inputs() -> None:
    """With accumulation each reduced shard waits beside the gradients until backward ends."""
    peaks = {}
    for shard in (16, 8):
        scenario = llama(16, {"shard": shard}, global_batch=32)
        peaks[shard] = estimate(scenario).phases["gradients complete"]["buffers"]
    root = 2 * VOCABULARY * HIDDEN + HIDDEN
    waiting = 4 * (PARAMETERS - root) / 8
    assert peaks[8] - peaks[16] == pytest.approx(waiting, rel=1e-3)


def test_autocast_runs_every_softmax_in_fp32() -> None:
    """softmax is on autocast's fp32 list, whatever the model's code asks for."""
    shape = BlockShape(768, 12, 12, 64, 64, 3072, softmax_in_fp32=False)
    plain = Kernel(2, 1, False, "eager", "transformers")
    cast = Kernel(2, 1, False, "eager", "transformers", residual_bytes=4)
    assert (softmax_bytes(shape, plain), softmax_bytes(shape, cast)) == (2, 4)


@pytest.mark.parametrize(
    ("activation", "kept"), [("gelu_fast", 8), ("gelu_new", 5), ("quick_gelu", 3), ("gelu", 2)]
)
def test_written_out_activations_keep_their_products(activation: str, kept: int) -> None:
    """Each product with a tensor keeps both factors (transformers/activations.py)."""
    shape = BlockShape(768, 12, 12, 64, 64, 3072, activation=activation)
    assert mlp_widths(shape, Kernel(2, 1, False, "flash", "transformers")) == kept


@pytest.mark.parametrize(
    "training",
    [
        {"model_code": "compiled"},
        {"model_code": "torchtitan"},
        {"trainable": {"only": ["head", "norm"]}},
        {"activation_checkpointing": "per-op"},
    ],
)
def test_no_verdict_fits_where_activations_are_missing(training: dict[str, Any]) -> None:
    """A scan in code that was not recorded is not counted, and the report says so."""
    training = {"sequence_length": 128, "micro_batch": 1, **training}
    report = estimate(Scenario.from_dict({"model": "mamba-130m", "training": training}))
    assert report.needed_high_bytes < report.usable_bytes
    assert report.verdict == "uncertain"
    assert any("the real peak is higher" in line for line in report.not_modelled)


@pytest.mark.parametrize("model", ["mamba-130m", "granite-4.0-h-micro", "lfm2-1.2b"])
def test_a_recorded_scan_is_no_reason_for_doubt(model: str) -> None:
    """transformers' own scan is recorded operator by operator, so a roomy run fits."""
    training = {"sequence_length": 128, "micro_batch": 1}
    report = estimate(Scenario.from_dict({"model": model, "training": training}))
    assert report.verdict == "fits"
    assert not any("the real peak is higher" in line for line in report.not_modelled)


def test_deepspeed_pads_each_tensor() -> None:
    """`partition_parameters.py`: a partition has ceil(n / N) elements of every parameter."""
    layout = {"engine": "deepspeed", "zero_stage": 3}
    laid = llama(512, layout, precision="bf16")
    shapes = [
        (1, VOCABULARY * HIDDEN), (1, VOCABULARY * HIDDEN), (65, HIDDEN),
        (64, HIDDEN * HIDDEN), (64, 1024 * HIDDEN), (96, 14336 * HIDDEN),
    ]  # fmt: skip
    padded = sum(count * -(-size // 512) for count, size in shapes)
    assert estimate(laid).phases["between steps"]["parameters"] == 2 * padded


# Peaks in backward of the second micro-batch (without the batch) that `shardwise.lab.trace` counts
# over DDP on 8 ranks, one layer, 512 tokens; before any other estimate of them was made.
HEADS = [
    ("qwen2.5-7b", {"precision": "bf16", "optimizer": "sgd"}, 9_318_066_176),
    ("llama-3-8b", {"precision": "fp32", "optimizer_implementation": "fused"}, 28_008_772_608),
    ("llama-3-8b", {"precision": "autocast", "optimizer_implementation": "fused"}, 29_109_319_680),
]


@pytest.mark.parametrize(("model", "training", "traced"), HEADS)
def test_a_heads_gradient_stands_beside_the_earlier_one(
    model: str, training: dict[str, Any], traced: int
) -> None:
    """With few tokens it is larger than the logits: without it peaks are 3 to 6 % too low."""
    config = json.loads((data_root() / "models" / f"{model}.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = 1
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:1]
    given = {"sequence_length": 512, "micro_batch": 1, "global_batch": 16, **training}
    report = estimate(
        Scenario.from_dict(
            {
                "model": config,
                "cluster": {"gpus_per_node": 8},
                "training": given,
                "layout": {"engine": "ddp"},
            }
        )
    )
    assert report.binding_phase == "backward"
    assert report.peak_bytes == pytest.approx(traced, rel=0.0005)


# Peaks (without the batch) that `shardwise.lab.trace` counts over FSDP2 on 8 ranks: two recomputed
# layers, many tokens, a vocabulary of 1024, so that experts bind and not the loss.
EXPERTS = [
    ("mixtral-8x7b", 32768, 29_955_750_912),
    ("mixtral-8x22b", 16384, 34_797_428_736),
    ("qwen3-30b-a3b", 32768, 15_823_086_080),
    ("qwen3-235b-a22b", 16384, 34_254_022_144),
    ("olmoe-1b-7b", 32768, 14_242_322_432),
    ("qwen1.5-moe-a2.7b", 32768, 13_584_525_312),
    ("qwen2-57b-a14b", 16384, 30_904_940_544),
    ("deepseek-v2-lite", 32768, 13_752_528_384),
    ("deepseek-v2", 32768, 45_152_915_968),
    ("deepseek-v3", 16384, 15_348_777_984),
]


@pytest.mark.parametrize(("model", "length", "traced"), EXPERTS)
def test_gradients_of_scored_rows_bind_where_the_loss_is_small(
    model: str, length: int, traced: int
) -> None:
    """transformers' grouped experts: spread out, zeros and the sorted rows, in the scores' type."""
    config = json.loads((data_root() / "models" / f"{model}.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": 2, "vocab_size": 1024}
    report = estimate(
        Scenario.from_dict(
            {
                "model": config,
                "cluster": {"gpus_per_node": 8},
                "training": {
                    "precision": "fsdp-mixed",
                    "sequence_length": length,
                    "activation_checkpointing": "full",
                },
            }
        )
    )
    assert report.binding_phase == "backward"
    assert report.peak_bytes == pytest.approx(traced, rel=0.0005)


@pytest.mark.parametrize("tied", [True, False])
def test_what_forward_never_reads_has_no_gradient(tied: bool) -> None:
    """An untied BERT has a bias beside its decoder's own: after backward torch has no gradient."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import torch

    config = {
        "model_type": "bert",
        "vocab_size": 50,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 16,
        "tie_word_embeddings": tied,
    }
    model = transformers.BertForMaskedLM(transformers.BertConfig(**config))
    ids = torch.zeros((1, 4), dtype=torch.int64)
    model(ids, labels=ids).loss.backward()
    without = [name for name, tensor in model.named_parameters() if tensor.grad is None]
    assert [t.name for t in Model.from_config(config).tensors if not t.read] == without
    assert len(without) == (not tied)


def test_bloom_holds_scores_while_attention_runs() -> None:
    """The traced forward of a checkpointed odd-bloom: 21 bytes a cell, the block's before too."""
    case = {"model": BLOOM, "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": 2, "nodes": 1}}
    training = {"precision": "fp32", "optimizer": "sgd", "micro_batch": 2, "global_batch": 4}
    training |= {"activation_checkpointing": "full", "sequence_length": 4096}
    given = case | {"training": training, "layout": {"engine": "ddp"}}
    phases = estimate(Scenario.from_dict(given)).phases
    before_and_batch = 843_542_528  # `init_end_bytes` of the case in data/traces/cases.json
    traced = 7_735_144_960 - before_and_batch
    assert phases["forward"]["activations"] == pytest.approx(traced, rel=1e-4)
    assert traced > 21 * 9 * 2 * 4096**2
