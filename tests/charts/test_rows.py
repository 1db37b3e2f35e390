"""The rows of the charts say what the reports say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.charts import (
    bars,
    changes,
    layers,
    path,
    peers,
    phases,
    rule,
    scaling,
    stacked,
    stages,
)
from shardwise.charts.stacked import label_of
from shardwise.core.catalogue import load_model
from shardwise.core.decision import decide
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.report import PHASES
from shardwise.core.memory.sensitivity import sensitivity
from shardwise.core.peers.table import disagreement
from shardwise.core.scenario import Scenario
from shardwise.core.units import GIB, format_gib

SEVEN = {"parameters": 7e9}


def test_rule_rows_are_the_paper_s_sixteen_bytes() -> None:
    """2 + 2 + 4 + 4 + 4 (ZeRO, section 3.1), 112 GB for 7B, weights 14 GB."""
    rows = rule.rows(Scenario.from_dict({"model": SEVEN}))
    assert [row["bytes"] for row in rows] == [2, 2, 4, 4, 4]
    assert sum(float(str(row["gb"])) for row in rows) == 112
    assert rows[0]["gb"] == 14
    said = rule.sentence(Scenario.from_dict({"model": SEVEN}))
    assert "16 bytes" in said and "112 GB" in said and "14 GB" in said


@given(
    parameters=st.integers(10**7, 10**12),
    length=st.sampled_from([512, 4096, 65536]),
    gpu=st.sampled_from(["t4", "a100-sxm-80gb", "mi300x"]),
)
def test_bar_segments_add_up_to_the_device_figure(parameters: int, length: int, gpu: str) -> None:
    """Uncut segments sum to what nvidia-smi would show, and none ends beyond the axis."""
    scenario = Scenario.from_dict(
        {
            "model": {"parameters": parameters},
            "cluster": {"gpu": gpu},
            "training": {"sequence_length": length},
        }
    )
    report = estimate(scenario)
    data = bars.rows([("x", report)])
    total = sum(float(str(row["gib"])) for row in data["rows"])
    assert total == pytest.approx(report.needed_bytes / GIB, abs=0.01)
    edge = float(str(data["limits"][0]["edge"]))
    assert all(float(str(row["end"])) <= edge + 1e-9 for row in data["rows"])


def test_a_cut_bar_says_so() -> None:
    """A bar longer than the axis carries its true size and a mark."""
    scenario = Scenario.from_dict({"model": {"parameters": 70e9}, "layout": {"engine": "ddp"}})
    label = str(bars.rows([("DDP", estimate(scenario))])["totals"][0]["label"])
    assert "»" in label and "GiB, no" in label


def test_path_is_lit_up_to_the_first_yes() -> None:
    """Questions after the chosen one are not asked and not lit."""
    rows = path.rows(decide(Scenario.from_dict({"model": SEVEN})))
    assert len(rows) == 5
    first_yes = next(i for i, row in enumerate(rows) if row["verdict"] == "yes")
    assert [row["lit"] for row in rows] == [1] * (first_yes + 1) + [0] * (4 - first_yes)


def test_a_station_refused_for_the_host_s_memory_says_so() -> None:
    """7B on one 24 GB card, 64 GiB of host memory: 4 GiB a GPU would do, the host is too small."""
    cluster = {"gpu": "rtx-4090", "gpus_per_node": 1}
    decision = decide(Scenario.from_dict({"model": SEVEN, "cluster": cluster}))
    station = path.rows(decision)[3]
    assert decision.questions[3].needed_bytes < decision.questions[3].available_bytes
    host = max(estimate(a.scenario).host_bytes_per_node for a in decision.questions[3].attempts)
    assert station["state"] == f"no\nhost {label_of(host / 2**30)}"
    assert f"host {format_gib(host)}" in str(station["needed"])


def test_strategies_above_the_card_s_line_are_said_in_one_breath() -> None:
    """Llama-3-70B without checkpointing: one clause where no strategy gets under the line."""
    long = {"model": "llama-3-70b", "training": {"sequence_length": 8192}}
    said = scaling.sentence(scaling.rows(Scenario.from_dict(long)))
    assert said == "no strategy is under the line at any number of GPUs shown."


def test_ddp_line_is_flat_and_sharded_lines_fall() -> None:
    """Plain DDP needs the same at 2 and at 1024 GPUs; ZeRO-3 falls with every doubling."""
    data = scaling.rows(Scenario.from_dict({"model": SEVEN}))
    lines: dict[str, dict[int, float]] = {}
    for row in data["rows"]:
        lines.setdefault(str(row["strategy"]), {})[int(str(row["gpus"]))] = float(str(row["gib"]))
    assert lines["DDP"][2] == lines["DDP"][1024]
    zero3 = [lines["ZeRO-3 / FSDP"][count] for count in scaling.COUNTS[1:]]
    assert zero3 == sorted(zero3, reverse=True) and zero3[0] > zero3[-1]


def test_largest_layer_of_llama_3_is_its_embedding() -> None:
    """Llama-3-8B's embedding has 525,336,576 parameters, more than twice a block's."""
    scenario = Scenario.from_dict({"model": "llama-3-8b"})
    first = layers.rows(scenario)[0]
    assert first["parameters"] == 525_336_576
    assert first["gib"] == pytest.approx(2 * 525_336_576 / GIB, abs=1e-3)
    assert "525 M" in layers.sentence(scenario)


def test_layers_list_each_size_once() -> None:
    """The 32 equal blocks are one row that says 32."""
    rows = layers.distinct(load_model("llama-3-8b"))
    assert [count for _, _, count in rows if count > 1] == [32]


def piped(stages: int = 4, **training: object) -> MemoryReport:
    """Llama-3-70B over pipeline stages of eight GPUs each."""
    return estimate(
        Scenario.from_dict(
            {
                "model": "llama-3-70b",
                "cluster": {"nodes": stages},
                "training": training,
                "layout": {"pipeline_parallel": stages, "tensor_parallel": 8, "zero_stage": 2},
            }
        )
    )


def number(row: dict[str, object], field: str) -> float:
    """A number of a row."""
    value = row[field]
    assert isinstance(value, (int, float))
    return float(value)


@pytest.mark.parametrize("model", ["llama-3-8b", SEVEN])
def test_phase_bars_stand_in_order_of_time_and_the_longest_is_the_report_s(model: object) -> None:
    """From load to the next step, the binding one outlined, its length and band the report's."""
    report = estimate(Scenario.from_dict({"model": model}))
    totals = phases.rows(report)["totals"]
    assert [row["bar"] for row in totals] == ["after load and wrap", *PHASES[1:], PHASES[0]]
    assert [row["first"] is None for row in totals] == [True, *[False] * 5, True]
    outlined = [row for row in totals if row["outline"]]
    assert [row["bar"] for row in outlined] == [report.binding_phase]
    assert number(outlined[0], "gib") == max(number(row, "gib") for row in totals)
    for field, size in (
        ("gib", report.needed_bytes),
        ("from", report.low_bytes),
        ("to", report.needed_high_bytes),
        ("allocated", report.peak_bytes),
    ):
        assert number(outlined[0], field) == pytest.approx(size / GIB, abs=0.006)
    assert "peak" in str(outlined[0]["label"])


def test_stages_show_what_1f1b_keeps_in_flight() -> None:
    """Stage i of p holds min(m, p - i) micro-batches (Narayanan et al. 2021, section 2.2)."""
    report = piped(global_batch=8)
    totals = stages.rows(report)["totals"]
    assert [row["flight"] for row in totals] == [4, 3, 2, 1]
    assert ["4 in flight" in str(row["label"]) for row in totals] == [True, False, False, False]
    assert [row["bar"] for row in totals if row["outline"]] == [f"stage {report.worst.index}"]
    said = stages.sentence(report)
    assert "Stage 0 is the fullest" in said and "1 micro-batch in flight" in said


def test_one_stage_says_nothing_of_what_is_in_flight() -> None:
    """Without a pipeline there is one micro-batch at a time, which is no news."""
    totals = stages.rows(estimate(Scenario.from_dict({"model": "llama-3-8b"})))["totals"]
    assert ["flight" in str(row["label"]) for row in totals] == [False]


def test_a_label_tells_23_5_from_the_card_s_24() -> None:
    """Three figures, so that a bar beside a line of 23.5 GiB is not said to be 24."""
    assert [stacked.label_of(gib) for gib in (9.96, 23.5, 99.96, 170.7)] == [
        "10.0 GiB", "23.5 GiB", "100 GiB", "171 GiB",
    ]  # fmt: skip


def test_a_long_pipeline_draws_as_many_stages_as_a_screen_holds() -> None:
    """Of 40 stages 15 or 16 are drawn, the fullest and the last among them, and it is said."""
    report = piped(40)
    drawn = [row["bar"] for row in stages.rows(report)["totals"]]
    assert len(drawn) <= stages.MOST
    assert {f"stage {report.worst.index}", "stage 39"} <= set(drawn)
    assert f"Drawn are {len(drawn)} of 40 stages" in stages.sentence(report)


@given(parameters=st.integers(10**7, 10**12), gpu=st.sampled_from(["t4", "mi300x"]))
def test_every_bar_lies_inside_its_band(parameters: int, gpu: str) -> None:
    """Low, figure and high are in order on every bar of every stacked chart."""
    scenario = Scenario.from_dict({"model": {"parameters": parameters}, "cluster": {"gpu": gpu}})
    report = estimate(scenario)
    made = (
        bars.rows([("x", report)]),
        phases.rows(report),
        stages.rows(report),
        changes.rows(report, sensitivity(scenario)),
    )
    for row in (row for data in made for row in data["totals"]):
        assert number(row, "from") <= number(row, "gib") <= number(row, "to")
        assert number(row, "low") <= number(row, "high")


def test_changes_are_numbered_bars_after_the_one_as_set() -> None:
    """The first bar is the report itself; each other one is the changed scenario's estimate."""
    scenario = Scenario.from_dict({"model": "llama-3-8b", "layout": {"engine": "ddp"}})
    report, found = estimate(scenario), sensitivity(scenario)
    totals = changes.rows(report, found)["totals"]
    assert [row["bar"] for row in totals] == [
        changes.NOW,
        *(f"{place} {change.label}" for place, change in enumerate(found, 1)),
    ]
    for row, change in zip(totals[1:], found, strict=True):
        device = estimate(change.scenario).needed_bytes / GIB
        assert number(row, "gib") == pytest.approx(device, abs=0.006)
    assert f"{found[0].label[1:]} frees most" in changes.sentence(report, found)
    assert "No single change" in changes.sentence(report, ())


def test_peers_bars_are_their_formulas_totals() -> None:
    """Ours twice, then those that can be asked; one that cannot is left to the table."""
    scenario = Scenario.from_dict({"model": "llama-3-8b", "layout": {"engine": "ddp"}})
    report, found = estimate(scenario), disagreement(scenario)
    rows = peers.rows(report, found)["rows"]
    assert number(rows[0], "gib") == pytest.approx(report.peak_bytes / GIB, abs=0.006)
    assert number(rows[1], "gib") == pytest.approx(report.needed_bytes / GIB, abs=0.006)
    asked = [peer for peer in peers.others(found) if peer.total_bytes is not None]
    assert [row["peer"] for row in rows[2:]] == [peer.peer for peer in asked]
    assert len(asked) < len(peers.others(found))
    assert "59.8 GiB" in peers.sentence(report, found)
