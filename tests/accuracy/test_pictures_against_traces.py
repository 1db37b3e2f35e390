"""Pictures beside text, held against steps of transformers' Gemma 3 traced here."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from compare_traces import ROOT, scenario_of
from strange_cases import shallow

from shardwise.core.catalogue import load_model
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.memory.assumptions import assumptions_of
from shardwise.core.memory.sweep import sweep
from shardwise.core.permalink import from_query, to_query
from shardwise.core.pictures import tower_of, with_pictures
from shardwise.core.scenario import Scenario

LAYERS = 2
GEMMA = ROOT / "data" / "models" / "gemma-3-4b.json"
DDP = {"engine": "ddp", "precision": "bf16"}
TEXT: tuple[dict[str, Any], ...] = (
    {},
    {"micro_batches": 2},
    {"engine": "none", "world": 1, "precision": "autocast"},
)
PICTURES: tuple[dict[str, Any], ...] = (
    {"images": 1},
    {"images": 3, "micro_batch": 2},
    {"images": 2, **DDP},
    {"images": 8, "activation_checkpointing": "full"},
)


def gemma() -> dict[str, Any]:
    """Gemma 3's config with two layers in each tower."""
    config = shallow(json.loads(GEMMA.read_text(encoding="utf-8")), LAYERS)
    config["text_config"] = shallow(config["text_config"], LAYERS)
    return config


def asked(images: int, **training: Any) -> Scenario:
    """Gemma 3 with so many pictures a sample."""
    given = {"images_per_sample": images, "precision": "fsdp-mixed", **training}
    return Scenario.from_dict({"model": "gemma-3-4b", "training": given})


def errors(change: dict[str, Any]) -> tuple[float, float]:
    """Relative errors of the peak, and of what lives between steps without the batch."""
    pytest.importorskip("transformers")
    from shardwise.lab.trace import trace

    traced = trace(gemma(), sequence_length=2048, **change)
    case = {"model": "gemma-3-4b", "layers": LAYERS, **asdict(traced.settings)}
    like = scenario_of(case).to_dict()
    like["model"] = gemma()
    like["training"]["images_per_sample"] = change.get("images", 0)  # type: ignore[index]
    report = estimate(Scenario.from_dict(like))
    batch = traced.phases["init"]["buffers and inputs"]
    between = sum(report.phases["between steps"].values())
    return (
        report.peak_bytes / traced.peak_bytes - 1,
        between / (traced.steady_bytes - batch) - 1,
    )


@pytest.mark.parametrize("change", TEXT, ids=str)
def test_without_pictures_the_tower_has_weights_alone(change: dict[str, Any]) -> None:
    """Neither gradients nor optimizer state nor activations: as traced, to the allocator's blocks
    and the optimizer's step counters."""
    peak, between = errors(change)
    assert abs(peak) < 1e-4
    assert abs(between) < 2e-4


@pytest.mark.parametrize("change", PICTURES, ids=str)
def test_pictures_cost_what_is_traced(change: dict[str, Any]) -> None:
    """The tower's activations grow with pictures, not with the text's length; what Gemma 3 pools
    the features to (256 tokens) is not counted."""
    peak, between = errors(change)
    assert abs(peak) < 0.005
    assert abs(between) < 2e-4


def test_one_picture_is_what_links_without_the_field_mean() -> None:
    """The default reads as one picture, and other numbers come back from dict and link."""
    plain = Scenario.from_dict({"model": "gemma-3-4b"})
    assert plain.training.images_per_sample == 1
    assert "images" not in to_query(plain)
    for images in (0, 3):
        scenario = asked(images)
        assert Scenario.from_dict(scenario.to_dict()) == scenario
        assert from_query(to_query(scenario)).scenario == scenario


@pytest.mark.parametrize("model", ["llama-3-8b", "vit-base", "whisper-large-v3"])
def test_only_a_tower_beside_a_decoder_counts_pictures(model: str) -> None:
    """Elsewhere the field says what it allows."""
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict({"model": model, "training": {"images_per_sample": 2}})
    assert caught.value.field == "training.images_per_sample"
    assert tower_of(load_model(model)) == ()


def test_a_tower_comes_back_as_pictures_do() -> None:
    """An idle tower is told from the training alone, and parameters stay the same."""
    text, whole = asked(0), asked(1)
    assert with_pictures(text.model, 1) == whole.model
    assert text.model.parameters == whole.model.parameters
    back = text.with_training(replace(text.training, images_per_sample=1))
    assert back == whole
    assert text.model.layers == 34


def test_an_array_of_sizes_is_the_same_to_the_last_bit() -> None:
    """With pictures and without."""
    for images in (0, 1, 4):
        swept = sweep(asked(images), sequence_length=[512, 4096], micro_batch=[1, 2])
        for index, (length, batch) in enumerate(((512, 1), (4096, 2))):
            alone = estimate(asked(images, sequence_length=length, micro_batch=batch))
            assert swept.peak_bytes[index] == alone.peak_bytes


@pytest.mark.parametrize("engine", ["fsdp1", "fsdp2", "ddp", "deepspeed", "zero-redundancy"])
def test_text_alone_needs_less_under_every_engine(engine: str) -> None:
    """Flat buffers keep the tower's states; all engines are spared its activations."""
    reports = []
    for images in (0, 1):
        given = {**asked(images, precision="mixed-16").to_dict(), "layout": {"engine": engine}}
        reports.append(estimate(Scenario.from_dict(given)))
    text, whole = reports
    assert text.peak_bytes < whole.peak_bytes
    states = [sum(r.phases["between steps"].values()) for r in reports]
    assert states[0] == pytest.approx(states[1]) if engine == "deepspeed" else states[0] < states[1]


def test_assumptions_say_what_the_tower_sees() -> None:
    """One sentence for a two-tower model, none for others."""
    assert any("one picture of 4,096 patches" in line for line in assumptions_of(asked(1)))
    assert any("does not run" in line for line in assumptions_of(asked(0)))
    plain = assumptions_of(Scenario.from_dict({}))
    assert not any("picture" in line for line in plain)
