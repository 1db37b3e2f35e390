"""Hub ids and pages' addresses: told from other text, and the catalogue's nearest model named."""

from __future__ import annotations

import pytest

from shardwise.core.catalogue import load_model, model_names
from shardwise.core.errors import ScenarioError
from shardwise.core.hub_names import nearest_model, repository
from shardwise.core.permalink import from_query

PUBLISHED = {
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "mistralai/Mistral-7B-v0.3": "mistral-7b",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "openai-community/gpt2-xl": "gpt2-xl",
    "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini",
    "google-bert/bert-base-uncased": "bert-base",
    "google/vit-base-patch16-224": "vit-base",
    "state-spaces/mamba-2.8b-hf": "mamba-2.8b",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
    "allenai/OLMo-2-1124-7B": "olmo-2-7b",
}
"""Repositories of the hub, with the catalogue's model that each is a training of."""


@pytest.mark.parametrize(("published", "name"), PUBLISHED.items())
def test_a_published_repository_is_nearest_to_the_model_it_trains(
    published: str, name: str
) -> None:
    """Owner, tuning and date do not hide the family and the size."""
    assert nearest_model(published, model_names()) == name


@pytest.mark.parametrize("name", model_names())
def test_every_catalogue_name_is_nearest_to_itself(name: str) -> None:
    """With an owner before it, and in capitals."""
    assert nearest_model(f"someone/{name.upper()}", model_names()) == name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("meta-llama/Llama-3-8B", "meta-llama/Llama-3-8B"),
        (" https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json ", "Qwen/Qwen3-8B"),
        ("hf.co/Qwen/Qwen3-8B/", "Qwen/Qwen3-8B"),
        ("llama-3-8b", ""),
        ('{"a/b": 1}', ""),
        ("a/b/c", ""),
        ("<a/b>", ""),
        ("", ""),
        ("/" * 100_000, ""),
    ],
)
def test_only_a_name_with_an_owner_is_a_repository(text: str, found: str) -> None:
    """Ids and addresses are; catalogue names, JSON, markup and rubbish are not."""
    assert repository(text) == found


def test_a_hub_id_is_refused_with_the_nearest_model_and_the_reason() -> None:
    """From a cell and from a link: nothing is downloaded, so the catalogue's model is named."""
    with pytest.raises(ScenarioError, match=r"the nearest is 'llama-3-8b'; nothing is downloaded"):
        load_model("meta-llama/Meta-Llama-3-8B-Instruct")
    opened = from_query("?v=1&model=Qwen/Qwen2.5-7B-Instruct")
    assert "the nearest is 'qwen2.5-7b'" in opened.notes[0]
    with pytest.raises(ScenarioError) as unlike:
        load_model("zzz/qqqq")
    assert "nearest" not in str(unlike.value)
