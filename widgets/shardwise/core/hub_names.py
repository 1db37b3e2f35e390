"""Names as the Hugging Face hub has them, and the catalogue's model that each comes nearest to."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_REPOSITORY = re.compile(
    r"(?:https?://)?(?:www\.)?(?:(?:huggingface\.co|hf\.co)/)?([\w.-]+/[\w.-]+)(?:/(?:tree|blob|resolve|raw)/\S*)?/?",
    re.ASCII,
)
_WORDS = re.compile(r"[-_/\s]+")


def repository(text: str) -> str:
    """The `owner/name` that a hub id or the address of a model's page holds; else nothing.

    >>> repository("https://huggingface.co/meta-llama/Llama-3-8B/tree/main")
    'meta-llama/Llama-3-8B'
    >>> repository("llama-3-8b"), repository('{"hidden_size": 64}')
    ('', '')
    """
    found = _REPOSITORY.fullmatch(text.strip()[:200])
    return found[1] if found else ""


def nearest_model(typed: str, names: Iterable[str]) -> str:
    """The catalogue's name whose words all stand in what was typed, else one spelled alike.

    >>> nearest_model("meta-llama/Meta-Llama-3-8B-Instruct", ["llama-2-7b", "llama-3-8b"])
    'llama-3-8b'
    """
    listed = tuple(names)
    own = typed.strip()[:200].rstrip("/").rpartition("/")[2].casefold()
    words = set(_WORDS.split(own))
    held = [name for name in listed if set(_WORDS.split(name.casefold())) <= words]
    if held:
        return max(held, key=lambda name: (len(_WORDS.split(name)), len(name)))
    folded = {name.casefold(): name for name in listed}
    near = difflib.get_close_matches(own, folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else ""
