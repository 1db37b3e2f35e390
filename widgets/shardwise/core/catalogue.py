"""The catalogue in `data/`: models, cards and links, each read once and checked row by row."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from shardwise.core.errors import ScenarioError, unknown_key
from shardwise.core.hardware import DTYPES, Gpu, Link
from shardwise.core.hub_names import nearest_model, repository
from shardwise.core.model import Model
from shardwise.core.units import parse_number, parse_whole

Row = Mapping[str, str]
Part = TypeVar("Part", Gpu, Link)

GPU_COLUMNS = (
    "key", "name", "vendor", "architecture", "memory_bytes", "usable_bytes", "usable_source",
    "bandwidth", *DTYPES, "bf16_support", "flash_attention", "link", "network", "gpus_per_node",
    "peer_to_peer", "source",
)  # fmt: skip
LINK_COLUMNS = ("key", "name", "scope", "per", "bytes_per_second", "latency_seconds", "source")


@cache
def data_root() -> Traversable:
    """The folder that holds `models/`, `gpus.csv` and `links.csv`: a wheel's or the checkout's."""
    packaged = resources.files("shardwise") / "data"
    if packaged.is_dir():
        return packaged
    checkout = Path(__file__).resolve().parents[3] / "data"
    if (checkout / "gpus.csv").is_file():
        return checkout
    raise FileNotFoundError(f"no catalogue at {packaged} or {checkout}")


@cache
def model_names() -> tuple[str, ...]:
    """The names of the catalogue's models, sorted."""
    folder = data_root() / "models"
    found = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in found if name.endswith(".json")))


def load_model(name: str) -> Model:
    """The catalogue's model of that name; a second call gives the same object.

    Raises:
        ScenarioError: no such model; the hint names the nearest.
    """
    if not isinstance(name, str) or name not in model_names():
        raise _unknown_model(name)
    return _read_model(name)


def _unknown_model(name: object) -> ScenarioError:
    """The error for a name that the catalogue lacks: the nearest, and that nothing is fetched."""
    error = unknown_key("model", name, model_names())
    near = nearest_model(name, model_names()) if isinstance(name, str) else ""
    if not near:
        return error
    hint = f"the nearest is {near!r}"
    if repository(str(name)):
        hint += "; nothing is downloaded: for another model give its config.json"
    return ScenarioError(error.field, name, error.allowed, hint)


@cache
def gpus() -> Mapping[str, Gpu]:
    """The cards of `gpus.csv` by key, in the file's order."""
    return parse_gpus((data_root() / "gpus.csv").read_text(encoding="utf-8"), links())


@cache
def links() -> Mapping[str, Link]:
    """The links of `links.csv` by key, in the file's order."""
    return parse_links((data_root() / "links.csv").read_text(encoding="utf-8"))


def parse_gpus(text: str, known_links: Mapping[str, Link]) -> Mapping[str, Gpu]:
    """Cards from CSV text; an error names the line and the column.

    Raises:
        ScenarioError: a column or a value is missing, twice there or out of range.
    """
    cards = _parse("gpus.csv", text, GPU_COLUMNS, _gpu)
    for card in cards.values():
        for column, scope in (("link", "intra"), ("network", "inter")):
            key = card.link if column == "link" else card.network
            fitting = [k for k, link in known_links.items() if link.scope == scope]
            if key not in fitting:
                raise unknown_key(f"gpus.csv, {card.key}, {column}", key, fitting)
    return cards


def parse_links(text: str) -> Mapping[str, Link]:
    """Links from CSV text; an error names the line and the column.

    Raises:
        ScenarioError: a column or a value is missing, twice there or out of range.
    """
    return _parse("links.csv", text, LINK_COLUMNS, _link)


@cache
def _read_model(name: str) -> Model:
    text = (data_root() / "models" / f"{name}.json").read_text(encoding="utf-8")
    return Model.from_json(text, name=name)


def _parse(
    file: str, text: str, columns: tuple[str, ...], make: Callable[[Row], Part]
) -> Mapping[str, Part]:
    found: dict[str, Part] = {}
    for line, row in _rows(file, text, columns):
        try:
            part = make(row)
        except ScenarioError as error:
            raise ScenarioError(
                f"{file} line {line}, {error.field}", error.value, error.allowed, error.hint
            ) from error
        if part.key in found:
            raise ScenarioError(f"{file} line {line}, key", part.key, "a key of no other row")
        found[part.key] = part
    return MappingProxyType(found)


def _rows(file: str, text: str, columns: tuple[str, ...]) -> Iterator[tuple[int, Row]]:
    """Each row with its line number, all columns filled in or empty, none over."""
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = next(reader, [])
        if tuple(header) != columns:
            raise ScenarioError(f"{file} line 1", ",".join(header), ",".join(columns))
        for cells in reader:
            if len(cells) != len(columns):
                allowed = f"{len(columns)} columns"
                raise ScenarioError(f"{file} line {reader.line_num}", cells, allowed)
            yield reader.line_num, dict(zip(columns, cells, strict=True))
    except csv.Error as error:
        allowed = f"quoted CSV ({error})"
        raise ScenarioError(f"{file} line {reader.line_num}", "a broken row", allowed) from error


def _gpu(row: Row) -> Gpu:
    return Gpu(
        key=row["key"],
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        memory_bytes=parse_whole(row["memory_bytes"], "memory_bytes", minimum=1, maximum=2**50),
        usable_bytes=parse_whole(row["usable_bytes"], "usable_bytes", minimum=1, maximum=2**50),
        usable_source=_text(row, "usable_source"),
        bandwidth=parse_number(row["bandwidth"], "bandwidth", minimum=1, maximum=1e15),
        peak_flops=tuple(
            (dtype, parse_number(row[dtype], dtype, minimum=1, maximum=1e18))
            for dtype in DTYPES
            if row[dtype]
        ),
        bf16=_flag(row, "bf16_support"),
        flash_attention=_flag(row, "flash_attention"),
        link=row["link"],
        network=row["network"],
        gpus_per_node=parse_whole(row["gpus_per_node"], "gpus_per_node", minimum=1, maximum=1024),
        peer_to_peer=_flag(row, "peer_to_peer"),
        source=_text(row, "source"),
    )


def _link(row: Row) -> Link:
    return Link(
        key=row["key"],
        name=row["name"],
        scope=row["scope"],
        per=row["per"],
        bytes_per_second=parse_number(
            row["bytes_per_second"], "bytes_per_second", minimum=1, maximum=1e15
        ),
        latency_seconds=parse_number(
            row["latency_seconds"], "latency_seconds", minimum=1e-9, maximum=1
        ),
        source=_text(row, "source"),
    )


def _flag(row: Row, column: str) -> bool:
    if row[column] not in ("true", "false"):
        raise ScenarioError(column, row[column], "true, false")
    return row[column] == "true"


def _text(row: Row, column: str) -> str:
    if not row[column].strip():
        raise ScenarioError(column, row[column], "some text")
    return row[column]
