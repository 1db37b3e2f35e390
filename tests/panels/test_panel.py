"""Panels without a browser: every control is a trait, and bad input loses nothing."""

from __future__ import annotations

import csv
import html
import io
import json
from pathlib import Path

import pytest
import traitlets
from recorder import Recorder

from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.permalink import from_query, to_query
from shardwise.core.scenario import Scenario
from shardwise.core.units import format_gib
from shardwise.export.realized import realized
from shardwise.panels.controls import Choice
from shardwise.panels.explorer import Explorer
from shardwise.panels.small import (
    DecisionPanel,
    LayersPanel,
    MemoryPanel,
    RulePanel,
    ScalingPanel,
    StepPanel,
)
from shardwise.panels.trainable_field import TrainableField

CONFIG = json.loads((Path(__file__).parents[2] / "data/models/llama-3-8b.json").read_text())


def typed(explorer: Explorer, path: str, text: str) -> None:
    """What the browser sends when somebody types into a number field."""
    explorer.controls[path]._moved(None, {"text": text}, None)  # type: ignore[union-attr]


def test_scenario_report_and_decision_can_be_read_set_and_observed() -> None:
    """Setting the scenario from a cell moves controls, report and decision, and tells observers."""
    explorer, seen = Explorer(), []
    explorer.observe(lambda change: seen.append(change["name"]), ["scenario", "decision", "report"])
    explorer.scenario = {
        "model": {"parameters": 7e9},
        "cluster": {"gpu": "a100-sxm-80gb", "nodes": 2},
    }
    assert explorer.controls["cluster.nodes"].value == 2
    assert explorer.controls["cluster.gpu"].value == "a100-sxm-80gb"
    assert explorer.decision.exhausted == "optimizer state"
    assert explorer.report.scenario == explorer.scenario
    assert sorted(seen) == ["decision", "report", "scenario"]


def test_one_move_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slider's move sends the feed once, with every chart's rows in it, and nothing else."""
    explorer = Explorer()
    feed = Recorder(explorer.feed, monkeypatch)
    field = Recorder(explorer.controls["training.sequence_length"], monkeypatch)
    typed(explorer, "training.sequence_length", "8192")
    assert explorer.scenario.training.sequence_length == 8192
    assert len(feed.states) == 1
    assert {"rule", "bars", "path", "answer", "permalink"} <= set(feed.states[0]["data"])
    assert field.states == []


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("training.sequence_length", "8k", 8000),
        ("training.micro_batch", " 4 ", 4),
        ("cluster.host_memory_gib", "512,5", 512.5),
        ("training.global_batch", "0", None),
        ("cluster.nodes", "1e2", 100),
        ("cluster.nodes", "1 000", 1000),
    ],
)
def test_typed_numbers_are_read_as_people_write_them(
    path: str, text: str, value: float | None
) -> None:
    """Suffixes, spaces, a decimal comma and exponents; 0 leaves the global batch open."""
    explorer = Explorer()
    typed(explorer, path, text)
    section, key = path.split(".")
    assert explorer.scenario.to_dict()[section][key] == value  # type: ignore[index]


BAD_NUMBERS = [
    "", "   ", "abc", "-1", "0", "1.5", "NaN", "inf", "1e30", "1" + "0" * 400, "1,000", "1.000,5",
    "٧", "７", "0x10", "1;DROP", "<script>alert(1)</script>", "4 8", "--4", "1e", "\x00",
    "½", "∞", "8\n16", "None", "true", "+-3", "10**3", "🙂",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_NUMBERS)
def test_a_bad_number_is_answered_at_its_field_and_loses_nothing(text: str) -> None:
    """The sentence stands at the field, the text stays, the last good scenario stays."""
    explorer = Explorer()
    typed(explorer, "training.micro_batch", "2")
    before = explorer.scenario
    field = explorer.controls["training.micro_batch"]
    typed(explorer, "training.micro_batch", text)
    assert explorer.scenario == before
    assert "allowed: a whole number from 1" in field.error  # type: ignore[union-attr]
    assert field.text == text  # type: ignore[union-attr]
    assert field.error.count("\n") == 0  # type: ignore[union-attr]
    typed(explorer, "training.micro_batch", "3")
    assert field.error == ""  # type: ignore[union-attr]
    assert explorer.scenario.training.micro_batch == 3


BAD_CONFIGS: list[str | bytes] = [
    "{", "[]", "null", "3", '"llama"', "{}", "{'hidden_size': 1}", "{" * 20_000, "\x00",
    '{"model_type": "llama"}', json.dumps({**CONFIG, "hidden_size": "4096x"}),
    json.dumps({**CONFIG, "hidden_size": 0}), json.dumps({**CONFIG, "hidden_size": -1}),
    json.dumps({**CONFIG, "num_hidden_layers": 1e30}),
    json.dumps({**CONFIG, "hidden_size": True}), json.dumps({**CONFIG, "num_attention_heads": 0}),
    json.dumps({**CONFIG, "num_attention_heads": 33}),
    json.dumps({**CONFIG, "num_key_value_heads": 7}),
    json.dumps({**CONFIG, "hidden_size": [4096]}), json.dumps({**CONFIG, "hidden_size": {}}),
    '{"hidden_size": NaN, "num_hidden_layers": 2}', "<html></html>", "<script>alert(1)</script>",
    json.dumps({"peft_type": "LORA", "r": 8}), "x" * 20_000_000, b"\xff\xfe\x00",
    json.dumps({**CONFIG, "hidden_size": "４０９６"}),
    json.dumps({**CONFIG, "hidden_size": "4096,5"}),
    '{"a":' * 5000 + "1" + "}" * 5000, json.dumps({**CONFIG, "num_hidden_layers": 1.5}),
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_CONFIGS, ids=range(len(BAD_CONFIGS)))
def test_a_bad_config_is_answered_under_its_box_and_loses_nothing(text: str | bytes) -> None:
    """One sentence under the model; scenario, report and decision stay as they were."""
    explorer = Explorer()
    before = explorer.scenario, explorer.report, explorer.decision
    explorer.model.way.value = "config"
    if isinstance(text, bytes):
        explorer.model._read(text)
    else:
        explorer.model.text.value = text
    note = explorer.model.errors.children
    assert len(note) == 1 and 10 < len(note[0].value) < 700
    assert "<script>" not in note[0].value
    assert (explorer.scenario, explorer.report, explorer.decision) == before


def test_a_pasted_config_becomes_the_model() -> None:
    """A config.json typed by nobody here gives the exact count, and the link carries it."""
    explorer = Explorer()
    explorer.model.way.value = "config"
    explorer.model.text.value = json.dumps(CONFIG)
    assert explorer.scenario.model.parameters == 8_030_261_248
    assert from_query(to_query(explorer.scenario)).scenario == explorer.scenario


def test_an_impossible_degree_is_answered_at_its_control() -> None:
    """Tensor parallel 3 on 8 GPUs: the sentence names field and value; the picture stays."""
    explorer = Explorer()
    before = explorer.feed.data["bars"]
    typed(explorer, "layout.tensor_parallel", "3")
    assert "layout" in explorer.controls["layout.tensor_parallel"].error  # type: ignore[union-attr]
    assert explorer.scenario.layout.tensor_parallel == 1
    assert explorer.feed.data["bars"] == before
    assert "last scenario that worked" in json.dumps(explorer.feed.data["problem"])
    typed(explorer, "layout.tensor_parallel", "2")
    assert explorer.scenario.layout.tensor_parallel == 2
    assert explorer.feed.data["problem"] == []


def test_a_refused_choice_shows_its_sentence_under_the_dropdown() -> None:
    """Pure bf16 on a V100: refused with what to choose instead (case D17)."""
    explorer = Explorer({"cluster": {"gpu": "v100-sxm-32gb"}})
    control = explorer.controls["training.precision"]
    assert isinstance(control, Choice)
    control.value = "bf16"
    assert explorer.scenario.training.precision.key == "mixed-16"
    assert len(control.children) == 2
    assert "mixed-16" in control.children[1].value


def test_setting_a_bad_scenario_from_a_cell_raises_and_keeps_the_last() -> None:
    """The border refuses what is not a scenario, in one sentence."""
    explorer = Explorer()
    before = explorer.scenario
    with pytest.raises(ScenarioError, match=r"cluster\.nodes"):
        explorer.scenario = {"cluster": {"nodes": 0}}
    with pytest.raises(traitlets.TraitError):
        explorer.scenario = 7
    assert explorer.scenario is before


def test_an_engine_brings_a_stage_that_it_has() -> None:
    """DDP has stage 0 only, DeepSpeed all; an interleaved schedule brings two virtual stages."""
    explorer = Explorer({"cluster": {"nodes": 4}, "layout": {"pipeline_parallel": 4}})
    explorer.controls["layout.schedule"].value = "interleaved"
    assert explorer.scenario.layout.virtual_stages == 2
    explorer.controls["layout.schedule"].value = "1f1b"
    assert explorer.scenario.layout.virtual_stages == 1
    explorer.controls["layout.engine"].value = "ddp"
    assert explorer.scenario.layout.zero_stage == 0
    explorer.controls["layout.engine"].value = "deepspeed"
    assert explorer.scenario.layout.zero_stage == 0
    assert explorer.feed.data["problem"] == []


def test_a_field_s_own_error_outlives_another_control_s_move() -> None:
    """Text that cannot be read keeps its sentence until it is mended or replaced."""
    explorer = Explorer()
    typed(explorer, "cluster.nodes", "abc")
    typed(explorer, "training.micro_batch", "2")
    assert "allowed" in explorer.controls["cluster.nodes"].error  # type: ignore[union-attr]
    explorer.scenario = {"model": {"parameters": 1e9}}
    assert explorer.controls["cluster.nodes"].error == ""  # type: ignore[union-attr]
    assert explorer.controls["cluster.nodes"].text == "1"  # type: ignore[union-attr]


def test_a_new_card_brings_its_own_links_and_host_memory() -> None:
    """Choosing a T4 must not leave NVLink 4 behind."""
    explorer = Explorer()
    explorer.controls["cluster.gpu"].value = "t4"
    usual = Scenario.from_dict({"cluster": {"gpu": "t4"}}).cluster
    assert explorer.scenario.cluster.intra_node == usual.intra_node


def test_a_link_reopens_the_same_scenario() -> None:
    """What the address bar holds makes an equal scenario, in a fresh panel."""
    explorer = Explorer(
        {
            "model": {"parameters": 13e9},
            "cluster": {"gpu": "l40s", "nodes": 4},
            "training": {"precision": "fsdp-mixed", "micro_batch": 2, "global_batch": 512},
            "layout": {"tensor_parallel": 2, "offload": {"optimizer": "cpu"}},
        }
    )
    query = explorer.feed.data["permalink"]
    assert Explorer(str(query)).scenario == explorer.scenario
    other = Explorer()
    other.link.search = f"?{query}"
    assert other.scenario == explorer.scenario


def test_a_broken_link_opens_what_it_can_and_says_the_rest() -> None:
    """Unknown keys and bad values are named on the page; nothing is raised."""
    explorer = Explorer()
    explorer.link.search = "?v=1&model=llama-3-8b&nodes=-4&gpu=h100-sxm-80gb&bogus=1"
    shown = json.dumps(explorer.feed.data["problem"])
    assert "bogus" in shown and "nodes=-4" in shown
    assert explorer.scenario.model.name == "llama-3-8b"


@pytest.mark.parametrize(
    "panel", [RulePanel, MemoryPanel, DecisionPanel, ScalingPanel, LayersPanel, StepPanel]
)
def test_small_panels_feed_their_own_sections(panel: type[RulePanel]) -> None:
    """Each small panel shows the rule and its own chart, and follows a scenario."""
    made = panel({"model": {"parameters": 13e9}})
    assert {"rule", *panel.sections} <= set(made.feed.data)
    made.scenario = {"model": {"parameters": 1e9}}
    assert "1 B parameters" in str(made.feed.data["rule.text"])


def test_tabs_are_filled_when_they_are_opened() -> None:
    """What stands behind a closed tab costs nothing; opening it shows the current scenario."""
    explorer = Explorer()
    assert "scaling" not in explorer.feed.data
    explorer.more.choose("GPUs")
    assert len(explorer.feed.data["scaling"]["rows"]) == 44
    explorer.more.choose("Numbers")
    assert "source" in json.dumps(explorer.feed.data["numbers"])


def test_downloads_hold_the_scenario_and_its_numbers() -> None:
    """The CSV has a line a strategy and part; the JSON reads back to the same scenario."""
    explorer = Explorer({"model": {"parameters": 7e9}})
    lines = explorer.numbers_csv().splitlines()
    assert lines[0].startswith("strategy,basis,part,bytes")
    assert len(lines) > 5 * 8
    assert Scenario.from_dict(json.loads(explorer.scenario_json())) == explorer.scenario
    numbers = json.loads(explorer.numbers_json())
    assert numbers["decision"]["strategy"] == explorer.decision.strategy


def test_the_problem_line_stays_while_the_controls_are_refused() -> None:
    """Opening a tab must not hide what is wrong; going back to the last good value clears it."""
    explorer = Explorer()
    explorer.controls["layout.sequence_parallel"].value = True
    assert explorer.feed.data["problem"]
    explorer.more.choose("Layers")
    assert explorer.feed.data["problem"]
    explorer.controls["layout.sequence_parallel"].value = False
    assert explorer.feed.data["problem"] == []


@pytest.mark.parametrize(
    "given",
    [
        {"model": "llama-3-70b", "cluster": {"gpus_per_node": 1, "host_memory_gib": 1280}},
        {"layout": {"shard": 4}},
        {"layout": {"pipeline_parallel": 2, "layers_per_stage": [20, 12]}},
        {"cluster": {"gpu": "t4", "gpus_per_node": 8, "host_memory_gib": 128}},
    ],
)
def test_links_and_moves_keep_what_has_no_control(given: dict[str, object]) -> None:
    """A link reopens the same scenario, and moving the micro-batch changes the micro-batch only."""
    scenario = Scenario.from_dict(given)
    assert from_query(to_query(scenario)).scenario == scenario
    explorer = Explorer(scenario)
    typed(explorer, "training.micro_batch", "2")
    expected = scenario.to_dict()
    expected["training"]["micro_batch"] = 2  # type: ignore[index]
    assert explorer.scenario == Scenario.from_dict(expected)


def test_host_memory_follows_the_number_of_cards() -> None:
    """Usual host memory stays usual for another card or count; a typed one stays."""
    explorer = Explorer()
    explorer.controls["cluster.gpu"].value = "t4"
    usual = Scenario.from_dict({"cluster": {"gpu": "t4", "gpus_per_node": 8}}).cluster
    assert explorer.scenario.cluster == usual
    typed(explorer, "cluster.gpus_per_node", "1")
    usual = Scenario.from_dict({"cluster": {"gpu": "t4", "gpus_per_node": 1}}).cluster
    assert explorer.scenario.cluster == usual
    typed(explorer, "cluster.host_memory_gib", "99")
    typed(explorer, "cluster.gpus_per_node", "2")
    assert explorer.scenario.cluster.host_memory_bytes == 99 * 2**30


def test_every_refused_strategy_still_gives_a_decision() -> None:
    """A global batch smaller than every layout's least is answered, not raised."""
    explorer = Explorer({"model": "llama-3.1-405b", "training": {"micro_batch": 2}})
    typed(explorer, "training.global_batch", "1")
    assert explorer.decision.strategy == "none"


def test_the_files_tab_says_what_the_program_really_runs() -> None:
    """torch keeps no master weights; where its program does not fit, the page says so."""
    explorer = Explorer({"model": "llama-3-8b"})
    explorer.more.choose("Files")
    said = json.dumps(explorer.feed.data["files"])
    assert explorer.decision.scenario.layout.engine == "deepspeed"
    decided = estimate(explorer.decision.scenario)
    torchs = estimate(realized(explorer.decision.scenario).scenario)
    for who, report in (("torch", torchs), ("DeepSpeed", decided)):
        needed = format_gib(report.needed_bytes)
        assert (
            f"As {who} runs it, the card must have {needed} of 79.1 GiB: {report.verdict}" in said
        )


def test_the_files_tab_estimates_deepspeed_s_own_engine() -> None:
    """FSDP fits eight 3090s, the same stage of DeepSpeed does not: its file says so, in red."""
    cluster = {"gpu": "rtx-3090", "gpus_per_node": 8}
    training = {"sequence_length": 1024}
    explorer = Explorer({"model": "llama-3-8b", "cluster": cluster, "training": training})
    explorer.more.choose("Files")
    blocks = explorer.feed.data["files"]
    assert explorer.decision.strategy == "zero-3"
    layout = {"engine": "deepspeed", "zero_stage": 3}
    training["activation_checkpointing"] = "full"  # type: ignore[assignment]
    asked = {"model": "llama-3-8b", "cluster": cluster, "training": training, "layout": layout}
    report = estimate(Scenario.from_dict(asked))
    assert report.verdict == "does not fit"
    wrong = [block["text"] for block in blocks if block["kind"] == "error"]
    assert len(wrong) == 1 and "As DeepSpeed runs it" in wrong[0]
    assert f"{format_gib(report.needed_bytes)} of 23.5 GiB: does not fit" in wrong[0]
    assert "fits" in next(block["text"] for block in blocks if "As torch" in str(block))


def test_a_program_that_cannot_be_written_has_a_disabled_button_and_a_reason() -> None:
    """Adapters are in no exported program; full training enables both buttons again."""
    explorer = Explorer({"model": "llama-3-8b"})
    explorer.more.choose("Files")
    buttons = explorer.programs.values()
    assert [button.disabled for button in buttons] == [False, False]
    explorer.controls["training.trainable"].value = {"lora": {"rank": 8}}
    assert not explorer.scenario.training.trainable.everything
    assert [button.disabled for button in buttons] == [True, True]
    said = json.dumps(explorer.feed.data["files"])
    assert said.count("Cannot be written: training.trainable") == 2
    assert ": fits." not in said
    explorer.scenario = {"model": "llama-3-8b"}
    assert [button.disabled for button in buttons] == [False, False]


@pytest.mark.parametrize(
    ("given", "first", "second"),
    [
        ({"model": "llama-3-8b"}, "As set (FSDP2, ZeRO-3): {} of 79.1 GiB, fits.",
         "Nothing has to change. The least machinery that fits is ZeRO-1; with less"),
        ({"model": "llama-3-8b", "cluster": {"gpu": "rtx-4090", "gpus_per_node": 8}},
         "As set (FSDP2, ZeRO-3): {} of 23.5 GiB, does not fit.", "What runs out is room"),
        ({"model": "llama-3-8b", "layout": {"engine": "deepspeed", "zero_stage": 1}},
         "As set (DeepSpeed, ZeRO-1): {} of 79.1 GiB, fits.", "It is the least machinery"),
        ({"model": "llama-3.1-405b"}, "As set (FSDP2, ZeRO-3): {} of 79.1 GiB, does not fit.",
         "Nothing fits on these 8 GPUs"),
    ],
)  # fmt: skip
def test_the_answer_begins_with_the_run_as_it_is_set(
    given: dict[str, object], first: str, second: str
) -> None:
    """Does my run fit: the first line; what fits reads as if nothing were wrong."""
    explorer = Explorer(given)
    blocks = explorer.feed.data["answer"]
    headings = [block["text"] for block in blocks if block["kind"] == "heading"]
    needed = format_gib(explorer.report.needed_bytes).removesuffix(" GiB")
    assert headings[0] == first.format(needed)
    assert headings[1].startswith(second)


def test_the_answer_says_why_a_run_that_fits_the_card_cannot_be() -> None:
    """Offload needs more host memory than the node has."""
    cluster = {"gpus_per_node": 1, "host_memory_gib": 16}
    layout = {"offload": {"optimizer": "cpu"}}
    explorer = Explorer({"model": "llama-3-8b", "cluster": cluster, "layout": layout})
    said = explorer.feed.data["answer"][0]["text"]
    assert "fits the card, but cannot run. Offload needs" in said
    assert "Nothing has to change" not in json.dumps(explorer.feed.data["answer"])


def test_each_view_says_whose_layout_it_is_of() -> None:
    """GPUs: the training as set; Numbers: the decided layout; the files' rows: which is which."""
    explorer = Explorer({"model": "llama-3-8b", "cluster": {"gpu": "rtx-4090"}})
    explorer.more.choose("GPUs")
    said = explorer.feed.data["scaling.text"]
    assert said.startswith("With the training as it is set (micro-batch 1, activation checkpoint")
    explorer.scenario = {"model": "llama-3-8b"}
    explorer.more.choose("Numbers")
    heading = explorer.feed.data["numbers"][0]["text"]
    assert heading == "Of the decided layout: DeepSpeed, ZeRO-1"
    rows = list(csv.DictReader(io.StringIO(explorer.numbers_csv())))
    bases = {row["strategy"]: row["basis"] for row in rows}
    assert bases["yours: fsdp2 Z3"] == "as set"
    assert bases["ZeRO-1"] == "decided"
    assert bases["DDP"] == "compared"


def test_a_config_without_text_has_a_hint_and_a_broken_one_a_line_at_the_top() -> None:
    """What is shown is of another model then, and the page says so."""
    explorer = Explorer({"model": "llama-3-8b"})
    explorer.model.way.value = "config"
    assert "until then" in explorer.model.errors.children[0].value
    explorer.model.text.value = "{"
    assert "still the last model that worked" in json.dumps(explorer.feed.data["problem"])
    explorer.more.choose("Layers")
    assert explorer.feed.data["problem"]
    explorer.model.text.value = json.dumps(CONFIG)
    assert explorer.feed.data["problem"] == []
    assert explorer.model.errors.children == ()
    explorer.model.text.value = "{"
    explorer.model.way.value = "name"
    assert explorer.feed.data["problem"] == []


@pytest.mark.parametrize(
    ("pasted", "hint"),
    [
        (
            "meta-llama/Meta-Llama-3-8B",
            "the catalogue's nearest is 'llama-3-8b'",
        ),
        ("https://huggingface.co/Qwen/Qwen2.5-7B-Instruct", "the catalogue's nearest is 'qwen2.5-"),
        ("nobody/zzzz", "nothing is downloaded: copy the file's text here"),
        ("mixtral-8x7b", "the catalogue's nearest is 'mixtral-8x7b'"),
        ("7B", "for a size choose 'only the number of parameters'"),
    ],
)
def test_a_name_pasted_for_a_config_is_answered_with_the_nearest_model(
    pasted: str, hint: str
) -> None:
    """A hub id, an address or a size in the box: what to choose instead; the scenario stays."""
    explorer = Explorer()
    before = explorer.scenario
    explorer.model.way.value = "config"
    explorer.model.text.value = pasted
    assert hint in html.unescape(explorer.model.errors.children[0].value)
    assert explorer.scenario == before


@pytest.mark.parametrize("sequence_length", [512, 65_536])
def test_the_answer_says_what_the_run_as_it_is_set_is_full_of(sequence_length: int) -> None:
    """Under the verdict: the moment, the three largest parts and the band, units included."""
    explorer = Explorer({"training": {"sequence_length": sequence_length}})
    report, said = explorer.report, explorer.feed.data["answer"][1]["text"]
    largest = sorted(report.parts.items(), key=lambda part: -part[1])[:3]
    assert said.startswith(f"Fullest at {report.binding_phase}: {largest[0][0]} ")
    for _, size in largest:
        assert format_gib(size) in said
    assert f"to {format_gib(report.needed_high_bytes)}: fragmentation from none to 8%." in said


@pytest.mark.parametrize(("sequence_length", "told"), [(20_480, False), (28_672, True)])
def test_expandable_segments_are_asked_for_where_the_default_allocator_runs_out(
    sequence_length: int, told: bool
) -> None:
    """One more block of 13.7 GiB, all fp32 logits, is what the card has no room for."""
    training = {"sequence_length": sequence_length, "activation_checkpointing": "full"}
    given = {"model": "llama-3-8b", "cluster": {"gpus_per_node": 8}, "training": training}
    explorer = Explorer(given | {"training": training | {"precision": "fsdp-mixed"}})
    assert explorer.report.verdict == "fits"
    assert explorer.report.largest_bytes == 4 * sequence_length * 128_256
    assert ("expandable_segments:True" in explorer.feed.data["answer"][1]["text"]) == told


def test_one_gpu_is_told_to_use_torch_alone() -> None:
    """A LoRA of Qwen2.5-32B on one card: no engine is named for a single GPU."""
    lora = {"trainable": {"lora": {}}}
    explorer = Explorer({"model": "qwen2.5-32b", "cluster": {"gpus_per_node": 1}, "training": lora})
    assert explorer.decision.strategy == "ddp"
    rows = [row for block in explorer.feed.data["answer"] for row in block.get("rows", [])]
    assert ["Use", "torch alone: one GPU has nothing to share"] in rows


def test_a_config_from_elsewhere_stands_in_its_box() -> None:
    """A config set from a cell can be read and edited, and cannot be changed from outside."""
    config = dict(CONFIG)
    explorer = Explorer({"model": config})
    assert json.loads(explorer.model.text.value) == CONFIG
    config["num_hidden_layers"] = 1
    assert explorer.scenario.to_dict()["model"]["num_hidden_layers"] == 32  # type: ignore[index]


LORA = {"lora": {"rank": 8, "targets": ["default"], "base": "nf4"}}


@pytest.mark.parametrize(
    "given",
    [
        {"training": {"trainable": LORA}},
        {"training": {"trainable": {"lora": {"targets": ["q", "v"], "dropout": 0.1}}}},
        {"training": {"trainable": {"only": ["head"]}}},
        {"layout": {"vocabulary_parallel": False, "tensor_parallel": 2}},
        {"layout": {"engine": "deepspeed", "zero_stage": 2, "reduce_bucket_elements": 50_000_000}},
        {"layout": {"context_parallel": 2, "context_exchange": "a2a"}},
    ],
)
def test_a_move_keeps_what_a_link_brought(given: dict[str, object]) -> None:
    """Adapters, frozen parts and settings without a control survive another control's move."""
    scenario = Scenario.from_dict(given)
    explorer = Explorer(to_query(scenario))
    assert explorer.scenario == scenario
    typed(explorer, "training.micro_batch", "2")
    expected = scenario.to_dict()
    expected["training"]["micro_batch"] = 2  # type: ignore[index]
    assert explorer.scenario == Scenario.from_dict(expected)


def test_a_setting_without_a_control_goes_when_it_fits_no_more() -> None:
    """Experts cut over eight ranks do not fit two expert ranks of eight GPUs: the cut goes."""
    explorer = Explorer(
        {
            "model": "mixtral-8x7b",
            "layout": {"engine": "megatron", "tensor_parallel": 2, "expert_tensor_parallel": 8},
        }
    )
    typed(explorer, "layout.expert_parallel", "2")
    assert explorer.scenario.layout.expert_parallel == 2
    assert explorer.scenario.layout.expert_tensor_parallel is None
    assert explorer.feed.data["problem"] == []


def test_adapters_are_chosen_with_a_rank_and_targets() -> None:
    """QLoRA by the dropdown, its rank by the field; all parameters takes both away."""
    explorer = Explorer({"model": "llama-3-8b"})
    field = explorer.controls["training.trainable"]
    assert isinstance(field, TrainableField)
    full = explorer.report.peak_bytes
    field.kind.value = "nf4"
    assert explorer.scenario.training.trainable.name == "QLoRA (nf4 base) of rank 16 on default"
    field.rank._moved(None, {"text": "64"}, None)
    field.targets.value = "all-linear"
    assert explorer.scenario.training.trainable.rank == 64
    assert explorer.scenario.training.trainable.targets == ("all-linear",)
    assert field.rank in field.children
    assert explorer.report.peak_bytes < full
    field.kind.value = "all"
    assert explorer.scenario.training.trainable.everything
    assert field.rank not in field.children


def test_adapters_that_a_model_cannot_have_are_refused_at_their_field() -> None:
    """peft has no usual targets for DeepSeek-V2: the sentence names those that there are."""
    explorer = Explorer({"model": "deepseek-v2", "cluster": {"nodes": 8}})
    before = explorer.scenario
    field = explorer.controls["training.trainable"]
    assert isinstance(field, TrainableField)
    field.kind.value = "16-bit"
    assert "q_a_proj" in field.errors.children[0].value
    assert explorer.scenario is before
    field.targets.value = "all-linear"
    assert explorer.scenario.training.trainable.rank == 16
    assert field.errors.children == ()
    field.kind.value = "all"
    assert explorer.feed.data["problem"] == []


def test_pictures_are_asked_for_where_a_vision_tower_sees_them() -> None:
    """The control comes with such a model, and leaves with it together with what it said."""
    explorer = Explorer()
    pictures = explorer.controls["training.images_per_sample"]
    assert pictures.layout.display == "none"  # type: ignore[attr-defined]
    explorer.model.show("gemma-3-4b")
    explorer._changed("model")
    assert pictures.layout.display == ""  # type: ignore[attr-defined]
    before = explorer.report.peak_bytes
    pictures.value = 0
    assert explorer.scenario.training.images_per_sample == 0
    assert explorer.report.peak_bytes < before
    explorer.model.show("llama-3-8b")
    explorer._changed("model")
    assert explorer.feed.data["problem"] == []
    assert explorer.scenario.model_source == "llama-3-8b"
    assert (pictures.layout.display, pictures.value) == ("none", 1)  # type: ignore[attr-defined]
