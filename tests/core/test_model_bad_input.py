"""Whatever is pasted or uploaded: a model, or one clear sentence, and never another exception."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.core.errors import ScenarioError
from shardwise.core.model import Model

CATALOGUE = Path(__file__).parents[2] / "data" / "models"
CONFIGS = {path.stem: json.loads(path.read_text()) for path in sorted(CATALOGUE.glob("*.json"))}
LLAMA = CONFIGS["llama-3-8b"]
TEXT = json.dumps(LLAMA)


def refused(text: str | bytes) -> ScenarioError:
    """The error that reading raises: one sentence of bearable length, on one line."""
    with pytest.raises(ScenarioError) as caught:
        Model.from_json(text)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert 20 < len(sentence) < 400
    assert caught.value.allowed
    return caught.value


TEXTS: dict[str, tuple[str | bytes, str]] = {
    "empty text": ("", "empty"),
    "only spaces": (" \n\t ", "empty"),
    "only a byte-order mark": ("\ufeff", "empty"),
    "empty object": ("{}", "empty"),
    "truncated": (TEXT[: len(TEXT) // 2], "line 1"),
    "missing brace": (TEXT[:-1], "line 1"),
    "trailing comma": (TEXT[:-1] + ",}", "line 1"),
    "single quotes": (TEXT.replace('"', "'"), "line 1"),
    "two objects": (TEXT + TEXT, "line 1"),
    "Python's True": (TEXT.replace("true", "True"), "line 1"),
    "a comment": ("// mine\n" + TEXT, "line 1"),
    "a list": ("[1, 2]", "list"),
    "a list of configs": (f"[{TEXT}]", "list"),
    "a text": ('"llama-3-8b"', "text"),
    "a number": ("7000000000", "value"),
    "null": ("null", "null"),
    "true": ("true", "value"),
    "plain words": ("meta-llama/Meta-Llama-3-8B", "line 1"),
    "HTML page": ("<!doctype html><html><body>404</body></html>", "line 1"),
    "YAML": ("hidden_size: 4096\nnum_hidden_layers: 32\n", "line 1"),
    "NaN": ('{"hidden_size": NaN}', "NaN"),
    "Infinity": ('{"hidden_size": Infinity}', "Infinity"),
    "minus infinity": ('{"hidden_size": -Infinity}', "Infinity"),
    "a number of 5,000 digits": ('{"hidden_size": ' + "9" * 5000 + "}", "40 digits"),
    "decimal comma": ('{"hidden_size": 40,96}', "line 1"),
    "non-Latin digits": ('{"hidden_size": ٤٠٩٦}', "line 1"),
    "a field twice": ('{"hidden_size": 1, "hidden_size": 2}', "twice"),
    "20 MB": ("x" * 20_000_000, "1,000,000"),
    "20 MB of JSON": ('{"a": "' + "x" * 20_000_000 + '"}', "1,000,000"),
    "10,000 lists deep": ('{"a": ' + "[" * 10_000 + "]" * 10_000 + "}", "deeper"),
    "10,000 objects deep": ('{"a":' * 10_000 + "1" + "}" * 10_000, "deeper"),
    "10,000 opened only": ("[" * 10_000, "deeper"),
    "NUL characters": ('{"hidden_size": 4096}\0\0', "NUL"),
    "UTF-16 without a mark": (TEXT.encode("utf-16-le"), "NUL"),
    "Latin-1 bytes": ('{"_name_or_path": "modèle"}'.encode("latin-1"), "UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "UTF-8"),
    "a zip file": (b"PK\x03\x04\x14\x00\x00\x00\x08\x00", "NUL"),
}


@pytest.mark.parametrize(("text", "word"), TEXTS.values(), ids=TEXTS)
def test_text_that_is_no_config_is_refused(text: str | bytes, word: str) -> None:
    """The sentence says what is wrong with the text."""
    assert word in str(refused(text))


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + TEXT,
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.encode("utf-16"),
        bytearray(TEXT.encode()),
        " \n" + TEXT + "\n",
        TEXT.replace("4096", "4096.0"),
    ],
    ids=["mark", "mark in bytes", "UTF-16 with a mark", "bytearray", "spaces", "4096.0"],
)
def test_harmless_differences_are_accepted(text: str | bytes) -> None:
    """Byte-order marks, spaces and whole numbers written 4096.0 change nothing."""
    assert Model.from_json(text) == Model.from_config(LLAMA)


@pytest.mark.parametrize("value", [None, 7, 7e9, ["a"], object()])
def test_things_that_are_no_text_are_refused(value: Any) -> None:
    """from_json takes text or bytes and says so."""
    with pytest.raises(ScenarioError, match=r"config\.json"):
        Model.from_json(value)


@pytest.mark.parametrize("value", [None, 7, "llama-3-8b", [LLAMA], {}, True])
def test_things_that_are_no_mapping_are_refused(value: Any) -> None:
    """from_config takes a mapping with fields and says so."""
    with pytest.raises(ScenarioError, match=r"config\.json"):
        Model.from_config(value)


VALUES: dict[str, tuple[str, Any]] = {
    "text for a number": ("hidden_size", "4096"),
    "text with a unit": ("hidden_size", "4k"),
    "Arabic digits in text": ("hidden_size", "٤٠٩٦"),
    "decimal comma in text": ("hidden_size", "40,96"),
    "zero": ("hidden_size", 0),
    "negative": ("hidden_size", -4096),
    "10^30": ("hidden_size", 10**30),
    "1e30": ("hidden_size", 1e30),
    "a float": ("hidden_size", 4096.5),
    "not a number": ("hidden_size", math.nan),
    "infinite": ("hidden_size", math.inf),
    "true for a number": ("hidden_size", True),
    "a list for a number": ("hidden_size", [4096]),
    "an object for a number": ("hidden_size", {"value": 4096}),
    "null where a size is needed": ("hidden_size", None),
    "no layers": ("num_hidden_layers", 0),
    "negative layers": ("num_hidden_layers", -1),
    "a million layers": ("num_hidden_layers", 10**6),
    "layers as text": ("num_hidden_layers", "32"),
    "null layers": ("num_hidden_layers", None),
    "no heads": ("num_attention_heads", 0),
    "heads that do not divide": ("num_attention_heads", 24),
    "half a head": ("num_attention_heads", 0.5),
    "key-value heads that do not divide": ("num_key_value_heads", 5),
    "no key-value heads": ("num_key_value_heads", 0),
    "more key-value heads than heads": ("num_key_value_heads", 64),
    "no vocabulary": ("vocab_size", 0),
    "vocabulary of 10^30": ("vocab_size", 10**30),
    "vocabulary as text": ("vocab_size", "128256"),
    "negative width": ("intermediate_size", -1),
    "width true": ("intermediate_size", True),
    "a list of widths": ("intermediate_size", [14336, 14336]),
    "head_dim zero": ("head_dim", 0),
    "head_dim huge": ("head_dim", 10**9),
    "tied as text": ("tie_word_embeddings", "false"),
    "tied as number": ("tie_word_embeddings", 0),
    "bias as text": ("attention_bias", "no"),
    "dropout of 2": ("attention_dropout", 2),
    "dropout not a number": ("attention_dropout", math.nan),
    "dropout as text": ("attention_dropout", "0.1"),
    "positions as text": ("max_position_embeddings", "8192"),
    "activation as number": ("hidden_act", 7),
    "activation of 10,000 letters": ("hidden_act", "x" * 10_000),
    "dtype unknown": ("torch_dtype", "int3"),
    "dtype as number": ("torch_dtype", 16),
    "architectures as text": ("architectures", "LlamaForCausalLM"),
    "architectures of numbers": ("architectures", [1]),
    "architectures as object": ("architectures", {"0": "LlamaForCausalLM"}),
    "model_type as number": ("model_type", 3),
    "model_type as list": ("model_type", ["llama"]),
    "quantization as text": ("quantization_config", "fp8"),
}


@pytest.mark.parametrize(("field", "value"), VALUES.values(), ids=VALUES)
def test_a_field_that_cannot_be_is_named(field: str, value: Any) -> None:
    """The sentence names the field and what is allowed, whatever stands in it."""
    with pytest.raises(ScenarioError) as caught:
        Model.from_config(LLAMA | {field: value})
    assert caught.value.field == field
    assert field in str(caught.value)
    assert caught.value.allowed
    assert len(str(caught.value)) < 400


NESTED: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ("mixtral-8x7b", {"num_local_experts": 0}, "num_local_experts"),
    ("qwen3-30b-a3b", {"mlp_only_layers": "none"}, "mlp_only_layers"),
    ("qwen3-30b-a3b", {"mlp_only_layers": [-1]}, "mlp_only_layers[]"),
    ("qwen3-30b-a3b", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types"),
    ("gpt-oss-20b", {"layer_types": [1] * 24}, "layer_types"),
    ("deepseek-v3", {"kv_lora_rank": 0}, "kv_lora_rank"),
    ("gemma-3-4b", {"text_config": "gemma3_text"}, "text_config"),
    ("gemma-3-4b", {"text_config": {"hidden_size": "2560"}}, "text_config.hidden_size"),
    ("gemma-3-4b", {"vision_config": []}, "vision_config"),
    ("llama-4-scout", {"text_config": {"no_rope_layers": [1]}}, "text_config.no_rope_layers"),
    ("vit-base", {"patch_size": 500}, "patch_size"),
    ("vit-base", {"image_size": [224, 320]}, "image_size"),
    ("vit-base", {"image_size": "224"}, "image_size"),
    ("t5-small", {"num_decoder_layers": 10**6}, "num_decoder_layers"),
    ("gpt2", {"hidden_size": 1024}, "n_embd"),
    ("gpt2", {"n_head": 7}, "n_head"),
    ("opt-350m", {"word_embed_proj_dim": -512}, "word_embed_proj_dim"),
    ("whisper-large-v3", {"num_mel_bins": 0}, "num_mel_bins"),
    ("mamba-130m", {"expand": 1000, "intermediate_size": None}, "expand"),
    ("falcon-40b", {"num_kv_heads": 7}, "num_kv_heads"),
    (
        "bert-base",
        {"id2label": None, "num_labels": -1, "architectures": ["BertForSequenceClassification"]},
        "num_labels",
    ),
]


@pytest.mark.parametrize(("name", "changes", "field"), NESTED)
def test_fields_of_other_families_are_checked_too(
    name: str, changes: dict[str, Any], field: str
) -> None:
    """Experts, nested configs, pictures and spellings that disagree: the field is named."""
    with pytest.raises(ScenarioError) as caught:
        Model.from_config(CONFIGS[name] | changes)
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers"])
def test_a_config_without_its_main_sizes_is_refused(field: str) -> None:
    """A cut-off paste is not filled up with the defaults of a 7B model."""
    config = {key: value for key, value in LLAMA.items() if key != field}
    with pytest.raises(ScenarioError, match=field):
        Model.from_config(config)


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_an_unknown_architecture_without_its_main_sizes_is_refused(field: str) -> None:
    """The way out is named: give the number of parameters."""
    config = {"model_type": "x", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 10}
    with pytest.raises(ScenarioError, match="parameters as a number") as caught:
        Model.from_config({key: value for key, value in config.items() if key != field})
    assert caught.value.field == field


OTHER_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "adapter_config": (
        {"peft_type": "LORA", "base_model_name_or_path": "x", "r": 16, "target_modules": ["q"]},
        "LoRA adapter",
    ),
    "checkpoint index": (
        {"metadata": {"total_size": 1}, "weight_map": {"lm_head.weight": "a.safetensors"}},
        "index of a checkpoint",
    ),
    "diffusers unet": (
        {"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.19", "sample_size": 128},
        "parameters as a number",
    ),
    "tokenizer_config": (
        {"tokenizer_class": "LlamaTokenizer", "model_max_length": 4096, "chat_template": "{{x}}"},
        "tokenizer",
    ),
    "tokenizer": ({"version": "1.0", "added_tokens": [], "model": {}}, "tokenizer"),
    "generation_config": (
        {"_from_model_config": True, "bos_token_id": 1, "temperature": 0.6},
        "generation_config",
    ),
    "preprocessor": ({"image_processor_type": "ViTImageProcessor", "size": 224}, "preprocessor"),
    "DeepSpeed": ({"zero_optimization": {"stage": 2}}, "DeepSpeed"),
    "accelerate": ({"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP"}, "accel"),
}


@pytest.mark.parametrize(("config", "word"), OTHER_FILES.values(), ids=OTHER_FILES)
def test_another_well_known_file_is_recognized(config: dict[str, Any], word: str) -> None:
    """The sentence says which file it is and what to paste instead."""
    assert word in str(refused(json.dumps(config)))


HOSTILE = '<img src=x onerror="alert(1)">{{7*7}}${7*7}\u202e\x00\ud800'


@pytest.mark.parametrize("field", ["_name_or_path", "architectures", "model_type"])
def test_markup_in_names_stays_text(field: str) -> None:
    """Names with markup, control and direction characters become one line of plain text."""
    value = [HOSTILE] if field == "architectures" else HOSTILE
    model = Model.from_config(LLAMA | {field: value})
    for text in (model.name, model.architecture, *model.assumptions):
        assert text.isprintable()
        text.encode()
    assert model.parameters == 8_030_261_248


def test_a_hostile_key_is_quoted_not_interpreted() -> None:
    """A key given twice is shown as a quoted value of bearable length."""
    key = json.dumps("<script>" * 100)
    error = refused(f"{{{key}: 1, {key}: 2}}")
    assert len(str(error)) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=12,
)
KEYS = sorted({key for config in CONFIGS.values() for key in config})


def model_or_error(config: Any) -> None:
    """Either a model whose numbers add up, or a ScenarioError; anything else fails the test."""
    try:
        model = Model.from_config(config)
    except ScenarioError as error:
        assert error.field
        assert str(error).endswith(".")
        return
    assert model.parameters >= 0
    assert model.active_parameters <= model.parameters
    assert hash(model) == hash(Model.from_config(config))


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), JSON, max_size=12))
def test_random_objects_never_break_it(config: dict[str, Any]) -> None:
    """Any object of known and unknown keys with any values is a model or one sentence."""
    model_or_error(config)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_mutated_catalogue_configs_never_break_it(name: str, data: st.DataObject) -> None:
    """A real config with some fields replaced or removed is a model or one sentence."""
    config = copy.deepcopy(CONFIGS[name])
    parts = [config, *(value for value in config.values() if isinstance(value, dict) and value)]
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from(parts))
        if not part:
            continue
        key = data.draw(st.sampled_from(sorted(part)))
        if data.draw(st.booleans()):
            del part[key]
        else:
            part[key] = data.draw(JSON | st.integers(-2, 5000))
    model_or_error(config)


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_random_text_never_breaks_it(text: str | bytes) -> None:
    """Any text or bytes are refused with one sentence, or are a model."""
    try:
        Model.from_json(text)
    except ScenarioError as error:
        assert str(error).endswith(".")
