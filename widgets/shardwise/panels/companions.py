"""What one choice brings along: a card its links, an engine a stage that it has, and so on."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.core.cluster import Cluster
from shardwise.core.engines import ZERO_STAGES

_ENGINE_OF_STAGE = {0: "ddp", 1: "zero-redundancy", 2: "fsdp2", 3: "fsdp2"}


def brought_along(path: str, values: Mapping[str, object], before: Cluster) -> dict[str, object]:
    """Values of other controls that go with the new value at `path`; usually none.

    Args:
        path: the control that moved.
        values: every control's value by path, the new one included.
        before: the cluster until now; host memory follows only where it had its usual size.

    >>> usual = Cluster.from_dict({})
    >>> values = {"layout.engine": "ddp", "layout.zero_stage": 3}
    >>> brought_along("layout.engine", values, usual)
    {'layout.zero_stage': 0}
    """
    if path in ("cluster.gpu", "cluster.gpus_per_node"):
        return _with_cluster(path, values, before)
    if path == "layout.engine":
        stages = ZERO_STAGES[str(values[path])]
        stage = {} if values["layout.zero_stage"] in stages else {"layout.zero_stage": stages[-1]}
        return stage | _without_float8(str(values[path]), values)
    if path == "layout.zero_stage":
        fits = values[path] in ZERO_STAGES[str(values["layout.engine"])]
        engine = _ENGINE_OF_STAGE[int(str(values[path]))]
        return {} if fits else {"layout.engine": engine} | _without_float8(engine, values)
    interleaved = values.get("layout.schedule") == "interleaved"
    several = values.get("layout.virtual_stages") != 1
    if path == "layout.schedule" and several != interleaved:
        return {"layout.virtual_stages": 2 if interleaved else 1}
    if path == "layout.virtual_stages" and several != interleaved:
        return {"layout.schedule": "interleaved" if several else "1f1b"}
    return {}


def _without_float8(engine: str, values: Mapping[str, object]) -> dict[str, object]:
    """Only FSDP2 gathers in fp8."""
    gathers = engine != "fsdp2" and values.get("layout.float8_all_gather")
    return {"layout.float8_all_gather": False} if gathers else {}


def _with_cluster(path: str, values: Mapping[str, object], before: Cluster) -> dict[str, object]:
    """A card's links, and host memory that follows the number of cards."""
    counted = {"gpu": values["cluster.gpu"], "gpus_per_node": values["cluster.gpus_per_node"]}
    usual = Cluster.from_dict(counted).to_dict()
    earlier = {"gpu": before.to_dict()["gpu"], "gpus_per_node": before.gpus_per_node}
    brought: dict[str, object] = {}
    if before.host_memory_bytes == Cluster.from_dict(earlier).host_memory_bytes:
        brought["cluster.host_memory_gib"] = usual["host_memory_gib"]
    if path == "cluster.gpu":
        for name in ("intra_node", "inter_node"):
            brought[f"cluster.{name}"] = usual[name]
    return brought
