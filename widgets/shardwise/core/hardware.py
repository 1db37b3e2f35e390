"""What a card and a link are: frozen values with their units, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.core.errors import ScenarioError

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
SCOPES = ("intra", "inter")
MAX_GPUS_PER_NODE = 1024


@dataclass(frozen=True)
class Link:
    """A connection between GPUs: inside a node (`intra`) or between nodes (`inter`).

    `bytes_per_second` is the line's peak in one direction after its line code, per port: a
    program reaches 70 to 90 % of it. `per` says whether each GPU has a port of its own ("gpu") or
    the GPUs of a node share one ("node"), as they do on ordinary Ethernet.
    """

    key: str
    name: str
    scope: str
    bytes_per_second: float
    latency_seconds: float
    source: str
    per: str = "gpu"

    def __post_init__(self) -> None:
        """Refuse values that no link has."""
        _check_words("link", (("key", self.key), ("name", self.name), ("source", self.source)))
        if self.scope not in SCOPES:
            raise ScenarioError("link.scope", self.scope, "intra, inter")
        if self.per not in ("gpu", "node"):
            raise ScenarioError("link.per", self.per, "gpu, node")
        _check_number("link.bytes_per_second", self.bytes_per_second, 1e15)
        _check_number("link.latency_seconds", self.latency_seconds, 1.0)


@dataclass(frozen=True)
class Gpu:
    """One device as a training process sees it: a card, or one die of a card that shows two.

    `memory_bytes` is what the vendor's figure means (an "80 GB" H100 has 80 GiB), `usable_bytes`
    the total that `torch.cuda.get_device_properties` reports, before any context or library is
    loaded. `bandwidth` is the memory's peak in bytes/s. `peak_flops` pairs a dtype with the dense
    peak in FLOP/s, accumulating in fp32; a dtype that the card has no fast path for is absent.
    `link` and `network` are the usual links inside and between nodes.
    """

    key: str
    name: str
    vendor: str
    architecture: str
    memory_bytes: int
    usable_bytes: int
    bandwidth: float
    peak_flops: tuple[tuple[str, float], ...]
    bf16: bool
    link: str
    gpus_per_node: int
    peer_to_peer: bool
    source: str
    flash_attention: bool = False
    network: str = "ethernet-100"
    usable_source: str = ""

    def __post_init__(self) -> None:
        """Refuse values that no card has."""
        names = ("key", "name", "vendor", "architecture", "link", "network", "source")
        _check_words("gpu", [(name, getattr(self, name)) for name in names])
        _check_number("gpu.memory_bytes", self.memory_bytes, 2**50)
        _check_number("gpu.usable_bytes", self.usable_bytes, self.memory_bytes)
        _check_number("gpu.bandwidth", self.bandwidth, 1e15)
        _check_number("gpu.gpus_per_node", self.gpus_per_node, MAX_GPUS_PER_NODE)
        for dtype, flops in self.peak_flops:
            if dtype not in DTYPES:
                raise ScenarioError("gpu.peak_flops", dtype, ", ".join(DTYPES))
            _check_number(f"gpu.peak_flops.{dtype}", flops, 1e18)

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s for a dtype, 0.0 where the card has no fast path for it."""
        return dict(self.peak_flops).get(dtype, 0.0)


def _check_words(kind: str, pairs: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> None:
    for name, value in pairs:
        if not isinstance(value, str) or not value.strip():
            raise ScenarioError(f"{kind}.{name}", value, "some text")


def _check_number(field: str, value: float, maximum: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= maximum:
        raise ScenarioError(field, value, f"a number above 0, at most {maximum:g}")
