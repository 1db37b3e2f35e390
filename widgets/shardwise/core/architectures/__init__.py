"""From a config.json to a model: which family it is, which class is built, what is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from shardwise.core.architectures import (
    bamba,
    bert,
    bert_relatives,
    deepseek,
    falcon,
    gemma3,
    gpt_like,
    gpt_relatives,
    jamba,
    layer_norm_decoders,
    lfm2,
    llama4,
    llama_like,
    llama_relatives,
    mamba,
    mixture,
    mixture_relatives,
    modernbert,
    nemotron,
    opt,
    qwen3_next,
    t5,
    unknown,
    vit,
    whisper,
)
from shardwise.core.architectures.family import Family
from shardwise.core.architectures.not_a_model import refuse_other_files
from shardwise.core.config_fields import ConfigFields
from shardwise.core.errors import ScenarioError, shown
from shardwise.core.model import Model

_MODULES = (
    llama_like,
    gpt_like,
    opt,
    falcon,
    mixture,
    deepseek,
    llama4,
    gemma3,
    bert,
    t5,
    whisper,
    vit,
    mamba,
    jamba,
    bamba,
    nemotron,
    lfm2,
    qwen3_next,
    llama_relatives,
    layer_norm_decoders,
    mixture_relatives,
    gpt_relatives,
    bert_relatives,
    modernbert,
)
_DTYPES = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")


@cache
def families() -> dict[str, Family]:
    """Every family whose tensors are reproduced exactly, by `model_type`."""
    return {family.model_type: family for module in _MODULES for family in module.FAMILIES}


@cache
def families_by_class() -> dict[str, Family]:
    """The same by the name of the transformers class."""
    return {name: family for family in families().values() for name in family.classes}


def build(config: Mapping[str, Any], name: str = "") -> Model:
    """The model of one config.json; `Model.from_config` says what it raises."""
    if not isinstance(config, Mapping):
        raise ScenarioError("config.json", config, "one JSON object { ... } with a model's fields")
    refuse_other_files(config)
    plain = ConfigFields(config, {}, "the config")
    model_type, named = plain.text("model_type"), _named_class(config)
    family = families().get(model_type) or families_by_class().get(named)
    if family is None:
        fields = ConfigFields(config, {}, "a LLaMA-like decoder")
        draft = unknown.build(fields, model_type, named)
        architecture, known = _plain(named or model_type) or "unknown", False
    else:
        fields = ConfigFields(config, family.defaults, family.label)
        architecture, head, known = _choose(fields, family, model_type, named)
        for field in family.required:
            if not fields.has(field):
                hint = "the text may be cut off; paste the whole config.json"
                raise ScenarioError(field, None, f"a value, as every {family.model_type} has", hint)
        draft = family.build(fields, head)
        if config.get("add_cross_attention") is True:
            fields.assume("add_cross_attention is true: its tensors are not counted.")
            known = False
    _note_prediction(fields)
    dtype = _dtype(fields)
    _note_quantization(fields)
    return Model(
        name=_name(name, config),
        architecture=architecture,
        modules=draft.modules,
        hidden=draft.hidden,
        vocabulary=draft.vocabulary,
        max_positions=draft.max_positions,
        tied=draft.tied,
        torch_dtype=dtype,
        fixed_sequence=draft.fixed_sequence,
        assumptions=fields.sentences(),
        known=known and not fields.guessed,
    )


def _note_prediction(fields: ConfigFields) -> None:
    """DeepSeek-V3's files have layers that transformers' class does not make."""
    depth = fields.config.get("num_nextn_predict_layers")
    if isinstance(depth, int) and not isinstance(depth, bool) and depth > 0:
        fields.assume(
            f"num_nextn_predict_layers is {depth}: transformers' modules ignore those weights; "
            "training.mtp_layers counts them with Megatron-LM's model code."
        )


def _named_class(config: Mapping[str, Any]) -> str:
    """The first entry of `architectures`, or nothing."""
    given = config.get("architectures")
    if given is None or given == []:
        return ""
    texts = isinstance(given, list) and all(isinstance(v, str) and len(v) <= 200 for v in given)
    if not texts:
        allowed = 'a list of texts such as ["LlamaForCausalLM"]'
        raise ScenarioError("architectures", given, allowed)
    return str(given[0])


def _choose(
    fields: ConfigFields, family: Family, model_type: str, named: str
) -> tuple[str, str, bool]:
    """The class to build, its head, and whether its tensors are known."""
    default = next(iter(family.classes))
    if model_type != family.model_type:
        said = f"model_type {shown(model_type)} is not known" if model_type else "No model_type"
        fields.assume(f"{said}: read as {family.model_type}, which {named} belongs to.")
    if not named:
        fields.assume(f"No architectures: counted as {default}.")
        return default, family.classes[default], True
    for name, head in family.classes.items():
        if name.lower() == named.lower():
            return name, head, True
    fields.assume(
        f"The head of {shown(named)} is not known: counted as {default}, "
        "so the total can differ by the head."
    )
    return _plain(named), family.classes[default], False


def _dtype(fields: ConfigFields) -> str:
    """`torch_dtype` (`dtype` in newer configs); float32, torch's default, where it is missing."""
    for field in ("torch_dtype", "dtype"):
        name = fields.text(field).removeprefix("torch.")
        if name in ("", "auto"):
            continue
        if name not in _DTYPES:
            raise ScenarioError(field, name, f"one of {', '.join(_DTYPES)}")
        return name
    return "float32"


def _note_quantization(fields: ConfigFields) -> None:
    given = fields.config.get("quantization_config")
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ScenarioError("quantization_config", given, "an object { ... }")
    method = given.get("quant_method", "of an unnamed kind")
    fields.assume(
        f"The checkpoint's quantization ({shown(method)}) is left out: "
        "parameters are counted as the unquantized model has them."
    )


def _name(name: str, config: Mapping[str, Any]) -> str:
    """The given name, or the config's own `_name_or_path`."""
    path = config.get("_name_or_path")
    return _plain(name or (path if isinstance(path, str) else ""))


def _plain(text: str) -> str:
    """One line of visible characters; markup stays the text that it is."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:200]).split())
