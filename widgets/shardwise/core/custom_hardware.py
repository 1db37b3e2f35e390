"""Cards and links that the catalogue lacks, described as a dict: read, checked, written back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.core import catalogue
from shardwise.core.errors import ScenarioError
from shardwise.core.fields import choice, flag, section, whole
from shardwise.core.hardware import DTYPES, MAX_GPUS_PER_NODE, Gpu, Link
from shardwise.core.units import GB, GIB, MIB, format_bound, parse_number

CUSTOM = "custom"
MAX_MEMORY_BYTES = 2**50
MIN_MEMORY_BYTES = 256 * MIB

_LINK_KEYS = ("name", "bytes_per_second", "latency_seconds", "per")
_MEMORY_UNITS = {"memory_gib": GIB, "memory_gb": GB, "memory_bytes": 1}
_GPU_KEYS = (
    "name", *_MEMORY_UNITS, "usable_bytes", "bandwidth", "peak_flops", "bf16", "flash_attention",
    "peer_to_peer", "link", "network", "gpus_per_node", "vendor", "architecture",
)  # fmt: skip
# What a card is taken for when nobody says: the order of a PCIe data-center card of 2021.
_USABLE_SHARE = 0.98
_BANDWIDTH = 1e12
_PEAK_FLOPS = {"fp32": 20e12, "fp16": 100e12, "bf16": 100e12}


def custom_gpu(value: Mapping[str, object]) -> Gpu:
    """A card from `name`, one of `memory_gib`, `memory_gb`, `memory_bytes`, and what else is known.

    Units as in `Gpu`. Defaults: 98 % of the memory usable; `bandwidth` 1e12 bytes/s; `peak_flops`
    20e12 (fp32) and 100e12 (fp16, bf16) FLOP/s; `bf16` as `peak_flops` has it; flash attention and
    peer-to-peer there; `link` pcie-4; `network` ethernet-100; 8 `gpus_per_node`.

    Raises:
        ScenarioError: an unknown key (the nearest is named), no memory or a value out of its range.
    """
    known = section(value, "cluster.gpu", _GPU_KEYS)
    given = {key: item for key, item in known.items() if item is not None}
    memory_bytes = _memory(given)
    usable_bytes = given.get("usable_bytes", _usual_usable(memory_bytes))
    peaks = _peaks(given.get("peak_flops", _PEAK_FLOPS))
    per_node = given.get("gpus_per_node", 8)
    return Gpu(
        key=CUSTOM,
        name=_words(given, "name", "custom GPU", "cluster.gpu"),
        vendor=_words(given, "vendor", CUSTOM, "cluster.gpu"),
        architecture=_words(given, "architecture", CUSTOM, "cluster.gpu"),
        memory_bytes=memory_bytes,
        usable_bytes=whole(usable_bytes, "cluster.gpu.usable_bytes", 1, memory_bytes),
        bandwidth=_rate(given.get("bandwidth", _BANDWIDTH), "cluster.gpu.bandwidth", 1e15),
        peak_flops=peaks,
        bf16=flag(given.get("bf16", "bf16" in dict(peaks)), "cluster.gpu.bf16"),
        link=choice(given.get("link", "pcie-4"), "cluster.gpu.link", _link_keys("intra")),
        gpus_per_node=whole(per_node, "cluster.gpu.gpus_per_node", 1, MAX_GPUS_PER_NODE),
        peer_to_peer=flag(given.get("peer_to_peer", True), "cluster.gpu.peer_to_peer"),
        source="as typed; what was not typed is a stated default, not a measurement",
        flash_attention=flag(given.get("flash_attention", True), "cluster.gpu.flash_attention"),
        network=choice(
            given.get("network", "ethernet-100"), "cluster.gpu.network", _link_keys("inter")
        ),
        usable_source=f"as typed, or the rule: {_USABLE_SHARE:.0%} of the memory",
    )


def gpu_to_dict(gpu: Gpu) -> dict[str, Any]:
    """The dict that `custom_gpu` turns into an equal card."""
    same = (
        "name", "memory_bytes", "usable_bytes", "bandwidth", "bf16", "flash_attention",
        "peer_to_peer", "link", "network", "gpus_per_node", "vendor", "architecture",
    )  # fmt: skip
    return {key: getattr(gpu, key) for key in same} | {"peak_flops": dict(gpu.peak_flops)}


def custom_link(value: Mapping[str, object], field: str, scope: str) -> Link:
    """A link from `bytes_per_second` (one direction, per port) and what else is known.

    Defaults: `latency_seconds` 1e-5; `per` gpu (each GPU has a port of its own).

    Raises:
        ScenarioError: an unknown key (the nearest is named), no rate or a value out of its range.
    """
    where = f"cluster.{field}"
    known = section(value, where, _LINK_KEYS)
    given = {key: item for key, item in known.items() if item is not None}
    if "bytes_per_second" not in given:
        raise ScenarioError(where, dict(value), "a dict with bytes_per_second, in one direction")
    return Link(
        key=CUSTOM,
        name=_words(given, "name", "custom link", where),
        scope=scope,
        bytes_per_second=_rate(given["bytes_per_second"], f"{where}.bytes_per_second", 1e15),
        latency_seconds=_rate(
            given.get("latency_seconds", 1e-5), f"{where}.latency_seconds", 1.0, minimum=1e-9
        ),
        source="as typed; what was not typed is a stated default, not a measurement",
        per=choice(given.get("per", "gpu"), f"{where}.per", ("gpu", "node")),
    )


def link_to_dict(link: Link) -> dict[str, Any]:
    """The dict that `custom_link` turns into an equal link."""
    return {key: getattr(link, key) for key in _LINK_KEYS}


def _memory(given: Mapping[str, object]) -> int:
    keys = [key for key in _MEMORY_UNITS if key in given]
    if len(keys) != 1:
        raise ScenarioError(
            "cluster.gpu",
            " and ".join(keys) or dict(given),
            f"exactly one of {', '.join(_MEMORY_UNITS)}",
            "GB is 10**9 bytes; the GB on a card's box are GiB, 2**30",
        )
    unit = _MEMORY_UNITS[keys[0]]
    low, high = MIN_MEMORY_BYTES / unit, MAX_MEMORY_BYTES / unit
    return int(_rate(given[keys[0]], f"cluster.gpu.{keys[0]}", high, minimum=low) * unit)


def _usual_usable(memory_bytes: int) -> int:
    return int(_USABLE_SHARE * memory_bytes) // MIB * MIB


def _peaks(value: object) -> tuple[tuple[str, float], ...]:
    field = "cluster.gpu.peak_flops"
    given = section(value, field, DTYPES)
    return tuple(
        (dtype, _rate(given[dtype], f"{field}.{dtype}", 1e18)) for dtype in DTYPES if dtype in given
    )


def _rate(value: object, field: str, maximum: float, minimum: float = 1.0) -> float:
    if not isinstance(value, (int, float, str)):
        allowed = f"a number from {format_bound(minimum)} to {format_bound(maximum)}"
        raise ScenarioError(field, value, allowed)
    return parse_number(value, field, minimum=minimum, maximum=maximum)


def _words(given: Mapping[str, object], key: str, default: str, where: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str) or not value.strip() or len(value) > 100:
        raise ScenarioError(f"{where}.{key}", value, "a text of 1 to 100 characters")
    return value


def _link_keys(scope: str) -> list[str]:
    return [key for key, link in catalogue.links().items() if link.scope == scope]
