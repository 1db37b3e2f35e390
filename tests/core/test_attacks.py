"""Attempts to break the memory model: random scenarios, hostile files, nonsense input."""

from __future__ import annotations

import math
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from shardwise.core.catalogue import gpus, model_names
from shardwise.core.decision import decide
from shardwise.core.errors import ScenarioError
from shardwise.core.memory.calibrate import calibrate
from shardwise.core.memory.estimate import estimate
from shardwise.core.memory.report import PARTS, PHASES
from shardwise.core.memory.snapshot import read_snapshot
from shardwise.core.memory.sweep import sweep
from shardwise.core.permalink import from_query, to_query
from shardwise.core.precision import POLICIES
from shardwise.core.scenario import Scenario

MODELS, CARDS = sorted(model_names()), sorted(gpus())
STAGES = {
    "ddp": (0,),
    "zero-redundancy": (1,),
    "fsdp1": (2, 3),
    "fsdp2": (2, 3),
    "deepspeed": (0, 1, 2, 3),
    "megatron": (0, 1),
    "nanotron": (0, 1),
}
TRAINED: tuple[Any, ...] = (
    *("all",) * 6,
    {"lora": {"rank": 8, "base": "nf4", "targets": "all-linear"}},
    {"lora": {"rank": 64, "base": "int8", "dropout": 0.1}},
    {"frozen": ["embedding"]},
    {"only": ["head"]},
)
COMMON: dict[str, Any] = {
    "tensor_parallel": (1, 1, 2, 4),
    "context_parallel": (1, 1, 1, 2),
    "expert_parallel": (1, 1, 2),
    "pipeline_parallel": (1, 1, 2, 3),
    "vocabulary_parallel": (True, False),
    "gradient_accumulation_fusion": (True, False),
    "context_exchange": ("p2p", "a2a"),
    "regather_inputs": (None, True, False),
    "reduce_bucket_elements": (1, 10**6, 500_000_000, 10**12),
    "overlap_comm": (None, True, False),
    "gradient_as_bucket_view": (True, False),
}


def drawn(seed: int) -> dict[str, Any]:
    """The sections of one random scenario, which may be one that cannot be."""
    draw = random.Random(seed)
    engine = draw.choice(list(STAGES))
    layout = {key: draw.choice(values) for key, values in COMMON.items()}
    layout |= {"engine": engine, "zero_stage": draw.choice(STAGES[engine])}
    if layout["pipeline_parallel"] > 1:
        layout["schedule"] = draw.choice(("gpipe", "1f1b", "zero-bubble"))
    training = {
        "sequence_length": draw.choice((1, 7, 500, 1024, 8192, 131072)),
        "micro_batch": draw.choice((1, 2, 3, 8)),
        "precision": draw.choice(list(POLICIES)),
        "optimizer": draw.choice(("adamw", "adamw-8bit", "sgd", "adafactor", "lion", "muon")),
        "optimizer_implementation": draw.choice(("foreach", "fused", "for-loop")),
        "activation_checkpointing": draw.choice(
            ("none", "selective", "per-op", "full", {"every": 3}, {"every": 10_000})
        ),
        "attention": draw.choice(("flash", "efficient", "math", "eager")),
        "loss": draw.choice(("full", "chunked", "fused", "compiled")),
        "model_code": draw.choice(
            ("transformers", "torchtitan", "megatron", "nanotron", "compiled")
        ),
        "trainable": draw.choice(TRAINED),
    }
    cluster = {
        "gpu": draw.choice(CARDS),
        "gpus_per_node": draw.choice((1, 2, 4, 8)),
        "nodes": draw.choice((1, 1, 2, 3, 64)),
    }
    return {"model": draw.choice(MODELS), "cluster": cluster, "training": training} | {
        "layout": layout
    }


def scenarios(first: int, count: int) -> list[Scenario]:
    """Those of `count` draws that can be."""
    found = []
    for seed in range(first, first + count):
        try:
            found.append(Scenario.from_dict(drawn(seed)))
        except ScenarioError:
            continue
    assert len(found) > count / 20
    return found


def test_figures_are_in_order_and_parts_add_up() -> None:
    """Low, needed, device and high in this order; the verdict is what they say."""
    for each in scenarios(0, 1500):
        report = estimate(each)
        for stage in report.stages:
            assert list(stage.phases) == list(PHASES)
            for phase, parts in stage.phases.items():
                assert set(parts) == set(PARTS)
                assert all(math.isfinite(size) for size in parts.values())
                assert sum(parts.values()) == stage.totals[phase] > 0
        slack = 1 + 1e-12
        assert report.steady_bytes <= report.peak_bytes <= report.reserved_bytes * slack
        assert report.low_bytes <= report.needed_bytes * slack <= report.device_bytes * slack**2
        assert report.device_bytes <= report.high_bytes * slack
        if report.verdict == "fits":
            assert report.needed_high_bytes <= report.usable_bytes
        assert (report.verdict == "does not fit") == (report.low_bytes > report.usable_bytes)
        for part in PARTS:
            assert report.explain(part).result_bytes == report.parts[part]


def test_every_scenario_reads_back() -> None:
    """`from_dict(to_dict())` is equal and needs the same to the last bit."""
    for each in scenarios(20_000, 1500):
        again = Scenario.from_dict(each.to_dict())
        assert again == each
        assert estimate(again).phases == estimate(each).phases


def test_no_part_is_negative() -> None:
    """DeepSpeed's stage 3 with fp32 weights over many ranks, and gradients kept by nobody."""
    laid: list[dict[str, Any]] = [
        {
            "cluster": {"nodes": 64},
            "training": {"precision": "fsdp-mixed"},
            "layout": {"engine": "deepspeed"},
        },
        {
            "training": {"precision": {"parameters": "fp32", "gradients": "none"}},
            "layout": {"engine": "ddp"},
        },
    ]
    everything = [Scenario.from_dict(each) for each in laid] + scenarios(40_000, 1500)
    for each in everything:
        for stage in estimate(each).stages:
            for phase, parts in stage.phases.items():
                wrong = {part: size for part, size in parts.items() if size < 0}
                assert not wrong, (phase, each)


@pytest.mark.parametrize(
    "trainable", [{"lora": {"rank": 16}}, {"lora": {"base": "nf4"}}, {"only": ["norm"]}]
)
def test_a_sweep_takes_adapters_and_frozen_parts(trainable: dict[str, Any]) -> None:
    """The same as one by one."""
    found = sweep(Scenario.from_dict({"training": {"trainable": trainable}}), micro_batch=[1, 2, 3])
    for batch, peak in zip((1, 2, 3), found.peak_bytes.tolist(), strict=True):
        one = Scenario.from_dict({"training": {"trainable": trainable, "micro_batch": batch}})
        assert peak == pytest.approx(estimate(one).peak_bytes, rel=1e-12)


@pytest.mark.parametrize(
    "given",
    [
        {"cluster": {"nodes": 2}, "layout": {"shard": 8}},  # hybrid sharding inside a node
        {"layout": {"engine": "ddp", "shard": 8}},
        {
            "training": {"trainable": {"lora": {"base": "int8"}}},
            "layout": {"engine": "deepspeed", "zero_stage": 1},
        },
    ],
)
def test_a_link_keeps_what_depends_on_another_section(given: dict[str, Any]) -> None:
    """The link opens the scenario that it was made of, without a note."""
    laid = Scenario.from_dict(given)
    opened = from_query(to_query(laid))
    assert opened.notes == ()
    assert opened.scenario == laid


@pytest.mark.parametrize(
    "given",
    [
        {
            "cluster": {"gpu": "rtx-5080"},
            "training": {"trainable": {"lora": {"base": "int8", "targets": ["gate"]}}},
            "layout": {"engine": "ddp"},
        },
        {
            "model": "opt-66b",
            "training": {"sequence_length": 131072, "trainable": {"lora": {"base": "int8"}}},
            "layout": {"engine": "zero-redundancy"},
        },
        {
            "cluster": {"gpus_per_node": 1},
            "training": {
                "sequence_length": 40000,
                "attention": "eager",
                "trainable": {
                    "lora": {"rank": 256, "base": "nf4", "targets": "all-linear", "dropout": 0.1}
                },
            },
            "layout": {"engine": "deepspeed"},
        },
    ],
)
def test_a_decision_where_nothing_fits_never_raises(given: dict[str, Any]) -> None:
    """What no engine can cut is left out of the outlook, not raised from it."""
    try:
        laid = Scenario.from_dict(given)
    except ScenarioError:
        pytest.skip("a scenario that cannot be asked")
    assert decide(laid).strategy


def test_a_decision_fits() -> None:
    """Card and host memory hold what is chosen, for any scenario."""
    for each in scenarios(60_000, 1000):
        if each.training.trainable.quantized:
            continue  # see above
        found = decide(each)
        if found.strategy == "none":
            continue
        report = estimate(found.scenario)
        assert report.needed_high_bytes <= report.usable_bytes
        assert report.host_bytes_per_node <= found.scenario.cluster.host_memory_bytes


class Hostile:
    """Pickles to a call of `os.system`."""

    def __init__(self, command: str) -> None:
        """`command` would make a file."""
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        """What `pickle` would call."""
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("padding", [0, 33 * 2**20])
def test_a_snapshot_runs_nothing(tmp_path: Path, protocol: int, padding: int) -> None:
    """Short or long, in any protocol: refused, and the file's command was not run."""
    made = tmp_path / "made"
    content = {"pad": b"0" * padding, "segments": [Hostile(f"touch {made}")]}
    if padding and protocol < 3:
        pytest.skip("bytes of 33 MiB are text of 100 MiB in these")
    with pytest.raises(ScenarioError, match="snapshot"):
        read_snapshot(pickle.dumps(content, protocol))
    assert not made.exists()


def test_a_damaged_snapshot_is_read_or_refused() -> None:
    """A thousand files with bytes changed or cut off: a snapshot or a ScenarioError."""
    blocks = [{"size": 512, "state": "active_allocated"}, {"size": 512, "state": "inactive"}]
    segment = {"device": 0, "total_size": 1024, "blocks": blocks}
    events = [{"action": "alloc", "size": 512, "addr": 1}] * 9
    good = pickle.dumps({"segments": [segment], "device_traces": [events]}, 4)
    draw = random.Random(1)
    for _ in range(1000):
        broken = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        try:
            read_snapshot(bytes(broken[: draw.choice((None, draw.randrange(len(good))))]))
        except ScenarioError:
            continue


@pytest.mark.parametrize("source", [None, 3, 2.5, [], {}, True])
def test_what_is_no_file_is_refused(source: Any) -> None:
    """One sentence, not pathlib's TypeError."""
    with pytest.raises(ScenarioError):
        read_snapshot(source)


@pytest.mark.parametrize("part", [[], {}, None, 3])
def test_no_part_of_that_name(part: Any) -> None:
    """Also where the name cannot be looked up in a dict."""
    with pytest.raises(ScenarioError):
        estimate(Scenario.from_dict({})).explain(part)


@pytest.mark.parametrize(
    "sizes",
    [
        {"micro_batch": [1, 2, 3], "sequence_length": [512, 1024]},
        {"micro_batch": [1, []]},
    ],
)
def test_sizes_that_do_not_go_together(sizes: dict[str, Any]) -> None:
    """NumPy's own errors do not come through."""
    with pytest.raises(ScenarioError):
        sweep(Scenario.from_dict({}), **sizes)


@pytest.mark.parametrize("measured", [math.nan, math.inf, -1, 0, 1.0, "60", None, [], True, 1e16])
def test_no_peak_in_bytes(measured: Any) -> None:
    """Refused with a sentence."""
    with pytest.raises(ScenarioError):
        calibrate(Scenario.from_dict({}), measured)
