"""Scenarios: defaults, round trips, and one clear sentence for everything that cannot be."""

# ruff: noqa: E501 - the bad inputs stand one a line

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.core import catalogue
from shardwise.core.decision import decide
from shardwise.core.engines import ENGINES, SCHEDULES
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate, sweep
from shardwise.core.optimizers import OPTIMIZERS
from shardwise.core.precision import DTYPE_BYTES, POLICIES
from shardwise.core.scenario import Scenario
from shardwise.core.training import ATTENTIONS, IMPLEMENTATIONS, LOSSES, MODEL_CODES


def test_nothing_said_is_llama_3_8b_on_eight_h100() -> None:
    """Missing keys take the stated defaults."""
    scenario = Scenario.from_dict({})
    assert scenario.model.name == "llama-3-8b"
    assert scenario.cluster.world_size == scenario.data_parallel == scenario.shard == 8
    assert scenario.training.sequence_length == 4096
    assert scenario.micro_batches == 1


def test_a_config_and_a_count_are_models_too() -> None:
    """A config.json as a dict, or only a number of parameters."""
    config = json.loads((catalogue.data_root() / "models" / "gpt2.json").read_text())
    assert Scenario.from_dict({"model": config}).model.parameters == 124_439_808
    assert Scenario.from_dict({"model": {"parameters": "7B"}}).model.parameters == 7_000_000_000


def test_micro_batches_are_rounded_up() -> None:
    """100 samples over 8 replicas of 4 are 4 micro-batches, which makes it 128."""
    scenario = Scenario.from_dict({"training": {"global_batch": 100, "micro_batch": 4}})
    assert (scenario.micro_batches, scenario.global_batch) == (4, 128)


def test_a_pipeline_without_a_global_batch_gets_four_micro_batches_a_stage() -> None:
    """The stated default of a pipeline."""
    assert Scenario.from_dict({"layout": {"pipeline_parallel": 4}}).micro_batches == 16


def test_tensor_parallelism_may_replicate_key_value_heads() -> None:
    """32 heads and 8 key-value heads over 16 ranks: two ranks share a key-value head."""
    value = {"cluster": {"nodes": 2}, "layout": {"tensor_parallel": 16}}
    assert Scenario.from_dict(value).layout.tensor_parallel == 16


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    # what, scenario, field, a part of the sentence
    ("an unknown section", {"trainig": {}}, "scenario", "the nearest is 'training'"),
    ("an unknown model", {"model": "llama-3-8"}, "model", "the nearest is 'llama-3-8b'"),
    ("a number as model", {"model": 7e9}, "model", "a catalogue name"),
    ("a list as model", {"model": ["llama-3-8b"]}, "model", "a catalogue name"),
    ("no model at all", {"model": None}, "model", "a catalogue name"),
    ("too few parameters", {"model": {"parameters": 12}}, "parameters", "from 1 million"),
    ("too many parameters", {"model": {"parameters": 10**30}}, "parameters", "100 trillion"),
    ("parameters not a number", {"model": {"parameters": math.nan}}, "parameters", "whole number"),
    ("the cluster is a list", {"cluster": []}, "cluster", "a dict"),
    ("the cluster is a text", {"cluster": "h100"}, "cluster", "a dict"),
    ("an unknown card", {"cluster": {"gpu": "h100"}}, "cluster.gpu", "the nearest is"),
    ("an unknown cluster key", {"cluster": {"gpus": 8}}, "cluster", "'gpus_per_node'"),
    ("no GPU", {"cluster": {"gpus_per_node": 0}}, "cluster.gpus_per_node", "from 1"),
    ("negative nodes", {"cluster": {"nodes": -2}}, "cluster.nodes", "from 1"),
    ("half a node", {"cluster": {"nodes": 1.5}}, "cluster.nodes", "the nearest is 2"),
    ("an ambiguous comma", {"cluster": {"nodes": "1,000"}}, "cluster.nodes", "two things"),
    ("training is a text", {"training": "bf16"}, "training", "a dict"),
    ("training is None", {"training": None}, "training", "a dict"),
    ("an unknown key", {"training": {"sequence": 1}}, "training", "'sequence_length'"),
    ("no tokens", {"training": {"sequence_length": 0}}, "training.sequence_length", "from 1"),
    ("tokens as words", {"training": {"sequence_length": "long"}}, "training.sequence_length", "digits"),
    ("tokens as a list", {"training": {"sequence_length": [1]}}, "training.sequence_length", "whole"),
    ("a true micro-batch", {"training": {"micro_batch": True}}, "training.micro_batch", "whole"),
    ("an infinite batch", {"training": {"global_batch": math.inf}}, "training.global_batch", "whole"),
    ("an unknown policy", {"training": {"precision": "bf-16"}}, "training.precision", "'bf16'"),
    ("an unknown dtype", {"training": {"precision": {"compute": "bf61"}}}, "training.precision.compute", "'bf16'"),
    ("an unknown dtype field", {"training": {"precision": {"grads": "bf16"}}}, "training.precision", "gradients"),
    ("no compute type", {"training": {"precision": {"compute": "none"}}}, "training.precision.compute", "fp32"),
    ("precision as a number", {"training": {"precision": 16}}, "training.precision", "name"),
    ("an unknown optimizer", {"training": {"optimizer": "adam"}}, "training.optimizer", "'adamw'"),
    ("an unknown kernel", {"training": {"attention": "flash2"}}, "training.attention", "'flash'"),
    ("an unknown loss", {"training": {"loss": "chunk"}}, "training.loss", "'chunked'"),
    ("unknown modules", {"training": {"model_code": "titan"}}, "training.model_code", "'torchtitan'"),
    ("unknown optimizer code", {"training": {"optimizer_implementation": "fuse"}}, "training.optimizer_implementation", "'fused'"),
    ("checkpointing as a flag", {"training": {"activation_checkpointing": True}}, "training.activation_checkpointing", "selective"),
    ("every zeroth block", {"training": {"activation_checkpointing": {"every": 0}}}, "training.activation_checkpointing.every", "from 1"),
    ("every nothing", {"training": {"activation_checkpointing": {}}}, "training.activation_checkpointing.every", "from 1"),
    ("the layout is a list", {"layout": [1]}, "layout", "a dict"),
    ("an unknown layout key", {"layout": {"tensor": 2}}, "layout", "'tensor_parallel'"),
    ("an unknown engine", {"layout": {"engine": "fsdp"}}, "layout.engine", "fsdp"),
    ("an unknown schedule", {"layout": {"schedule": "1f1"}}, "layout.schedule", "'1f1b'"),
    ("offload to a disk", {"layout": {"offload": {"optimizer": "disk"}}}, "layout.offload.optimizer", "nvme"),
    ("offload as a text", {"layout": {"offload": "cpu"}}, "layout.offload", "a dict"),
    ("a flag as text", {"layout": {"sequence_parallel": "true", "tensor_parallel": 2}}, "layout.sequence_parallel", "True or False"),
    ("no tensor parallelism", {"layout": {"tensor_parallel": 0}}, "layout.tensor_parallel", "from 1"),
    ("2 x 3 on 8 GPUs", {"layout": {"tensor_parallel": 2, "pipeline_parallel": 3}}, "layout", "8 GPUs"),
    ("context parallelism is not free", {"layout": {"data_parallel": 8, "context_parallel": 8}}, "layout.data_parallel", "1: "),
    ("more TP than GPUs", {"layout": {"tensor_parallel": 16}}, "layout", "8 GPUs"),
    ("7 does not divide the heads", {"cluster": {"gpus_per_node": 7}, "layout": {"tensor_parallel": 7}}, "layout.tensor_parallel", "32 heads"),
    ("no heads to split", {"model": "mamba-130m", "layout": {"tensor_parallel": 2}}, "layout.tensor_parallel", "no attention heads"),
    ("no experts to split", {"layout": {"expert_parallel": 2}}, "layout.expert_parallel", "the model has no experts"),
    ("3 does not divide 8 experts", {"model": "mixtral-8x7b", "cluster": {"gpus_per_node": 6}, "layout": {"expert_parallel": 3}}, "layout.expert_parallel", "8 experts"),
    ("EP larger than DP", {"model": "mixtral-8x7b", "cluster": {"gpus_per_node": 4}, "layout": {"expert_parallel": 8}}, "layout.expert_parallel", "divisor"),
    ("an odd sequence", {"training": {"sequence_length": 4097}, "layout": {"context_parallel": 2}}, "layout.context_parallel", "4097"),
    ("more stages than layers", {"model": "gpt2", "cluster": {"nodes": 2}, "layout": {"pipeline_parallel": 16}}, "layout.pipeline_parallel", "12 layers"),
    ("more chunks than layers", {"model": "gpt2", "layout": {"pipeline_parallel": 4, "virtual_stages": 4, "schedule": "interleaved"}}, "layout.virtual_stages", "12 layers"),
    ("layers that do not add up", {"layout": {"pipeline_parallel": 2, "layers_per_stage": [16, 15]}}, "layout.layers_per_stage", "32 layers"),
    ("one stage of too few layers", {"layout": {"layers_per_stage": [5]}}, "layout.layers_per_stage", "32 layers"),
    ("fewer micro-batches than stages", {"cluster": {"gpus_per_node": 6}, "layout": {"pipeline_parallel": 6}, "training": {"global_batch": 3}}, "training.global_batch", "at least 6"),
    ("interleaving in odd groups", {"layout": {"pipeline_parallel": 8, "virtual_stages": 2, "schedule": "interleaved"}, "training": {"global_batch": 12}}, "training.global_batch", "a multiple of 8"),
    ("bf16 on a T4", {"cluster": {"gpu": "t4"}, "training": {"precision": "bf16"}}, "training.precision", "without bf16"),
    ("bf16 on a V100", {"cluster": {"gpu": "v100-sxm-32gb"}, "training": {"precision": {"compute": "bf16"}}}, "training.precision", "compute capability 8.0"),
    ("bf16 on a P100", {"cluster": {"gpu": "p100-sxm-16gb"}, "training": {"precision": "bf16"}}, "training.precision", "fp16 with loss scaling"),
    ("offload under DDP", {"layout": {"engine": "ddp", "offload": {"optimizer": "cpu"}}}, "layout.offload.optimizer", "none with engine ddp"),
    ("ZeRO under DDP", {"layout": {"engine": "ddp", "zero_stage": 3}}, "layout.zero_stage", "0 with engine ddp"),
    ("a shard that does not divide", {"layout": {"shard": 3}}, "layout.shard", "a divisor"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "field", "part"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_gets_one_clear_sentence(value: dict[str, Any], field: str, part: str) -> None:
    """The error names the field, quotes the value, says what is allowed, on one line."""
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict(value)
    error, sentence = caught.value, str(caught.value)
    assert error.field == field
    assert error.allowed
    assert part in sentence
    assert sentence.startswith(f"{field} is ")
    assert "; allowed: " in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 450


def test_there_are_enough_bad_inputs() -> None:
    """Sixty ways to get it wrong, each its own."""
    assert len({name for name, *_ in BAD}) == len(BAD) >= 60


@pytest.mark.parametrize("value", [None, 3, "llama-3-8b", [], [("model", "gpt2")], object()])
def test_a_scenario_is_a_dict(value: Any) -> None:
    """Anything else is refused as a whole."""
    with pytest.raises(ScenarioError, match="a dict of model, cluster, training, layout"):
        Scenario.from_dict(value)


def test_sixteen_bits_are_fp16_on_cards_without_bf16() -> None:
    """mixed-16 runs on a V100 and says that it means fp16 with loss scaling there."""
    from shardwise.core.memory import estimate

    scenario = Scenario.from_dict({"model": "gpt2", "cluster": {"gpu": "v100-sxm-32gb"}})
    said = " ".join(estimate(scenario).assumptions)
    assert "fp16 with loss scaling" in said
    assert "no FlashAttention" in said


GOOD = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["gpt2", "llama-3-8b", "mixtral-8x7b", {"parameters": 3e9}]),
        "cluster": st.fixed_dictionaries(
            {},
            optional={
                "gpu": st.sampled_from(sorted(catalogue.gpus())),
                "gpus_per_node": st.sampled_from([1, 2, 4, 6, 8, 16]),
                "nodes": st.integers(1, 9),
                "host_memory_gib": st.integers(1, 4096),
            },
        ),
        "training": st.fixed_dictionaries(
            {},
            optional={
                "sequence_length": st.sampled_from([1, 512, 4096, 131_072, 4097]),
                "micro_batch": st.integers(1, 64),
                "global_batch": st.none() | st.integers(1, 4096),
                "precision": st.sampled_from(sorted(POLICIES))
                | st.fixed_dictionaries(
                    {}, optional={"gradients": st.sampled_from(sorted(DTYPE_BYTES))}
                ),
                "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
                "optimizer_implementation": st.sampled_from(IMPLEMENTATIONS),
                "activation_checkpointing": st.sampled_from(
                    ["none", "selective", "per-op", "full", {"every": 3}]
                ),
                "attention": st.sampled_from(ATTENTIONS),
                "loss": st.sampled_from(LOSSES),
                "model_code": st.sampled_from(MODEL_CODES),
            },
        ),
        "layout": st.fixed_dictionaries(
            {},
            optional={
                "engine": st.sampled_from(ENGINES),
                "tensor_parallel": st.sampled_from([1, 2, 4]),
                "pipeline_parallel": st.sampled_from([1, 2, 3, 4]),
                "context_parallel": st.sampled_from([1, 2]),
                "expert_parallel": st.sampled_from([1, 2]),
                "schedule": st.sampled_from(SCHEDULES),
                "virtual_stages": st.sampled_from([1, 2]),
            },
        ),
    },
)


@settings(max_examples=400)
@given(GOOD)
def test_plain_values_read_back_to_an_equal_scenario(value: dict[str, Any]) -> None:
    """from_dict(to_dict()) is the same scenario, also through JSON; its hash is the same too."""
    try:
        scenario = Scenario.from_dict(value)
    except ScenarioError:
        return
    plain = scenario.to_dict()
    again = Scenario.from_dict(json.loads(json.dumps(plain)))
    assert again == scenario
    assert hash(again) == hash(scenario)
    assert again.to_dict() == plain
    assert scenario.data_parallel * scenario.layout.model_parallel == scenario.cluster.world_size
    assert scenario.micro_batches >= 1


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.binary(max_size=4)
    | st.sampled_from(["llama-3-8b", "cpu", "bf16", "fsdp2", 0, -1, 10**40, "1e999", "٣"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
KEYS = {
    "cluster": ["gpu", "gpus_per_node", "nodes", "intra_node", "inter_node", "host_memory_gib"],
    "training": list(Scenario.from_dict({}).training.to_dict()),
    "layout": list(Scenario.from_dict({}).layout.to_dict()),
}


def junk_section(keys: list[str]) -> st.SearchStrategy[Any]:
    """A section with known keys and junk in them, or junk altogether."""
    return st.dictionaries(st.sampled_from(keys) | st.text(max_size=4), JUNK, max_size=4) | JUNK


CONFIG_KEYS = ["hidden_size", "num_hidden_layers", "model_type", "architectures", "parameters"]
FUZZED = st.fixed_dictionaries(
    {},
    optional={
        "model": JUNK | junk_section(CONFIG_KEYS),
        **{name: junk_section(keys) for name, keys in KEYS.items()},
        "more": JUNK,
    },
)


@settings(max_examples=1500, deadline=None)
@given(FUZZED | JUNK)
def test_junk_raises_nothing_but_scenario_errors(value: Any) -> None:
    """Whatever stands in the dict, it is a scenario or one ScenarioError with its sentence."""
    try:
        Scenario.from_dict(value)
    except ScenarioError as error:
        sentence = str(error)
        assert error.field
        assert error.allowed
        assert "\n" not in sentence


@pytest.mark.parametrize("value", [{"model": "llama-3-8b"}, "llama-3-8b", None])
def test_questions_are_asked_of_scenarios(value: object) -> None:
    """A dict or a name gets a sentence that says how to make one."""
    for ask in (estimate, decide, sweep):
        with pytest.raises(ScenarioError, match=r"Scenario\.from_dict"):
            ask(value)  # type: ignore[arg-type]


def test_reports_say_the_main_thing_in_a_line() -> None:
    """Not the whole scenario."""
    laid = Scenario.from_dict({})
    assert "needed of" in repr(estimate(laid))
    assert repr(decide(laid)).startswith("Decision(")
    assert repr(sweep(laid, micro_batch=[1, 2])) == "Sweep(2 sizes, 1 fit)"
    assert max(len(repr(made(laid))) for made in (estimate, decide, sweep)) < 400
