"""The rows of the charts say what the reports say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.charts import bars, layers, path, rule, scaling
from shardwise.core.catalogue import load_model
from shardwise.core.decision import decide
from shardwise.core.memory import estimate
from shardwise.core.scenario import Scenario
from shardwise.core.units import GIB

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
    assert total == pytest.approx(report.device_bytes / GIB, abs=0.01)
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
