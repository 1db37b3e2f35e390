"""nanotron's ZeRO-1: gradients and weights flattened for the collectives between ranks."""

from __future__ import annotations

import pytest

from shardwise.core.layout import Layout
from shardwise.core.memory import estimate
from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.nanotron import sync_bytes
from shardwise.core.memory.pools import stranded_bytes
from shardwise.core.scenario import Scenario

MODEL = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 2048,
    "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 8192,
    "vocab_size": 32768, "tie_word_embeddings": True,
}  # fmt: skip


def scenario(stage: int, gpus: int = 8, length: int = 4096) -> Scenario:
    """Eight blocks of a 1B on a node's GPUs."""
    return Scenario.from_dict(
        {
            "model": MODEL,
            "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": gpus},
            "training": {
                "sequence_length": length, "micro_batch": 1, "global_batch": 8 * gpus,
                "precision": "mixed-fp32-grads", "model_code": "nanotron",
                "optimizer_implementation": "fused",
            },
            "layout": {"engine": "nanotron", "zero_stage": stage},
        }
    )  # fmt: skip


def test_a_reduction_flattens_fp32_gradients_and_a_gather_16_bit_weights() -> None:
    """`reduce_scatter_coalesced` and `all_gather_coalesced`: a tensor a rank and one of a share."""
    layout = Layout(engine="nanotron", zero_stage=1)
    assert sync_bytes(layout, 4, 1000) == (5000, 2500)
    assert sync_bytes(layout, 1, 1000) == (0, 0)
    assert sync_bytes(Layout(engine="nanotron", zero_stage=0), 4, 1000) == (0, 0)


def test_the_reduction_is_part_of_the_moment_when_gradients_are_complete() -> None:
    """(4 + 4/8) bytes a parameter on eight ranks; without ZeRO the 16-bit gradients wait."""
    for stage, each in ((0, 2), (1, 4.5)):
        report = estimate(scenario(stage))
        elements = report.scenario.model.parameters
        buffers = [report.phases[p]["buffers"] for p in ("between steps", "gradients complete")]
        assert buffers[1] - buffers[0] == pytest.approx(each * elements)


def test_flattened_gradients_that_no_activation_left_room_for_stay_reserved() -> None:
    """Pieces of 4/8 bytes a parameter are larger than 2 x 4096 x 8192, not than 65,536 tokens."""
    for length, fits in ((4096, False), (65536, True)):
        report = estimate(scenario(1, length=length))
        frame = frame_of(report.scenario, 0)
        idle = stranded_bytes(report.scenario, frame, report.phases, report.binding_phase)
        assert (idle == 0.0) == fits
