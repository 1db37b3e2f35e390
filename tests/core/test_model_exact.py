"""Our tensors against those that transformers builds from the same config on the meta device."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shardwise.core.errors import ScenarioError
from shardwise.core.model import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

CATALOGUE = Path(__file__).parents[2] / "data" / "models"
NAMES = sorted(path.stem for path in CATALOGUE.glob("*.json"))
# One small stand-in for each family; the drop and variation tests build them again and again.
FAMILY_MODELS = {
    "llama-2-7b",
    "mistral-7b",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "gemma-2-2b",
    "gemma-3-270m",
    "gemma-3-4b",
    "phi-2",
    "phi-3-mini",
    "olmo-1b",
    "olmo-2-7b",
    "olmoe-1b-7b",
    "starcoder2-3b",
    "mixtral-8x7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "gpt-oss-20b",
    "gpt2",
    "gpt-j-6b",
    "pythia-160m",
    "bloom-560m",
    "opt-350m",
    "opt-125m",
    "falcon-7b",
    "falcon-40b",
    "bert-base",
    "roberta-base",
    "xlm-roberta-base",
    "t5-small",
    "flan-t5-xl",
    "whisper-large-v3",
    "vit-base",
    "mamba-130m",
    "falcon-mamba-7b",
    "mamba-codestral-7b",
    "jamba-mini",
    "bamba-9b",
    "granite-4.0-h-micro",
    "granite-4.0-h-tiny",
    "nemotron-h-8b",
    "falcon-h1-7b",
    "lfm2-1.2b",
    "qwen3-next-80b-a3b",
    "llama-4-scout",
    "llama-4-maverick",
}
LAYER_FIELDS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)


def read(name: str) -> dict[str, Any]:
    """The config of one catalogue model."""
    return json.loads((CATALOGUE / f"{name}.json").read_text())


def shallow(config: Mapping[str, Any], layers: int = 4) -> dict[str, Any]:
    """The same model with few layers, so that it is built in milliseconds."""
    small: dict[str, Any] = copy.deepcopy(dict(config))
    for part in (small, small.get("text_config", {}), small.get("vision_config", {})):
        part.update({field: layers for field in LAYER_FIELDS if field in part})
        for field in ("layer_types", "no_rope_layers"):
            if part.get(field):
                part[field] = part[field][:layers]
        if part.get("hybrid_override_pattern"):
            part["hybrid_override_pattern"] = "M-*E"[:layers]
        if part.get("moe_layers"):
            part["moe_layers"] = [i for i in part["moe_layers"] if i < layers]
    return small


def config_object(config: Mapping[str, Any]) -> Any:
    """transformers' config object, without the checkpoint's quantization."""
    plain = copy.deepcopy({k: v for k, v in config.items() if k != "quantization_config"})
    return type(transformers.AutoConfig.for_model(plain["model_type"])).from_dict(plain)


def meta_model(config: Mapping[str, Any]) -> Any:
    """What transformers builds, without memory."""
    with torch.device("meta"):
        cls = getattr(transformers, config["architectures"][0])
        return cls._from_config(config_object(config))


def assert_same_tensors(config: Mapping[str, Any], name: str = "") -> Model:
    """Names, shapes, order and total are those of `named_parameters()`."""
    ours = Model.from_config(config, name)
    theirs = meta_model(config)
    expected = [(key, tuple(value.shape)) for key, value in theirs.named_parameters()]
    got = [(tensor.name, tensor.shape) for tensor in ours.tensors]
    if config["model_type"] == "xlm-roberta":
        # transformers registers its head before its body, so the tied table goes by another name.
        expected = sorted(shape for _, shape in expected)
        got = sorted(shape for _, shape in got)
        aliases = {key for key, _ in theirs.named_parameters(remove_duplicate=False)}
        assert {tensor.name for tensor in ours.tensors} <= aliases
    assert got == expected
    assert ours.parameters == sum(value.numel() for value in theirs.parameters())
    return ours


def test_the_catalogue_spans_what_people_train() -> None:
    """At least 40 models, from about 100M to about 700B parameters."""
    sizes = [Model.from_config(read(name)).parameters for name in NAMES]
    assert len(NAMES) >= 40
    assert min(sizes) < 130e6
    assert max(sizes) > 670e9


@pytest.mark.parametrize("name", NAMES)
def test_catalogue_model_is_exact(name: str) -> None:
    """Every tensor of every catalogue model is named, shaped and ordered as transformers has it."""
    model = assert_same_tensors(read(name), name)
    assert model.known


CLASSES = [
    ("llama-3-8b", "LlamaModel"),
    ("llama-3-8b", "LlamaForSequenceClassification"),
    ("llama-3-8b", "LlamaForTokenClassification"),
    ("qwen2.5-0.5b", "Qwen2ForSequenceClassification"),
    ("gemma-2-2b", "Gemma2ForTokenClassification"),
    ("gemma-3-1b", "Gemma3TextModel"),
    ("gemma-3-4b", "Gemma3Model"),
    ("olmo-2-7b", "Olmo2ForSequenceClassification"),
    ("mixtral-8x7b", "MixtralForSequenceClassification"),
    ("deepseek-v3", "DeepseekV3Model"),
    ("gpt-oss-20b", "GptOssForTokenClassification"),
    ("gpt2", "GPT2Model"),
    ("gpt2", "GPT2ForSequenceClassification"),
    ("gpt-j-6b", "GPTJModel"),
    ("gpt-j-6b", "GPTJForSequenceClassification"),
    ("pythia-160m", "GPTNeoXForSequenceClassification"),
    ("bloom-560m", "BloomForSequenceClassification"),
    ("opt-350m", "OPTModel"),
    ("opt-350m", "OPTForSequenceClassification"),
    ("falcon-7b", "FalconForSequenceClassification"),
    ("bert-base", "BertModel"),
    ("bert-base", "BertForPreTraining"),
    ("bert-base", "BertForSequenceClassification"),
    ("bert-base", "BertForTokenClassification"),
    ("bert-base", "BertForQuestionAnswering"),
    ("roberta-base", "RobertaModel"),
    ("roberta-base", "RobertaForSequenceClassification"),
    ("roberta-base", "RobertaForTokenClassification"),
    ("roberta-base", "RobertaForQuestionAnswering"),
    ("t5-small", "T5Model"),
    ("t5-small", "T5EncoderModel"),
    ("whisper-large-v3", "WhisperModel"),
    ("vit-base", "ViTModel"),
    ("mamba-130m", "MambaModel"),
    ("falcon-mamba-7b", "FalconMambaModel"),
    ("mamba-codestral-7b", "Mamba2Model"),
    ("jamba-mini", "JambaModel"),
    ("jamba-mini", "JambaForSequenceClassification"),
    ("bamba-9b", "BambaModel"),
    ("granite-4.0-h-tiny", "GraniteMoeHybridModel"),
    ("nemotron-h-8b", "NemotronHModel"),
    ("falcon-h1-7b", "FalconH1Model"),
    ("lfm2-1.2b", "Lfm2Model"),
    ("qwen3-next-80b-a3b", "Qwen3NextModel"),
    ("qwen3-next-80b-a3b", "Qwen3NextForTokenClassification"),
]


@pytest.mark.parametrize(("name", "architecture"), CLASSES)
def test_other_classes_of_a_family_are_exact(name: str, architecture: str) -> None:
    """The class that `architectures` names decides about head, pooler and prefix."""
    config = shallow(read(name)) | {"architectures": [architecture]}
    assert assert_same_tensors(config).architecture == architecture


VARIATIONS: list[tuple[str, dict[str, Any]]] = [
    ("llama-2-7b", {"attention_bias": True}),
    ("llama-2-7b", {"mlp_bias": True, "tie_word_embeddings": True}),
    ("llama-2-7b", {"head_dim": 64, "num_key_value_heads": 4}),
    ("llama-2-7b", {"num_key_value_heads": None}),
    ("mistral-7b", {"num_key_value_heads": 4, "head_dim": None}),
    ("qwen3-0.6b", {"attention_bias": True, "tie_word_embeddings": False}),
    ("gemma-2-2b", {"tie_word_embeddings": False, "attention_bias": True}),
    ("phi-2", {"qk_layernorm": True, "num_key_value_heads": 8}),
    ("olmo-1b", {"attention_bias": True, "num_key_value_heads": 4}),
    ("olmo-2-7b", {"num_key_value_heads": 8}),
    ("starcoder2-3b", {"use_bias": False, "tie_word_embeddings": False}),
    ("qwen1.5-moe-a2.7b", {"decoder_sparse_step": 2, "qkv_bias": False}),
    ("qwen1.5-moe-a2.7b", {"mlp_only_layers": [0, 3]}),
    ("qwen3-30b-a3b", {"mlp_only_layers": [1], "attention_bias": True}),
    ("deepseek-v2-lite", {"q_lora_rank": 256, "attention_bias": True, "mlp_bias": True}),
    ("deepseek-v2-lite", {"attention_bias": True}),
    ("deepseek-v3", {"q_lora_rank": None, "first_k_dense_replace": 0}),
    ("gpt-oss-20b", {"attention_bias": False}),
    ("gpt2", {"n_inner": 1000, "tie_word_embeddings": False}),
    ("gpt-j-6b", {"n_inner": 1000}),
    ("pythia-160m", {"attention_bias": False, "use_parallel_residual": False}),
    ("bloom-560m", {"tie_word_embeddings": False, "n_inner": 1000}),
    ("opt-350m", {"word_embed_proj_dim": 1024, "do_layer_norm_before": True}),
    ("opt-125m", {"enable_bias": False, "layer_norm_elementwise_affine": False}),
    ("opt-125m", {"_remove_final_layer_norm": True, "tie_word_embeddings": False}),
    ("falcon-7b", {"multi_query": False, "bias": True}),
    ("falcon-7b", {"parallel_attn": False, "alibi": True}),
    ("falcon-7b", {"ffn_hidden_size": 5000}),
    ("falcon-7b", {"num_ln_in_parallel_attn": 2}),
    ("falcon-40b", {"num_ln_in_parallel_attn": 1}),
    ("bert-base", {"tie_word_embeddings": False, "type_vocab_size": 7}),
    ("roberta-base", {"tie_word_embeddings": False}),
    ("t5-small", {"num_decoder_layers": 2}),
    ("t5-small", {"feed_forward_proj": "gated-silu"}),
    ("whisper-large-v3", {"tie_word_embeddings": False, "num_mel_bins": 80}),
    ("whisper-large-v3", {"decoder_layers": 2, "decoder_ffn_dim": 640}),
    ("vit-base", {"qkv_bias": False, "image_size": 384, "id2label": {"0": "a", "1": "b"}}),
    ("vit-base", {"image_size": [224, 224], "patch_size": 32}),
    ("mamba-130m", {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False}),
    ("mamba-130m", {"intermediate_size": 2048}),
    ("falcon-mamba-7b", {"use_bias": True, "time_step_rank": "auto"}),
    ("mamba-codestral-7b", {"use_bias": True, "use_conv_bias": False, "n_groups": 4}),
    ("jamba-mini", {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_proj_bias": True}),
    ("jamba-mini", {"num_experts": 1, "num_experts_per_tok": 1, "mamba_conv_bias": False}),
    ("bamba-9b", {"attn_layer_indices": [1, 3], "attention_bias": True, "mlp_bias": True}),
    ("bamba-9b", {"mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_d_head": "auto"}),
    ("granite-4.0-h-tiny", {"layer_types": ["linear_attention", "full_attention"] * 2}),
    ("granite-4.0-h-tiny", {"layer_types": None, "attention_bias": True}),
    ("nemotron-h-8b", {"use_bias": True, "mlp_bias": True, "moe_latent_size": 512}),
    ("nemotron-h-8b", {"hybrid_override_pattern": "ME*-", "n_routed_experts": 4}),
    ("falcon-h1-7b", {"mamba_rms_norm": True, "projectors_bias": True}),
    ("falcon-h1-7b", {"mamba_d_ssm": None, "mamba_n_heads": 48, "mamba_proj_bias": True}),
    ("lfm2-1.2b", {"full_attn_idxs": None, "conv_bias": True}),
    ("lfm2-1.2b", {"block_ffn_dim_multiplier": 1.3, "tie_embedding": False}),
    ("lfm2-1.2b", {"block_auto_adjust_ff_dim": False, "layer_types": ["conv"] * 4}),
    ("qwen3-next-80b-a3b", {"mlp_only_layers": [1], "attention_bias": True}),
    ("qwen3-next-80b-a3b", {"full_attention_interval": 2, "decoder_sparse_step": 2}),
]


@pytest.mark.parametrize(("name", "changes"), VARIATIONS)
def test_every_switch_of_a_config_is_read(name: str, changes: dict[str, Any]) -> None:
    """A field that turns tensors on, off or to another width does so here as in transformers."""
    assert_same_tensors(shallow(read(name)) | changes)


def test_the_switches_of_a_vision_tower_are_read() -> None:
    """SigLIP's pooling head exists only with `vision_use_head`."""
    config = shallow(read("gemma-3-4b"))
    config["vision_config"]["vision_use_head"] = True
    assert_same_tensors(config)


# Fields that a config cannot do without: sizes every saved config holds, and head counts whose
# default need not divide the other sizes (transformers then builds a model that cannot run).
ASKED_FOR = {
    *LAYER_FIELDS,
    "hidden_size",
    "n_embd",
    "d_model",
    "n_embed",
    "num_experts_per_tok",
    "num_local_experts",
    "num_attention_heads",
    "num_key_value_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "mamba_n_heads",
    "mamba_d_ssm",
    "hybrid_override_pattern",
}
SPELLED_TWICE = {("mamba-130m", "hidden_size"), ("mamba-130m", "num_hidden_layers")}


def without_one_field(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The model's config without each of its fields in turn, as (field, config)."""
    configs = []
    for section in ("", "text_config", "vision_config"):
        part = read(name).get(section, {}) if section else read(name)
        for field in part:
            kept = field in ("model_type", "architectures", "pad_token_id")
            if kept or isinstance(part[field], dict) or (name, field) in SPELLED_TWICE:
                continue
            config = shallow(read(name), layers=2)
            del (config[section] if section else config)[field]
            configs.append((field, config))
    return configs


def transformers_shapes(config: Mapping[str, Any]) -> list[tuple[int, ...]] | None:
    """Shapes of the parameters that transformers builds; None where it refuses the config."""
    try:
        theirs = meta_model(config)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return sorted(tuple(value.shape) for value in theirs.parameters())


@pytest.mark.parametrize("name", sorted(FAMILY_MODELS))
def test_a_missing_field_takes_transformers_default(name: str) -> None:
    """Without any one field the tensors are still transformers', or the field is asked for."""
    compared = 0
    for field, config in without_one_field(name):
        try:
            ours = sorted(tensor.shape for tensor in Model.from_config(config).tensors)
        except ScenarioError:
            assert field in ASKED_FOR
            continue
        expected = transformers_shapes(config)
        if expected is not None:
            assert ours == expected, field
            compared += 1
    assert compared >= 8


@pytest.mark.parametrize(
    "name",
    [
        "mistral-7b",
        "gemma-2-9b",
        "gemma-3-1b",
        "gemma-3-27b",
        "gpt-oss-20b",
        "qwen2.5-7b",
        "llama-3-8b",
        "llama-4-scout",
    ],
)
def test_sliding_layers_are_those_of_transformers(name: str) -> None:
    """Which layers see a window is what transformers' config calls their layer type."""
    config = read(name)
    theirs = config_object(config).get_text_config()
    shapes = [
        module.block
        for module in Model.from_config(config).blocks
        if module.block is not None and module.block.tokens == "sequence"
    ]
    types = getattr(theirs, "layer_types", None) or (
        ["sliding_attention" if getattr(theirs, "sliding_window", None) else "full_attention"]
        * len(shapes)
    )
    assert [bool(shape.sliding_window) for shape in shapes] == [
        t != "full_attention" for t in types
    ]


def test_qwen_windows_start_at_max_window_layers() -> None:
    """With `use_sliding_window` the layers from `max_window_layers` on are sliding."""
    config = shallow(read("qwen2.5-7b"), 6) | {"use_sliding_window": True, "max_window_layers": 4}
    types = config_object(config).layer_types
    shapes = [module.block for module in Model.from_config(config).blocks]
    assert [s.sliding_window > 0 for s in shapes if s] == [t != "full_attention" for t in types]
    assert sum(t != "full_attention" for t in types) == 2
