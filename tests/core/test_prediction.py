"""Multi-token prediction: whose code has it, its weights, activations and losses."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.memory.activations import Kernel, Tokens, block_saved
from shardwise.core.memory.megatron import head_loss
from shardwise.core.memory.stages import stages_of
from shardwise.core.memory.sweep import sweep
from shardwise.core.model import Model
from shardwise.core.permalink import from_query, to_query
from shardwise.core.prediction import with_prediction
from shardwise.core.scenario import Scenario

WIDTH, VOCABULARY, LENGTH = 1024, 32000, 2048
SMALL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": WIDTH,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}


def scenario(depth: int, pipeline: int = 1, **training: Any) -> Scenario:
    """A small decoder of Megatron-LM on eight GPUs."""
    given = {"sequence_length": LENGTH, "model_code": "megatron", "mtp_layers": depth}
    return Scenario.from_dict(
        {
            "model": SMALL,
            "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": 8},
            "training": {**given, **training},
            "layout": {"engine": "megatron", "pipeline_parallel": pipeline},
        }
    )


def test_a_depth_has_a_block_three_norms_and_a_projection_of_two_streams() -> None:
    """As MultiTokenPredictionLayer makes it; embedding and head are those of the model."""
    plain = Model.from_config(SMALL)
    one = with_prediction(plain, 1)
    more = one.parameters - plain.parameters
    assert more == plain.blocks[-1].parameters + 3 * WIDTH + 2 * WIDTH * WIDTH
    assert (one.layers, len(with_prediction(plain, 3).prediction)) == (4, 3)
    assert with_prediction(with_prediction(one, 3), 0) == plain


def test_the_last_stage_has_it_and_a_second_embedding() -> None:
    """Megatron-LM puts all depths on the last stage, which embeds the next tokens itself."""
    laid = scenario(1, pipeline=2)
    first, last = stages_of(laid.model, laid.layout)
    assert (first.layers, last.layers) == (2, 3)
    table = VOCABULARY * WIDTH
    ends = [t.elements for t in last.root_tensors if t.part in ("embedding", "head")]
    assert ends == [table, table]


def test_each_depth_keeps_a_softmax_and_six_streams() -> None:
    """4 bytes a logit until its backward; 12h bytes a token around the block (bf16, no dropout)."""
    none, two = scenario(0), scenario(2)
    (before,), (after,) = (stages_of(each.model, each.layout) for each in (none, two))
    deeper = head_loss(two, after).forward - head_loss(none, before).forward
    assert deeper == 2 * 4 * LENGTH * VOCABULARY
    tokens, kernel = Tokens(1, LENGTH, LENGTH), Kernel(2, 1, False, "flash", "megatron")
    plain, block = none.model.blocks[-1].block, two.model.prediction[-1].block
    assert plain is not None and block is not None
    more = block_saved(block, tokens, kernel).total - block_saved(plain, tokens, kernel).total
    assert more == 12 * LENGTH * WIDTH


def test_it_needs_more_and_reads_back() -> None:
    """Through dict, link and array alike; the depth can be changed back."""
    none, one = scenario(0), scenario(1)
    assert estimate(one).peak_bytes > estimate(none).peak_bytes
    assert Scenario.from_dict(one.to_dict()) == one
    assert from_query(to_query(one)).scenario == one
    assert one.with_training(none.training) == none
    many = sweep(one, sequence_length=[LENGTH, 2 * LENGTH])
    assert many.peak_bytes[0] == estimate(one).peak_bytes


@pytest.mark.parametrize(
    ("depth", "change"),
    [(1, {"model_code": "transformers"}), (-1, {}), (1.5, {}), (65, {}), (True, {})],
)
def test_only_megatrons_code_has_it(depth: Any, change: dict[str, Any]) -> None:
    """transformers ignores the weights; a depth is a whole number."""
    with pytest.raises(ScenarioError) as caught:
        scenario(depth, **change)
    assert caught.value.field == "training.mtp_layers"


def test_deepseeks_config_says_that_transformers_leaves_them_out() -> None:
    """`num_nextn_predict_layers` is in the file, its weights are not in transformers' class."""
    lines = Scenario.from_dict({"model": "deepseek-v3", "cluster": {"nodes": 64}}).model.assumptions
    assert any("num_nextn_predict_layers is 1" in line for line in lines)
