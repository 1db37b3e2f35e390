"""Adapters and frozen parts: counts as peft makes them, sizes as bitsandbytes stores them."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from shardwise.core.adapters import check_trainable, trained_parameters, trained_tensors
from shardwise.core.catalogue import load_model
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.report import PARTS
from shardwise.core.model import Model
from shardwise.core.scenario import Scenario
from shardwise.core.trainable import Trainable

MODELS = Path(__file__).parents[2] / "data" / "models"


def scenario(
    model: object = "llama-3-8b", trainable: object = "all", layout: Any = None, **training: Any
) -> Scenario:
    """A scenario on eight 80 GB cards of one node."""
    training = {"trainable": trainable, **training}
    return Scenario.from_dict({"model": model, "training": training, "layout": layout or {}})


def small(name: str) -> dict[str, Any]:
    """A catalogue model's config with two layers."""
    config: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    for field in ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers"):
        if field in config:
            config[field] = 2
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = config["layer_types"][:2]
    return config


def peft_tensors(name: str, targets: Any, rank: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the trained tensors of a real peft model."""
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = small(name)
    loaded = transformers.AutoConfig.for_model(**config)
    config_class = config["architectures"][0]
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")  # the libraries' own deprecations are not under test
        model = getattr(transformers, config_class)(loaded)
        swapped = config_class.startswith("GPT2")
        lora = peft.LoraConfig(r=rank, target_modules=targets, fan_in_fan_out=swapped)
        adapted = peft.get_peft_model(model, lora)
    return {
        key.removeprefix("base_model.model.").replace(".default", ""): tuple(value.shape)
        for key, value in adapted.named_parameters()
        if value.requires_grad
    }


@pytest.mark.parametrize("rank", [8, 64])
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama-3-8b", None),
        ("llama-3-8b", "all-linear"),
        ("llama-3-8b", ["gate_proj", "o_proj"]),
        ("mistral-7b", None),
        ("qwen2.5-7b", "all-linear"),
        ("qwen3-8b", None),
        ("gemma-2-9b", "all-linear"),
        ("phi-2", None),
        ("phi-3-mini", "all-linear"),
        ("gpt2", None),
        ("gpt2", ["c_attn", "attn.c_proj", "c_fc"]),
        ("opt-1.3b", None),
        ("pythia-1.4b", "all-linear"),
        ("bloom-560m", None),
        ("falcon-7b", None),
        ("t5-small", None),
        ("flan-t5-xl", "all-linear"),
        ("mixtral-8x7b", ["q_proj", "v_proj"]),
        ("qwen3-30b-a3b", ["q_proj", "k_proj", "v_proj", "o_proj"]),
        ("qwen1.5-moe-a2.7b", "all-linear"),
        ("deepseek-v2-lite", ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]),
        ("bert-base", None),
    ],
)
def test_adapters_are_those_that_peft_makes(name: str, targets: Any, rank: int) -> None:
    """Every A and B has the name and shape that `named_parameters()` of a peft model gives."""
    value = {"lora": {"rank": rank, "targets": "default" if targets is None else targets}}
    own = trained_tensors(Model.from_config(small(name)), Trainable.from_dict(value))
    assert {tensor.name: tensor.shape for tensor in own} == peft_tensors(name, targets, rank)


@pytest.mark.parametrize(
    ("alias", "named"),
    [
        ("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "o_proj"),
        ("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj"),
    ],
)  # fmt: skip
def test_short_names_mean_the_projections(alias: str, named: str) -> None:
    """`q` is LLaMA's q_proj, `down` its down_proj."""
    model = load_model("llama-3-8b")
    short, full = ({"lora": {"targets": [target]}} for target in (alias, named))
    assert trained_tensors(model, Trainable.from_dict(short)) == trained_tensors(
        model, Trainable.from_dict(full)
    )


@pytest.mark.parametrize("name", ["gpt2", "pythia-160m", "phi-3-mini", "bloom-560m", "t5-small"])
@pytest.mark.parametrize("alias", ["q", "v", "o", "up", "down"])
def test_short_names_work_on_every_architecture(name: str, alias: str) -> None:
    """A fused projection stands in for q, k and v; Conv1D's swapped weights are read right."""
    trainable = Trainable.from_dict({"lora": {"rank": 4, "targets": [alias]}})
    model = load_model(name)
    shapes = {t.name.split(".lora_")[0]: t.shape for t in trained_tensors(model, trainable)}
    assert len(shapes) >= model.layers


@pytest.mark.parametrize(
    ("value", "field", "says"),
    [
        ("some", "training.trainable", "a dict of lora"),
        ({"lora": {}, "frozen": ["mlp"]}, "training.trainable", "one of lora"),
        ({"lora": {"rank": 0}}, "training.trainable.lora.rank", "from 1"),
        ({"lora": {"dropout": 1}}, "training.trainable.lora.dropout", "less than 1"),
        ({"lora": {"base": "int4"}}, "training.trainable.lora.base", "nf4"),
        ({"lora": {"double_quantized": True}}, "training.trainable.lora.double_quantized", "nf4"),
        ({"lora": {"target": "q"}}, "training.trainable.lora", "targets"),
        ({"frozen": ["bodies"]}, "training.trainable.frozen", "embedding"),
        ({"only": []}, "training.trainable.only", "at least one"),
        ({"lora": {"targets": "query_key_value"}}, "training.trainable.lora.targets", "q_proj"),
        ({"only": ["position"]}, "training.trainable.frozen", "attention"),
    ],
)
def test_bad_input_names_field_and_choices(value: object, field: str, says: str) -> None:
    """Each error names the field that is wrong and what is allowed there."""
    with pytest.raises(ScenarioError) as raised:
        scenario("llama-3-8b", value)
    assert raised.value.field == field
    assert says in str(raised.value)


@pytest.mark.parametrize(
    "value",
    [
        "all",
        {"lora": {}},
        {"lora": {"rank": 64, "targets": ["q", "down"], "base": "nf4", "double_quantized": True}},
        {"frozen": ["embedding", "head"]},
        {"only": ["head"], "base": "16-bit"},
    ],
)
def test_plain_values_read_back(value: object) -> None:
    """`to_dict` gives what `from_dict` reads to an equal value, in a scenario too."""
    first = Trainable.from_dict(value)
    assert Trainable.from_dict(first.to_dict()) == first
    laid = scenario("llama-3-8b", value)
    assert Scenario.from_dict(laid.to_dict()) == laid


@pytest.mark.parametrize(("base", "double"), [("int8", False), ("nf4", False), ("nf4", True)])
def test_a_quantized_base_has_bitsandbytes_sizes(base: str, double: bool) -> None:
    """The frozen blocks' bytes are those of bitsandbytes' own quantized tensors."""
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("bitsandbytes.functional")
    config = small("llama-3.2-1b")
    lora = {"rank": 8, "base": base, "double_quantized": double}
    laid = scenario(config, {"lora": lora}, {"engine": "ddp"}, precision="bf16")
    size = 0
    for tensor in laid.model.tensors:
        if len(tensor.shape) < 2 or tensor.part not in ("attention", "mlp"):
            size += 2 * tensor.elements
            continue
        weight = torch.zeros(tensor.shape, dtype=torch.bfloat16)
        if base == "int8":
            stored, scales, _ = functional.int8_vectorwise_quant(weight.half())
            size += stored.nbytes + scales.nbytes
            continue
        stored, state = functional.quantize_4bit(
            weight, quant_type="nf4", compress_statistics=double
        )
        size += stored.nbytes + state.absmax.nbytes
        if double:
            size += state.state2.absmax.nbytes
    adapters = trained_parameters(laid.model, laid.training.trainable)
    between = estimate(laid).phases["between steps"]
    assert between["parameters"] == pytest.approx(size + 2 * adapters, rel=1e-6)


def parts(report: MemoryReport) -> dict[str, float]:
    """Bytes by part as the optimizer steps."""
    return dict(report.phases["optimizer step"])


@pytest.mark.parametrize("engine", ["ddp", "deepspeed"])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_zero_1_and_2_shard_the_adapters_only(engine: str, stage: int) -> None:
    """The frozen base stays whole on every rank; of the adapters 16 bytes go down to 2 + 14/N."""
    if engine == "ddp" and stage:
        return
    laid = scenario("llama-2-7b", {"lora": {"rank": 8}}, {"engine": engine, "zero_stage": stage})
    adapters, base = 4_194_304, 6_738_415_616
    own = parts(estimate(laid))
    assert own["parameters"] == 2 * (base + adapters)
    ranks = 8 if stage else 1
    assert own["optimizer state"] == 8 * adapters / ranks
    assert own["gradients"] == 2 * adapters / (8 if stage == 2 else 1)


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp1", "fsdp2"])
def test_zero_3_and_fsdp_shard_the_base(engine: str) -> None:
    """Each rank keeps an eighth of base and adapters."""
    laid = scenario("llama-2-7b", {"lora": {"rank": 8}}, {"engine": engine, "zero_stage": 3})
    whole = 2 * (6_738_415_616 + 4_194_304)
    assert parts(estimate(laid))["parameters"] == pytest.approx(whole / 8, rel=1e-4)


def test_a_quantized_base_is_not_cut_by_what_cannot() -> None:
    """ZeRO-3 takes no bitsandbytes tensors, FSDP no int8 ones; NF4 under FSDP2 is QLoRA's way."""
    for engine, base in (("deepspeed", "nf4"), ("deepspeed", "int8"), ("fsdp2", "int8")):
        with pytest.raises(ScenarioError, match="can cut"):
            scenario("llama-2-7b", {"lora": {"base": base}}, {"engine": engine})
    whole = estimate(scenario("llama-2-7b", {"lora": {"base": "nf4"}}, {"engine": "ddp"}))
    cut = estimate(scenario("llama-2-7b", {"lora": {"base": "nf4"}}, {"engine": "fsdp2"}))
    linear, rest = 32 * 202_375_168, 6_738_415_616 - 32 * 202_375_168
    adapters = 2 * trained_parameters(load_model("llama-2-7b"), Trainable.from_dict({"lora": {}}))
    held = 0.5625 * linear + 2 * rest + adapters
    assert parts(whole)["parameters"] == pytest.approx(held, rel=1e-6)
    # The block statistics hang on the modules: every rank keeps all of them.
    expected = (0.5 * linear + 2 * rest + adapters) / 8 + 0.0625 * linear
    assert parts(cut)["parameters"] == pytest.approx(expected, rel=1e-6)


def test_only_a_head_needs_no_graph_through_the_blocks() -> None:
    """With nothing trained below the head no block saves anything; freezing the head changes less.

    The frozen embedding of a full run saves nothing either way but takes its states along.
    """
    full = estimate(scenario("llama-3-8b"))
    head = estimate(scenario("llama-3-8b", {"only": ["head"]}))
    assert head.phases["loss"]["activations"] < 0.01 * full.phases["loss"]["activations"]
    frozen = estimate(scenario("llama-3-8b", {"frozen": ["embedding"]}, {"engine": "ddp"}))
    whole = estimate(scenario("llama-3-8b", "all", {"engine": "ddp"}))
    table = 128_256 * 4096
    assert parts(whole)["optimizer state"] - parts(frozen)["optimizer state"] == 8 * table
    assert parts(whole)["parameters"] == parts(frozen)["parameters"]


@pytest.mark.parametrize(
    "layout",
    [
        {"engine": "ddp"},
        {"engine": "fsdp2"},
        {"engine": "deepspeed", "zero_stage": 2},
        {"engine": "deepspeed", "zero_stage": 3},
        {"engine": "megatron", "tensor_parallel": 2, "sequence_parallel": True},
        {"engine": "fsdp2", "pipeline_parallel": 2, "zero_stage": 2},
    ],
)
@pytest.mark.parametrize("value", [{"lora": {}}, {"lora": {"base": "nf4"}}, {"frozen": ["mlp"]}])
def test_every_part_opens_and_sums_up(layout: dict[str, Any], value: dict[str, Any]) -> None:
    """Explanations give the part's bytes; no phase has a negative part."""
    try:
        report = estimate(scenario("llama-3.2-1b", value, layout))
    except ScenarioError as refused:
        assert "can cut" in str(refused)
        return
    for stage in report.stages:
        assert all(size >= 0 for phase in stage.phases.values() for size in phase.values())
    for part in PARTS:
        opened = report.explain(part)
        assert opened.result_bytes == report.parts[part]
        assert opened.formula
    text = str(report.explain("parameters"))
    assert "frozen" in text


def test_adapters_never_need_more_than_full_training() -> None:
    """Whatever the engine, LoRA's peak is below full training's."""
    for layout in ({"engine": "ddp"}, {"engine": "fsdp2"}, {"engine": "deepspeed"}):
        for name in ("gpt2", "llama-3.2-1b", "gemma-3-1b", "mixtral-8x7b", "t5-small", "bert-base"):
            full = estimate(scenario(name, "all", layout)).peak_bytes
            lora = estimate(scenario(name, {"lora": {"targets": "all-linear"}}, layout)).peak_bytes
            assert lora < full, (name, layout)


def test_targets_must_be_there() -> None:
    """A state-space model has no q_proj to adapt, and the error lists what there is."""
    with pytest.raises(ScenarioError) as raised:
        check_trainable(load_model("mamba-130m"), Trainable.from_dict({"lora": {}}))
    assert raised.value.field == "training.trainable.lora.targets"
    assert math.isfinite(estimate(scenario("mamba-130m", {"only": ["head", "norm"]})).peak_bytes)


def test_a_base_beside_lora_is_refused_and_shown_its_place() -> None:
    """It would otherwise be dropped, and a QLoRA counted with a 16-bit base."""
    with pytest.raises(ScenarioError, match=r"inside it; write \{'lora': .*'nf4'") as caught:
        Trainable.from_dict({"lora": {"rank": 16}, "base": "nf4"})
    assert caught.value.field == "training.trainable.base"
