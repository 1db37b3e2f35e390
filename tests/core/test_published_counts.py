"""Parameter counts of published GPT models, from their configs."""

from __future__ import annotations

import csv
import io

import pytest

from shardwise.core.catalogue import data_root
from shardwise.core.model import Model

ROWS = list(
    csv.DictReader(io.StringIO((data_root() / "measured" / "gpt_parameter_counts.csv").read_text()))
)


def gpt(row: dict[str, str]) -> Model:
    """The GPT of one row, in GPT-2's spelling."""
    return Model.from_config(
        {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_layer": int(row["layers"]),
            "n_embd": int(row["hidden"]),
            "n_head": int(row["heads"]),
            "n_positions": int(row["sequence_length"]),
            "vocab_size": int(row["vocabulary"]),
        }
    )


def test_the_table_is_whole() -> None:
    """All ten models of the paper's table 1 are there."""
    assert [row["id"] for row in ROWS] == [f"SC-{i:03d}" for i in range(1, 11)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_counts_agree_with_the_papers_rounding(row: dict[str, str]) -> None:
    """Each model has the printed number of billions, within half of its last digit."""
    printed = row["parameters_billion"]
    digits = len(printed.partition(".")[2])
    assert round(gpt(row).parameters / 1e9, digits) == float(printed)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_counts_agree_with_the_papers_formula(row: dict[str, str]) -> None:
    """P = 12 l h^2 (1 + 13/(12h) + (V + s)/(12 l h)), equation 2 of Narayanan et al. 2021.

    The formula leaves out the final norm's 2h.
    """
    layers, hidden = int(row["layers"]), int(row["hidden"])
    rest = int(row["vocabulary"]) + int(row["sequence_length"])
    formula = 12 * layers * hidden**2 + 13 * layers * hidden + rest * hidden
    assert gpt(row).parameters == formula + 2 * hidden


def test_a_toy_counts_as_the_estimator_of_megatron_bridge_does() -> None:
    """13,088 parameters: 4 layers, width 16, MLP 64, vocabulary 32, no biases, tied.

    From Megatron-Bridge's unit test of its memory estimator (base case).
    """
    config = {
        "model_type": "starcoder2",
        "architectures": ["Starcoder2ForCausalLM"],
        "num_hidden_layers": 4,
        "hidden_size": 16,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 32,
        "use_bias": False,
        "tie_word_embeddings": True,
    }
    assert Model.from_config(config).parameters == 13_088
