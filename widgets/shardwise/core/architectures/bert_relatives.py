"""Encoders after BERT: CamemBERT, ELECTRA, DistilBERT."""

from __future__ import annotations

from functools import partial

from shardwise.core.architectures import bert
from shardwise.core.architectures.family import Draft, Family
from shardwise.core.architectures.templates import (
    ALWAYS,
    COLUMN,
    ROW,
    VOCABULARY,
    Rows,
    linear,
    norm,
    rows,
    tensor,
    unit,
)
from shardwise.core.config_fields import ConfigFields

LABELS = linear("", "labels", "hidden", "head", bias=ALWAYS)
_TWO_LAYERS = rows(
    linear("dense", "hidden", "hidden", "head", bias=ALWAYS),
    linear("out_proj", "labels", "hidden", "head", bias=ALWAYS),
)
_BIAS = tensor("bias", "vocabulary", part="head", cut=VOCABULARY)
_UNTIED = tensor("weight", "vocabulary", "embedding", part="head", cut=VOCABULARY, when="free")
_ELECTRA_EMBEDDINGS = rows(
    tensor("word_embeddings.weight", "vocabulary", "embedding", part="embedding", cut=VOCABULARY),
    tensor("position_embeddings.weight", "positions", "embedding", part="position"),
    tensor("token_type_embeddings.weight", "types", "embedding", part="embedding"),
    norm("LayerNorm", "embedding", bias=ALWAYS),
)
_PROJECT = linear("", "hidden", "embedding", "embedding", bias="projected", when="projected")
_ELECTRA_HEADS: dict[str, tuple[tuple[str, Rows], ...]] = {
    "masked": (
        (
            "generator_predictions",
            rows(
                norm("LayerNorm", "embedding", bias=ALWAYS),
                linear("dense", "embedding", "hidden", "head", bias=ALWAYS),
            ),
        ),
        ("generator_lm_head", rows(_UNTIED, _BIAS)),
    ),
    "replaced": (
        (
            "discriminator_predictions",
            rows(
                linear("dense", "hidden", "hidden", "head", bias=ALWAYS),
                linear("dense_prediction", 1, "hidden", "head", bias=ALWAYS),
            ),
        ),
    ),
    "sequence": (("classifier", _TWO_LAYERS),),
    "tokens": (("classifier", LABELS),),
    "answers": (("qa_outputs", LABELS),),
}


def electra(fields: ConfigFields, head: str) -> Draft:
    """BERT's blocks over narrower embeddings."""
    sizes = bert.sizes_of(fields, head)
    narrow = fields.whole("embedding_size")
    sizes |= {"embedding": narrow, "projected": int(narrow != sizes["hidden"])}
    base = "" if head == "none" else "electra."
    shape = bert.shape_of(fields, sizes)
    modules = unit(f"{base}embeddings", "embedding", _ELECTRA_EMBEDDINGS, sizes)
    modules += unit(f"{base}embeddings_project", "embedding", _PROJECT, sizes)
    for index in range(fields.layer_count()):
        modules += unit(f"{base}encoder.layer.{index}", "block", bert.BLOCK, sizes, shape)
    for name, template in _ELECTRA_HEADS.get(head, ()):
        modules += unit(name, "head", template, sizes)
    tied = head == "masked" and not sizes["free"]
    return Draft(modules, sizes["hidden"], sizes["vocabulary"], sizes["positions"], tied)


_DISTIL_BLOCK = rows(
    linear("attention.q_lin", "query", "hidden", "attention", COLUMN, bias=ALWAYS),
    linear("attention.k_lin", "key_value", "hidden", "attention", COLUMN, bias=ALWAYS),
    linear("attention.v_lin", "key_value", "hidden", "attention", COLUMN, bias=ALWAYS),
    linear("attention.out_lin", "hidden", "query", "attention", ROW, bias=ALWAYS),
    norm("sa_layer_norm", bias=ALWAYS),
    linear("ffn.lin1", "intermediate", "hidden", "mlp", COLUMN, bias=ALWAYS),
    linear("ffn.lin2", "hidden", "intermediate", "mlp", ROW, bias=ALWAYS),
    norm("output_layer_norm", bias=ALWAYS),
)
_DISTIL_EMBEDDINGS = rows(
    tensor("word_embeddings.weight", "vocabulary", "hidden", part="embedding", cut=VOCABULARY),
    tensor("position_embeddings.weight", "positions", "hidden", part="position"),
    norm("LayerNorm", bias=ALWAYS),
)
_DISTIL_HEADS: dict[str, tuple[tuple[str, Rows], ...]] = {
    "masked": (
        ("vocab_transform", linear("", "hidden", "hidden", "head", bias=ALWAYS)),
        ("vocab_layer_norm", norm("", bias=ALWAYS)),
        (
            "vocab_projector",
            rows(
                tensor("weight", "vocabulary", "hidden", part="head", cut=VOCABULARY, when="free"),
                _BIAS,
            ),
        ),
    ),
    "sequence": (
        ("pre_classifier", linear("", "hidden", "hidden", "head", bias=ALWAYS)),
        ("classifier", LABELS),
    ),
    "tokens": (("classifier", LABELS),),
    "answers": (("qa_outputs", LABELS),),
}


def distilbert(fields: ConfigFields, head: str) -> Draft:
    """BERT's blocks under other names, without types and pooler."""
    sizes = bert.sizes_of(fields, head)
    base = "" if head == "none" else "distilbert."
    shape = bert.shape_of(fields, sizes)
    modules = unit(f"{base}embeddings", "embedding", _DISTIL_EMBEDDINGS, sizes)
    for index in range(fields.layer_count()):
        modules += unit(f"{base}transformer.layer.{index}", "block", _DISTIL_BLOCK, sizes, shape)
    for name, template in _DISTIL_HEADS.get(head, ()):
        modules += unit(name, "head", template, sizes)
    tied = head == "masked" and not sizes["free"]
    return Draft(modules, sizes["hidden"], sizes["vocabulary"], sizes["positions"], tied)


_CLASSES = {
    "ForMaskedLM": "masked",
    "Model": "none",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tokens",
}
_BERT = {**bert.DEFAULTS, "max_position_embeddings": 512}


def classes(prefix: str, **more: str) -> dict[str, str]:
    """The classes of an encoder with the heads that all have, and more."""
    return {f"{prefix}{end}": head for end, head in {**_CLASSES, **more}.items()}


FAMILIES = (
    Family(
        "camembert",
        "CamembertConfig",
        classes("Camembert", ForQuestionAnswering="answers"),
        _BERT,
        partial(bert.build, kind="roberta"),
    ),
    Family(
        "electra",
        "ElectraConfig",
        classes("Electra", ForQuestionAnswering="answers", ForPreTraining="replaced"),
        {**_BERT, "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4}
        | {"intermediate_size": 1024},
        electra,
    ),
    Family(
        "distilbert",
        "DistilBertConfig",
        classes("DistilBert", ForQuestionAnswering="answers"),
        {**_BERT, "num_hidden_layers": 6, "type_vocab_size": 2},
        distilbert,
    ),
)
