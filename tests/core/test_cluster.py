"""Clusters: defaults from the card, custom cards and links, round trips, bad input."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.core import catalogue
from shardwise.core.cluster import Cluster, default_host_memory_bytes
from shardwise.core.errors import ScenarioError
from shardwise.core.units import GIB

INTRA = [key for key, link in catalogue.links().items() if link.scope == "intra"]
INTER = [key for key, link in catalogue.links().items() if link.scope == "inter"]


def test_an_empty_dict_is_one_node_of_eight_h100() -> None:
    """With nothing said, the cluster is a DGX H100: eight cards on NVLink 4 and NDR InfiniBand."""
    cluster = Cluster.from_dict({})
    assert (cluster.gpu.key, cluster.gpus_per_node, cluster.nodes) == ("h100-sxm-80gb", 8, 1)
    assert (cluster.intra_node.key, cluster.inter_node.key) == ("nvlink-4", "infiniband-ndr")
    assert cluster.host_memory_bytes == 2 * 8 * 80 * GIB
    assert Cluster.from_dict() == cluster
    assert Cluster.from_dict({"gpu": None, "nodes": None, "inter_node": None}) == cluster


def test_every_key_of_the_design_is_read() -> None:
    """The dict of the public design gives back each value that was put in."""
    cluster = Cluster.from_dict(
        {
            "gpu": "a100-sxm-40gb",
            "gpus_per_node": 4,
            "nodes": 3,
            "intra_node": "pcie-4",
            "inter_node": "ethernet-25",
            "host_memory_gib": 768,
        }
    )
    assert cluster.world_size == 12
    assert cluster.gpu is catalogue.gpus()["a100-sxm-40gb"]
    assert cluster.intra_node is catalogue.links()["pcie-4"]
    assert cluster.inter_node is catalogue.links()["ethernet-25"]
    assert cluster.host_memory_bytes == 768 * GIB


def test_numbers_may_be_typed_as_text() -> None:
    """A permalink carries text; "16" nodes are 16 nodes."""
    cluster = Cluster.from_dict({"nodes": "16", "gpus_per_node": 8.0, "host_memory_gib": "1.5k"})
    assert (cluster.nodes, cluster.gpus_per_node) == (16, 8)
    assert cluster.host_memory_bytes == 1500 * GIB


@pytest.mark.parametrize("key", catalogue.gpus())
def test_every_card_has_usable_defaults(key: str) -> None:
    """Each card of the catalogue makes a cluster by itself, with links on the right sides."""
    cluster = Cluster.from_dict({"gpu": key})
    assert cluster.gpus_per_node == cluster.gpu.gpus_per_node
    assert cluster.intra_node.key == cluster.gpu.link
    assert cluster.inter_node.key == cluster.gpu.network
    assert 64 * GIB <= cluster.host_memory_bytes <= 2048 * GIB


def test_a_frontier_node_is_eight_devices_of_64_gib() -> None:
    """Four MI250X cards show as eight devices of 64 GB (OLCF Frontier User Guide)."""
    cluster = Cluster.from_dict({"gpu": "mi250x"})
    assert cluster.world_size == 8
    assert cluster.gpu.memory_bytes == 64 * GIB
    assert cluster.node_bytes_per_second == 4 * 25e9


def test_a_port_of_the_node_is_shared_and_a_port_of_the_gpu_is_not() -> None:
    """Eight GPUs behind one 25 Gbit/s port get an eighth each; with a rail each, all of it."""
    shared = Cluster.from_dict({"inter_node": "ethernet-25"})
    assert shared.node_bytes_per_second == 25e9 / 8
    assert shared.inter_node_bytes_per_second == 25e9 / 8 / 8
    rails = Cluster.from_dict({"inter_node": "infiniband-ndr"})
    assert rails.inter_node_bytes_per_second == 400e9 / 8
    assert rails.node_bytes_per_second == 8 * 400e9 / 8


def test_a_custom_card_needs_its_memory_only() -> None:
    """A card that nobody catalogued takes stated defaults for all but its memory."""
    gpu = Cluster.from_dict({"gpu": {"memory_gib": 48}}).gpu
    assert gpu.memory_bytes == 48 * GIB
    assert 0.979 * 48 * GIB < gpu.usable_bytes <= 0.98 * 48 * GIB
    assert (gpu.bf16, gpu.peer_to_peer, gpu.link) == (True, True, "pcie-4")
    assert gpu.peak("bf16") == 100e12
    assert gpu.peak("fp8") == 0.0
    assert "default" in gpu.source


def test_gb_and_gib_of_a_custom_card_differ() -> None:
    """memory_gb counts 10**9 bytes and memory_gib 2**30."""
    assert Cluster.from_dict({"gpu": {"memory_gb": 48}}).gpu.memory_bytes == 48 * 10**9
    assert Cluster.from_dict({"gpu": {"memory_bytes": 2**35}}).gpu.memory_bytes == 32 * GIB


def test_a_custom_card_without_bf16_peak_has_no_bf16() -> None:
    """bf16 follows the peaks unless it is said."""
    old = {"memory_gib": 16, "peak_flops": {"fp16": 125e12, "fp32": 15.7e12}}
    assert not Cluster.from_dict({"gpu": old}).gpu.bf16
    assert Cluster.from_dict({"gpu": old | {"bf16": True}}).gpu.bf16


def test_a_custom_link_is_taken_as_typed() -> None:
    """A link may be a dict; its scope is the place it was given for."""
    cluster = Cluster.from_dict({"inter_node": {"bytes_per_second": 5e9, "per": "node"}})
    assert (cluster.inter_node.scope, cluster.inter_node.key) == ("inter", "custom")
    assert cluster.inter_node_bytes_per_second == 5e9 / 8


def test_host_memory_default_stays_within_its_bounds() -> None:
    """Twice the cards' memory, at least 64 GiB and at most 2 TiB."""
    cards = catalogue.gpus()
    assert default_host_memory_bytes(cards["rtx-3060-12gb"], 1) == 64 * GIB
    assert default_host_memory_bytes(cards["a100-sxm-40gb"], 8) == 640 * GIB
    assert default_host_memory_bytes(cards["b200-sxm-180gb"], 8) == 2048 * GIB


sizes = st.floats(min_value=1e6, max_value=1e15, allow_nan=False)
custom_cards = st.fixed_dictionaries(
    {"memory_gib": st.floats(0.25, 4096)},
    optional={
        "name": st.text("abcXYZ 0123é漢", min_size=1, max_size=20).filter(str.strip),
        "bandwidth": sizes,
        "peak_flops": st.dictionaries(
            st.sampled_from(["fp32", "tf32", "fp16", "bf16", "fp8"]), st.floats(1e9, 1e17)
        ),
        "bf16": st.booleans(),
        "flash_attention": st.booleans(),
        "peer_to_peer": st.booleans(),
        "link": st.sampled_from(INTRA),
        "network": st.sampled_from(INTER),
        "gpus_per_node": st.integers(1, 1024),
    },
)
custom_links = st.fixed_dictionaries(
    {"bytes_per_second": sizes},
    optional={"latency_seconds": st.floats(1e-9, 1), "per": st.sampled_from(["gpu", "node"])},
)
cluster_dicts = st.fixed_dictionaries(
    {},
    optional={
        "gpu": st.sampled_from(sorted(catalogue.gpus())) | custom_cards,
        "gpus_per_node": st.integers(1, 1024),
        "nodes": st.integers(1, 100_000),
        "intra_node": st.sampled_from(INTRA) | custom_links,
        "inter_node": st.sampled_from(INTER) | custom_links,
        "host_memory_gib": st.integers(1, 2**20) | st.floats(1, 2**20),
    },
)


@given(cluster_dicts)
def test_a_cluster_survives_its_dict_and_json(value: dict[str, Any]) -> None:
    """to_dict is undone by from_dict exactly, also through JSON text."""
    cluster = Cluster.from_dict(value)
    written = cluster.to_dict()
    assert Cluster.from_dict(written) == cluster
    assert Cluster.from_dict(json.loads(json.dumps(written))) == cluster
    assert Cluster.from_dict(written).to_dict() == written


@given(st.integers(GIB, 2**50))
def test_any_host_memory_in_bytes_survives(host_memory_bytes: int) -> None:
    """GiB in the dict lose no byte."""
    cluster = replace(Cluster.from_dict({}), host_memory_bytes=host_memory_bytes)
    assert Cluster.from_dict(cluster.to_dict()) == cluster


@given(cluster_dicts)
def test_the_node_sends_what_its_gpus_send(value: dict[str, Any]) -> None:
    """Shares of the GPUs add up to the node's ports, and no share exceeds a port."""
    cluster = Cluster.from_dict(value)
    whole = cluster.inter_node_bytes_per_second * cluster.gpus_per_node
    assert math.isclose(whole, cluster.node_bytes_per_second)
    share = cluster.inter_node_bytes_per_second
    assert share <= cluster.inter_node.bytes_per_second * (1 + 1e-12)


GOOD_CARD = {"memory_gib": 24}
BAD = [
    ([], "cluster", "a dict"),
    ("h100-sxm-80gb", "cluster", "a dict"),
    (8, "cluster", "a dict"),
    ({"gpuss": "t4"}, "cluster", "'gpu'"),
    ({"node": 2}, "cluster", "'nodes'"),
    ({"gpus-per-node": 2}, "cluster", "'gpus_per_node'"),
    ({3: 4}, "cluster", "gpu"),
    ({"gpu": "h100"}, "cluster.gpu", "'h100-"),
    ({"gpu": "H100-SXM-80GB"}, "cluster.gpu", "'h100-sxm-80gb'"),
    ({"gpu": "rtx4090"}, "cluster.gpu", "'rtx-4090'"),
    ({"gpu": ""}, "cluster.gpu", "p100"),
    ({"gpu": "<script>alert(1)</script>"}, "cluster.gpu", "allowed"),
    ({"gpu": "x" * 20_000_000}, "cluster.gpu", "allowed"),
    ({"gpu": 7}, "cluster.gpu", "allowed"),
    ({"gpu": ["t4"]}, "cluster.gpu", "allowed"),
    ({"gpu": {}}, "cluster.gpu", "exactly one of"),
    ({"gpu": {"name": "x"}}, "cluster.gpu", "exactly one of"),
    ({"gpu": {"memory_gib": 24, "memory_gb": 24}}, "cluster.gpu", "exactly one of"),
    ({"gpu": {"memory": 24}}, "cluster.gpu", "memory_gib"),
    ({"gpu": {"memory_gib": 0}}, "cluster.gpu.memory_gib", "0.25"),
    ({"gpu": {"memory_gib": -1}}, "cluster.gpu.memory_gib", "0.25"),
    ({"gpu": {"memory_gib": "24 GiB"}}, "cluster.gpu.memory_gib", "digits"),
    ({"gpu": {"memory_gib": float("nan")}}, "cluster.gpu.memory_gib", "number"),
    ({"gpu": {"memory_gib": float("inf")}}, "cluster.gpu.memory_gib", "number"),
    ({"gpu": {"memory_gib": [24]}}, "cluster.gpu.memory_gib", "number"),
    ({"gpu": {"memory_bytes": 10**400}}, "cluster.gpu.memory_bytes", "number"),
    ({"gpu": GOOD_CARD | {"usable_bytes": 25 * GIB}}, "cluster.gpu.usable_bytes", "25769803776"),
    ({"gpu": GOOD_CARD | {"bandwidth": 0}}, "cluster.gpu.bandwidth", "number"),
    ({"gpu": GOOD_CARD | {"bandwidth": True}}, "cluster.gpu.bandwidth", "number"),
    ({"gpu": GOOD_CARD | {"bf16": "yes"}}, "cluster.gpu.bf16", "True or False"),
    ({"gpu": GOOD_CARD | {"peer_to_peer": 1}}, "cluster.gpu.peer_to_peer", "True or False"),
    ({"gpu": GOOD_CARD | {"name": ""}}, "cluster.gpu.name", "text"),
    ({"gpu": GOOD_CARD | {"name": "x" * 101}}, "cluster.gpu.name", "100"),
    ({"gpu": GOOD_CARD | {"link": "infiniband-ndr"}}, "cluster.gpu.link", "pcie-4"),
    ({"gpu": GOOD_CARD | {"network": "nvlink-4"}}, "cluster.gpu.network", "infiniband-ndr"),
    ({"gpu": GOOD_CARD | {"peak_flops": 1e12}}, "cluster.gpu.peak_flops", "a dict"),
    ({"gpu": GOOD_CARD | {"peak_flops": {"bf61": 1}}}, "cluster.gpu.peak_flops", "'bf16'"),
    ({"gpu": GOOD_CARD | {"peak_flops": {"fp16": -1}}}, "cluster.gpu.peak_flops.fp16", "number"),
    ({"gpu": GOOD_CARD | {"gpus_per_node": 0}}, "cluster.gpu.gpus_per_node", "1 to 1024"),
    ({"gpus_per_node": 0}, "cluster.gpus_per_node", "1 to 1024"),
    ({"gpus_per_node": -8}, "cluster.gpus_per_node", "1 to 1024"),
    ({"gpus_per_node": 1025}, "cluster.gpus_per_node", "1 to 1024"),
    ({"gpus_per_node": 7.5}, "cluster.gpus_per_node", "whole number"),
    ({"gpus_per_node": True}, "cluster.gpus_per_node", "whole number"),
    ({"gpus_per_node": "acht"}, "cluster.gpus_per_node", "whole number"),
    ({"gpus_per_node": "٨"}, "cluster.gpus_per_node", "0 to 9"),
    ({"gpus_per_node": {}}, "cluster.gpus_per_node", "whole number"),
    ({"nodes": 0}, "cluster.nodes", "1 to 100000"),
    ({"nodes": 10**30}, "cluster.nodes", "1 to 100000"),
    ({"nodes": "1,000"}, "cluster.nodes", "comma"),
    ({"nodes": float("nan")}, "cluster.nodes", "whole number"),
    ({"intra_node": "nvlink4"}, "cluster.intra_node", "'nvlink-4'"),
    ({"intra_node": "infiniband-ndr"}, "cluster.intra_node", "joins nodes"),
    ({"inter_node": "nvlink-4"}, "cluster.inter_node", "inside a node"),
    ({"inter_node": "infiniband"}, "cluster.inter_node", "'infiniband-edr'"),
    ({"inter_node": 100}, "cluster.inter_node", "infiniband-ndr"),
    ({"inter_node": {}}, "cluster.inter_node", "bytes_per_second"),
    ({"inter_node": {"gbps": 100}}, "cluster.inter_node", "bytes_per_second"),
    ({"inter_node": {"bytes_per_second": 0}}, "cluster.inter_node.bytes_per_second", "number"),
    (
        {"inter_node": {"bytes_per_second": 1e9, "latency_seconds": 5}},
        "cluster.inter_node.latency_seconds",
        "1e-09 to 1",
    ),
    ({"inter_node": {"bytes_per_second": 1e9, "per": "rack"}}, "cluster.inter_node.per", "node"),
    ({"host_memory_gib": 0}, "cluster.host_memory_gib", "from 1"),
    ({"host_memory_gib": "much"}, "cluster.host_memory_gib", "digits"),
    ({"host_memory_gib": [512]}, "cluster.host_memory_gib", "from 1"),
    ({"host_memory_gib": 2**21}, "cluster.host_memory_gib", "from 1"),
]


@pytest.mark.parametrize(("value", "field", "told"), BAD, ids=range(len(BAD)))
def test_bad_input_is_one_clear_sentence(value: object, field: str, told: str) -> None:
    """Each bad value is refused with its field's name, what is allowed and the nearest name."""
    with pytest.raises(ScenarioError) as caught:
        Cluster.from_dict(value)
    sentence = str(caught.value)
    assert caught.value.field == field
    assert told in sentence
    assert len(sentence) < 700
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "change",
    [
        {"gpus_per_node": 0},
        {"gpus_per_node": 2.0},
        {"nodes": True},
        {"host_memory_bytes": 0},
        {"intra_node": catalogue.links()["infiniband-ndr"]},
        {"inter_node": "ethernet-25"},
    ],
    ids=str,
)
def test_a_cluster_built_by_hand_is_checked_too(change: dict[str, Any]) -> None:
    """`replace` cannot make a cluster that from_dict would refuse."""
    with pytest.raises(ScenarioError):
        replace(Cluster.from_dict({}), **change)
