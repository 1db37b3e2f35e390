"""The GPUs that somebody has: which card, how many in a node, how many nodes, what joins them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.core import catalogue
from shardwise.core.custom_hardware import custom_gpu, custom_link, gpu_to_dict, link_to_dict
from shardwise.core.errors import ScenarioError, unknown_key
from shardwise.core.fields import section, whole
from shardwise.core.hardware import MAX_GPUS_PER_NODE, Gpu, Link
from shardwise.core.hashed import hashed_once
from shardwise.core.units import GIB, format_bound, parse_number

__all__ = ["Cluster", "Gpu", "Link", "default_host_memory_bytes"]

DEFAULT_GPU = "h100-sxm-80gb"
MAX_NODES = 100_000
MAX_HOST_MEMORY_GIB = 2**20

_KEYS = ("gpu", "gpus_per_node", "nodes", "intra_node", "inter_node", "host_memory_gib")


@hashed_once
@dataclass(frozen=True)
class Cluster:
    """Nodes of one kind, each with the same cards; `host_memory_bytes` is one node's RAM."""

    gpu: Gpu
    gpus_per_node: int
    nodes: int
    intra_node: Link
    inter_node: Link
    host_memory_bytes: int

    def __post_init__(self) -> None:
        """Refuse counts out of range and a link on the wrong side of the node's border."""
        _check_whole(self.gpus_per_node, "gpus_per_node", 1, MAX_GPUS_PER_NODE)
        _check_whole(self.nodes, "nodes", 1, MAX_NODES)
        most = MAX_HOST_MEMORY_GIB * GIB
        _check_whole(self.host_memory_bytes, "host_memory_bytes", GIB, most)
        _check_scope(self.intra_node, "intra_node", "intra")
        _check_scope(self.inter_node, "inter_node", "inter")

    @property
    def world_size(self) -> int:
        """GPUs in all nodes together."""
        return self.gpus_per_node * self.nodes

    @property
    def node_bytes_per_second(self) -> float:
        """What one node can send to the others, in one direction, over all its ports."""
        ports = self.gpus_per_node if self.inter_node.per == "gpu" else 1
        return ports * self.inter_node.bytes_per_second

    @property
    def inter_node_bytes_per_second(self) -> float:
        """A GPU's share of the node's ports when all its GPUs send to other nodes at once.

        25 Gbit/s Ethernet under eight GPUs: 3.125e9 / 8 = 0.39e9 bytes/s each.
        """
        return self.node_bytes_per_second / self.gpus_per_node

    @classmethod
    def from_dict(cls, value: object = None) -> Cluster:
        """A cluster from plain values; what is missing or None takes the card's usual value.

        Defaults: `gpu` h100-sxm-80gb; `gpus_per_node`, `intra_node` and `inter_node` as the card's
        row in `gpus.csv` says; `nodes` 1; `host_memory_gib` by `default_host_memory_bytes`. `gpu`
        may be a dict that describes another card (see `custom_gpu`), a link likewise
        (`custom_link`).

        Raises:
            ScenarioError: an unknown key (the nearest is named) or a value out of its range.
        """
        known = section({} if value is None else value, "cluster", _KEYS)
        given = {key: item for key, item in known.items() if item is not None}
        gpu = _gpu(given.get("gpu", DEFAULT_GPU))
        per_node = _count(given, "gpus_per_node", gpu.gpus_per_node, MAX_GPUS_PER_NODE)
        return cls(
            gpu=gpu,
            gpus_per_node=per_node,
            nodes=_count(given, "nodes", 1, MAX_NODES),
            intra_node=_link(given.get("intra_node", gpu.link), "intra_node", "intra"),
            inter_node=_link(given.get("inter_node", gpu.network), "inter_node", "inter"),
            host_memory_bytes=_host_memory(given["host_memory_gib"])
            if "host_memory_gib" in given
            else default_host_memory_bytes(gpu, per_node),
        )

    def to_dict(self) -> dict[str, Any]:
        """The plain values that `from_dict` turns into an equal cluster.

        A card or link that is not the catalogue's is written out; its key becomes "custom".
        """
        host_gib = self.host_memory_bytes / GIB
        known_gpu = catalogue.gpus().get(self.gpu.key) == self.gpu
        return {
            "gpu": self.gpu.key if known_gpu else gpu_to_dict(self.gpu),
            "gpus_per_node": self.gpus_per_node,
            "nodes": self.nodes,
            "intra_node": _link_value(self.intra_node),
            "inter_node": _link_value(self.inter_node),
            "host_memory_gib": int(host_gib) if host_gib.is_integer() else host_gib,
        }


def default_host_memory_bytes(gpu: Gpu, gpus_per_node: int) -> int:
    """RAM assumed for a node whose RAM nobody stated: twice its cards', within 64 GiB and 2 TiB.

    A rule, not a measurement: clouds give 1.4 to 4 times the cards' memory. Eight 80 GiB cards:
    2 * 8 * 80 = 1280 GiB.
    """
    return min(max(2 * gpus_per_node * gpu.memory_bytes, 64 * GIB), 2048 * GIB)


def _gpu(value: object) -> Gpu:
    if isinstance(value, Mapping):
        return custom_gpu(value)
    cards = catalogue.gpus()
    if not isinstance(value, str) or value not in cards:
        raise unknown_key("cluster.gpu", value, cards)
    return cards[value]


def _link(value: object, field: str, scope: str) -> Link:
    if isinstance(value, Mapping):
        return custom_link(value, field, scope)
    links = catalogue.links()
    if not isinstance(value, str) or value not in links:
        fitting = [key for key, link in links.items() if link.scope == scope]
        raise unknown_key(f"cluster.{field}", value, fitting)
    return links[value]


def _link_value(link: Link) -> str | dict[str, Any]:
    return link.key if catalogue.links().get(link.key) == link else link_to_dict(link)


def _host_memory(value: object) -> int:
    field = "cluster.host_memory_gib"
    if not isinstance(value, (int, float, str)):
        raise ScenarioError(field, value, f"a number from 1 to {format_bound(MAX_HOST_MEMORY_GIB)}")
    return round(parse_number(value, field, minimum=1, maximum=MAX_HOST_MEMORY_GIB) * GIB)


def _count(given: Mapping[str, object], key: str, default: int, maximum: int) -> int:
    return whole(given.get(key, default), f"cluster.{key}", 1, maximum)


def _check_whole(value: object, field: str, minimum: int, maximum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        allowed = f"a whole number from {minimum} to {maximum}"
        raise ScenarioError(f"cluster.{field}", value, allowed)


def _check_scope(link: object, field: str, scope: str) -> None:
    if not isinstance(link, Link):
        raise ScenarioError(f"cluster.{field}", link, "a Link")
    if link.scope != scope:
        places = {"intra": "GPUs inside a node", "inter": "nodes"}
        fitting = [key for key, other in catalogue.links().items() if other.scope == scope]
        near = unknown_key(f"cluster.{field}", link.key, fitting)
        hint = f"{link.name} joins {places[link.scope]}, not {places[scope]}"
        raise ScenarioError(near.field, link.key, near.allowed, hint)
