"""Phases, changes, calculators and the measured peak, without a browser."""

from __future__ import annotations

import json
import pickle

import pytest

from shardwise.core.memory import estimate
from shardwise.core.memory.sensitivity import sensitivity
from shardwise.core.peers.table import disagreement
from shardwise.core.units import GIB, format_gib
from shardwise.panels.explorer import Explorer
from shardwise.panels.live_table import LiveTable
from shardwise.panels.small import StepPanel


def explorer_at(title: str, scenario: object = None) -> Explorer:
    """An explorer with that tab open."""
    explorer = Explorer(scenario)  # type: ignore[arg-type]
    explorer.more.choose(title)
    return explorer


def shown(explorer: Explorer, key: str) -> str:
    """An entry of the feed as text."""
    return json.dumps(explorer.feed.data[key], ensure_ascii=False)


def snapshot(allocated_gib: float, reserved_gib: float) -> bytes:
    """A CUDA memory snapshot as torch pickles one: a segment with one block in use."""
    used, total = int(allocated_gib * GIB), int(reserved_gib * GIB)
    blocks = [
        {"address": 0, "size": used, "requested_size": used, "state": "active_allocated"},
        {"address": used, "size": total - used, "requested_size": 0, "state": "inactive"},
    ]
    segment = {
        "device": 0, "address": 0, "total_size": total, "allocated_size": used,
        "active_size": used, "requested_size": used, "stream": 0, "segment_type": "large",
        "blocks": blocks,
    }  # fmt: skip
    return pickle.dumps({"segments": [segment], "device_traces": [[]]})


def test_the_memory_tab_shows_the_layout_as_set_or_as_decided() -> None:
    """Both name their layout, and differ where the decision does."""
    explorer = explorer_at("Memory", {"model": "llama-3-8b", "layout": {"engine": "ddp"}})
    assert "As set: torch DistributedDataParallel." in shown(explorer, "phases.text")
    before = explorer.feed.data["phases"]
    explorer.whose.value = "decided phases"
    assert "As decided: DeepSpeed stage 1." in shown(explorer, "phases.text")
    assert explorer.feed.data["phases"] != before
    typed = explorer.controls["training.micro_batch"]
    typed._moved(None, {"text": "2"}, None)  # type: ignore[union-attr]
    assert "As decided" in shown(explorer, "phases.text")


def test_the_memory_tab_tells_ranks_apart_and_ways_to_load() -> None:
    """Mixtral over 64 ranks: eight have rows of the experts; whole on one card there is no room."""
    given = {"model": "mixtral-8x7b", "cluster": {"nodes": 8}}
    explorer = explorer_at("Memory", given | {"training": {"precision": "fsdp-mixed"}})
    report = estimate(explorer.scenario)
    rows = explorer.feed.data["ranks.table"]["rows"]
    assert [row["cells"][0] for row in rows] == [
        "8 ranks, shards 0 to 7 of 64",
        "56 ranks, shards 8 to 63 of 64",
    ]
    for row, group in zip(rows, report.ranks, strict=True):
        assert row["cells"][4] == f"{format_gib(group.peak_bytes)} at {group.binding_phase}"
    assert "8 ranks of 64 bind" in shown(explorer, "ranks.text")
    ways = explorer.feed.data["loading.table"]["rows"]
    assert [row["cells"][3] for row in ways] == [
        "no: the card has 79.1 GiB",
        "no: the node has 1,280.0 GiB of RAM",
        "yes",
    ]
    explorer.scenario = explorer.scenario.from_dict({"model": "llama-3-8b"})
    (row,) = explorer.feed.data["ranks.table"]["rows"]
    assert row["cells"][0] == "8 ranks, all alike"


def test_many_groups_are_cut_to_the_fullest() -> None:
    """Forty stages of one group each: twelve rows, which the caption says."""
    given = {"model": "llama-3-70b", "cluster": {"gpus_per_node": 8, "nodes": 5}}
    explorer = explorer_at("Memory", given | {"layout": {"pipeline_parallel": 40}})
    found = explorer.feed.data["ranks.table"]
    assert len(found["rows"]) == 12
    assert "the 12 fullest of 40 groups" in found["caption"]
    assert found["rows"][0]["cells"][0].startswith("stage 0: 1 rank")


def test_a_pressed_change_is_applied_to_the_controls() -> None:
    """The first change of the table becomes the scenario, and the table is made anew for it."""
    explorer = explorer_at("Change first", {"model": "llama-3-8b", "layout": {"engine": "ddp"}})
    table = next(w for w in explorer.more.children[2].children if isinstance(w, LiveTable))
    first = sensitivity(explorer.scenario)[0]
    rows = explorer.feed.data["changes.table"]["rows"]
    assert [row["pick"] for row in rows] == [c.key for c in sensitivity(explorer.scenario)]
    for made, change in zip(rows, sensitivity(explorer.scenario), strict=True):
        assert made["cells"][4] == format_gib(estimate(change.scenario).needed_bytes)
    assert "What frees most of the layout as it is set" in shown(explorer, "changes.table")
    table._pressed(None, {"picked": first.key}, None)
    assert explorer.scenario == first.scenario
    assert explorer.report.peak_bytes == pytest.approx(first.peak_bytes)
    assert explorer.controls["layout.engine"].value == first.scenario.layout.engine
    assert first.label not in shown(explorer, "changes.table")


def test_a_change_names_what_goes_from_one_value_to_another() -> None:
    """Twice the GPUs counts nodes, so it says nodes."""
    cluster = {"gpu": "rtx-3090", "gpus_per_node": 8}
    given = {"model": "llama-3-8b", "cluster": cluster, "training": {"sequence_length": 1024}}
    rows = explorer_at("Change first", given).feed.data["changes.table"]["rows"]
    said = {row["pick"]: row["cells"] for row in rows}
    assert said["twice-the-gpus"][1] == "nodes 1 → 2"
    assert said["tensor-parallel"][1] == "tensor parallel 1 → 2"
    assert "has no NVLink, only PCIe 4.0" in said["tensor-parallel"][-1]


@pytest.mark.parametrize("picked", ["gone", "", 7, None, ["x"]])
def test_a_change_that_is_not_offered_changes_nothing(picked: object) -> None:
    """A press that arrives late, or anything else that a page may send."""
    explorer = explorer_at("Change first")
    table = next(w for w in explorer.more.children[2].children if isinstance(w, LiveTable))
    before = explorer.scenario
    table._pressed(None, {"picked": picked}, None)
    assert explorer.scenario is before


def test_every_change_can_be_taken() -> None:
    """Each offered change makes a scenario that the panel shows without a problem."""
    scenario = {"model": "llama-3-70b", "cluster": {"nodes": 4}, "training": {"micro_batch": 2}}
    for change in sensitivity(Explorer(scenario).scenario, 30):
        panel = StepPanel(scenario)
        panel.scenario = change.scenario
        assert panel.feed.data["problem"] == []
        assert panel.report.peak_bytes == pytest.approx(change.peak_bytes)


def test_the_table_of_calculators_has_a_row_each_with_its_reasons() -> None:
    """Every formula of the comparison, its total or why it has none, and what it leaves out."""
    explorer = explorer_at("Calculators", {"model": "llama-3-8b", "layout": {"engine": "ddp"}})
    rows = explorer.feed.data["peers.table"]["rows"]
    found = disagreement(explorer.scenario)
    assert [row["cells"][0] for row in rows] == [peer.peer for peer in found]
    for row, peer in zip(rows, found, strict=True):
        reasons = list(peer.leaves_out) if peer.total_bytes is not None else peer.not_applicable
        assert row["cells"][3] == reasons
        assert row["cells"][1] == "–" or row["cells"][1].endswith("GiB")
    for peer in found:
        assert peer.version in shown(explorer, "peers.sources")


@pytest.mark.parametrize("meter", ["allocated", "reserved", "device"])
def test_a_measured_peak_shows_its_residual_by_its_meter(meter: str) -> None:
    """One GiB more than estimated, by each meter, is said to be one GiB more."""
    explorer = explorer_at("Memory", {"model": "llama-3-8b"})
    report = estimate(explorer.scenario)
    size = {"allocated": report.peak_bytes, "reserved": report.reserved_bytes}
    wanted = size.get(meter, report.device_bytes) / GIB + 1
    explorer.calibration.meter.value = meter
    explorer.calibration.measured._moved(None, {"text": f"{wanted:.6f}"}, None)
    said = shown(explorer, "calibration")
    assert "1.00 GiB more than estimated" in said and f"Measured, {meter}" in said


def test_a_measured_peak_follows_the_scenario_and_can_be_taken_back() -> None:
    """Another scenario has another residual; 0 is the invitation again."""
    explorer = explorer_at("Memory", {"model": "llama-3-8b"})
    explorer.calibration.measured._moved(None, {"text": "60"}, None)
    before = shown(explorer, "calibration")
    assert "more than estimated" in before
    explorer.scenario = {"model": "llama-3-8b", "training": {"micro_batch": 2}}
    assert "less than estimated" in shown(explorer, "calibration")
    explorer.calibration.measured._moved(None, {"text": "0"}, None)
    assert "Run a few steps" in shown(explorer, "calibration")


@pytest.mark.parametrize("text", ["abc", "-3", "1e30", "1,000", ""])
def test_a_bad_measurement_is_answered_at_its_field(text: str) -> None:
    """No result of an earlier number stands below it; the same good number brings it back."""
    explorer = explorer_at("Memory")
    explorer.calibration.measured._moved(None, {"text": "60"}, None)
    before = explorer.feed.data["calibration"]
    explorer.calibration.measured._moved(None, {"text": text}, None)
    assert "allowed: a number from 0 to 100000" in explorer.calibration.measured.error
    assert "estimated" not in shown(explorer, "calibration")
    assert "Nothing is compared" in shown(explorer, "calibration")
    explorer.calibration.measured._moved(None, {"text": "60"}, None)
    assert explorer.feed.data["calibration"] == before


def test_more_than_the_card_has_is_asked_about() -> None:
    """24100 of nvidia-smi's MiB typed as GiB: the card's size and the likely unit, no result."""
    explorer = explorer_at("Memory", {"cluster": {"gpu": "rtx-3090"}})
    explorer.calibration.measured._moved(None, {"text": "20"}, None)
    assert "estimated" in shown(explorer, "calibration")
    explorer.calibration.measured._moved(None, {"text": "24100"}, None)
    assert "at most the card's 24.0 GiB; if these are MiB, type 23.5." in shown(
        explorer, "calibration"
    )
    assert "estimated" not in shown(explorer, "calibration")


def test_a_run_that_worked_is_not_said_not_to_fit() -> None:
    """23.9 GiB by nvidia-smi on a card of 24 GiB, of which 23.5 are counted on: it ran."""
    explorer = explorer_at("Memory", {"cluster": {"gpu": "rtx-3090"}})
    explorer.calibration.meter.value = "device"
    explorer.calibration.measured._moved(None, {"text": "23.9"}, None)
    said = shown(explorer, "calibration")
    assert "23.9 GiB: it ran, so there was more than the 23.5 GiB" in said
    assert "does not fit" not in said


def test_a_measurement_of_next_to_nothing_is_refused_in_words() -> None:
    """A peak of 0.0001 GiB is no peak."""
    explorer = explorer_at("Memory")
    explorer.calibration.measured._moved(None, {"text": "0.0001"}, None)
    assert "allowed: 0, or 0.001 GiB and more" in shown(explorer, "calibration")


def test_a_snapshot_is_a_measurement_too() -> None:
    """Its reserved bytes give the fragmentation; a typed number afterwards counts instead."""
    explorer = explorer_at("Memory", {"model": "llama-3-8b"})
    reserved = estimate(explorer.scenario).reserved_bytes / GIB + 2
    message = {"name": "run.pickle", "first": True, "last": True}
    explorer.calibration.file._arrived(None, message, [snapshot(reserved - 5, reserved)])
    assert "2.00 GiB more than estimated" in shown(explorer, "calibration")
    assert "GiB reserved" in explorer.calibration.file.said
    explorer.calibration.measured._moved(None, {"text": "10"}, None)
    assert "less than estimated" in shown(explorer, "calibration")
    assert explorer.calibration.file.said == ""


@pytest.mark.parametrize("content", [b"", b"abc", pickle.dumps(3), pickle.dumps({"segments": 1})])
def test_a_file_that_is_no_snapshot_is_answered_at_its_box(content: bytes) -> None:
    """One sentence; what was measured before stays."""
    explorer = explorer_at("Memory")
    explorer.calibration.measured._moved(None, {"text": "60"}, None)
    before = explorer.feed.data["calibration"]
    message = {"name": "x.pickle", "first": True, "last": True}
    explorer.calibration.file._arrived(None, message, [content])
    assert "_dump_snapshot" in explorer.calibration.file.error
    assert explorer.feed.data["calibration"] == before


def test_where_nothing_fits_the_bars_say_whose_training_they_show() -> None:
    """Questions shrink batches and checkpoint where that could help; the bars do not."""
    explorer = Explorer({"model": "llama-3.1-405b", "training": {"micro_batch": 4}})
    assert explorer.decision.strategy == "none"
    said = shown(explorer, "bars.text")
    assert "training as it is set" in said and "micro-batch 4 -> 1" in said
