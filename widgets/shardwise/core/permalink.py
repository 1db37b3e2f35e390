"""A scenario as a query string and back: short, versioned, and read with suspicion.

Only what differs from the defaults is written. A key that is unknown or a value that is not allowed
is left out and said, so that an old or broken link still opens.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from shardwise.core.cluster import Cluster
from shardwise.core.errors import ScenarioError, shown, unknown_key
from shardwise.core.scenario import DEFAULT_MODEL, Scenario
from shardwise.core.training import Training

VERSION = "1"
LONGEST_QUERY = 32_000
LONGEST_CONFIG = 1_000_000
_MOST_FIELDS = 100


@dataclass(frozen=True)
class Opened:
    """What a link opened: the scenario, and a sentence for each thing that was left out."""

    scenario: Scenario
    notes: tuple[str, ...]


def to_query(scenario: Scenario) -> str:
    """The query string of a scenario, without the question mark.

    >>> to_query(Scenario.from_dict({"cluster": {"nodes": 2}}))
    'v=1&model=llama-3-8b&nodes=2'
    """
    given = scenario.to_dict()
    pairs: list[tuple[str, str]] = [("v", VERSION), *_model_pairs(given["model"])]
    cluster = _mapping(given, "cluster")
    base = Cluster.from_dict({k: cluster[k] for k in ("gpu", "gpus_per_node")}).to_dict()
    for section in ("cluster", "training", "layout"):
        own = _flat(_mapping(given, section))
        usual = _flat(base) if section == "cluster" else _USUAL[section]
        if section == "cluster":
            usual |= {
                "gpu": _USUAL["cluster"]["gpu"],
                "gpus_per_node": scenario.cluster.gpu.gpus_per_node,
            }
        for key, value in own.items():
            if key == "data_parallel":
                continue
            default = _whole_group(scenario) if key == "shard" else usual.get(key)
            if value != default:
                pairs.append((key, value if isinstance(value, str) else json.dumps(value)))
    return urlencode(pairs)


def _whole_group(scenario: Scenario) -> int:
    """The ranks that states are sharded over when nothing else is said."""
    group = scenario.data_parallel * scenario.layout.context_parallel
    return group if scenario.layout.zero_stage else 1


def from_query(query: str) -> Opened:
    """The scenario of a query string; never raises.

    >>> from_query("?v=1&model=llama-3-8b&bogus=4").notes
    ("The link's bogus=4 was left out: no part of a scenario has that name.",)
    """
    notes: list[str] = []
    if len(query) > LONGEST_QUERY:
        return Opened(Scenario.from_dict({}), ("The link is too long to be one of ours.",))
    try:
        pairs = dict(parse_qsl(query.lstrip("?"), max_num_fields=_MOST_FIELDS))
    except ValueError:
        return Opened(Scenario.from_dict({}), ("The link could not be read.",))
    if pairs.pop("v", VERSION) != VERSION:
        notes.append("The link is of another version; what is still understood was taken.")
    given: dict[str, object] = {"model": _model(pairs, notes)}
    for key, text in pairs.items():
        section = _SECTION_OF.get(key)
        if section is None:
            notes.append(_unknown(key, text))
            continue
        trial = _with(given, section, key, _value(text))
        try:  # alone: what goes together is seen once all of it is there
            if section == "cluster":
                Cluster.from_dict(trial[section])
            elif section == "training":
                Training.from_dict(trial[section])
        except ScenarioError as problem:
            notes.append(f"The link's {key}={shown(text)[1:-1]} was left out: {problem}")
            continue
        given = trial
    return _complete(given, notes)


def _unknown(key: str, text: str) -> str:
    """A key that no section has, with the nearest one where there is one."""
    hint = unknown_key("link", key, sorted(_SECTION_OF)).hint
    what = f"no part of a scenario has that name{f'; {hint}' if hint else ''}."
    return f"The link's {shown(key)[1:-1]}={shown(text)[1:-1]} was left out: {what}"


def _complete(given: dict[str, object], notes: list[str]) -> Opened:
    said = ""
    for dropped in ((), ("layout",), ("training",), ("layout", "training")):
        kept = {key: value for key, value in given.items() if key not in dropped}
        try:
            opened = Scenario.from_dict(kept)
        except ScenarioError as problem:
            said = said or str(problem)
            continue
        if dropped:
            notes.append(f"The link's {' and '.join(dropped)} was left out: {said}")
        return Opened(opened, tuple(notes))
    notes.append(f"The link was left out: {said}")
    return Opened(Scenario.from_dict({}), tuple(notes))


def _mapping(given: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = given[key]
    assert isinstance(value, Mapping)
    return value


def _flat(section: Mapping[str, object]) -> dict[str, object]:
    """One level: the two offloads become keys of their own."""
    flat = {key: value for key, value in section.items() if key != "offload"}
    offload = section.get("offload", {})
    assert isinstance(offload, Mapping)
    return flat | {f"offload_{key}": value for key, value in offload.items()}


def _with(given: dict[str, object], section: str, key: str, value: object) -> dict[str, object]:
    own = given.get(section, {})
    assert isinstance(own, dict)
    if key.startswith("offload_"):
        offload = {**own.get("offload", {}), key.removeprefix("offload_"): value}
        return {**given, section: {**own, "offload": offload}}
    return {**given, section: {**own, key: value}}


def _value(text: str) -> object:
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _model_pairs(source: object) -> list[tuple[str, str]]:
    if isinstance(source, str):
        return [("model", source)]
    assert isinstance(source, Mapping)
    if set(source) == {"parameters"}:
        return [("parameters", f"{source['parameters']}")]
    packed = zlib.compress(json.dumps(source, separators=(",", ":")).encode(), 9)
    return [("config", base64.urlsafe_b64encode(packed).decode().rstrip("="))]


def _model(pairs: dict[str, str], notes: list[str]) -> object:
    name, parameters = pairs.pop("model", None), pairs.pop("parameters", None)
    config = pairs.pop("config", None)
    source: object = DEFAULT_MODEL
    if config is not None:
        source = _unpacked(config)
        if source is None:
            notes.append("The link's config could not be read; the default model is shown.")
            return DEFAULT_MODEL
    elif parameters is not None:
        source = {"parameters": parameters}
    elif name is not None:
        source = name
    try:
        Scenario.from_dict({"model": source})
    except ScenarioError as problem:
        notes.append(f"The link's model was left out: {problem}")
        return DEFAULT_MODEL
    return source


def _unpacked(text: str) -> object:
    """A config from its packed form; a bomb stops at one megabyte."""
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(packed, LONGEST_CONFIG)
        return json.loads(plain)
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return None


def _usual() -> dict[str, dict[str, object]]:
    """Every section's default values, by key."""
    default = Scenario.from_dict({"model": {"parameters": 7e9}}).to_dict()
    return {name: _flat(_mapping(default, name)) for name in ("cluster", "training", "layout")}


_USUAL = _usual()
_SECTION_OF = {key: section for section, values in _USUAL.items() for key in values}
