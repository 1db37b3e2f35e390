"""torchtitan's, nanotron's and compiled code, by numbers worked out from their sources."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.activations import Kernel, Tokens, block_saved, kept_bytes
from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.loss import loss_bytes
from shardwise.core.memory.operators.per_op import kept_results
from shardwise.core.memory.pools import stranded_bytes
from shardwise.core.scenario import Scenario
from shardwise.core.structure import BlockShape

LLAMA = BlockShape(4096, 32, 8, 128, 128, 14336, True, "silu", rotary=True)
MHA = BlockShape(4096, 32, 32, 128, 128, 11008, True, "silu", rotary=True)
ONE = Tokens(1, 1, 1)


def report(
    model: str = "llama-3-8b", gpus: int = 8, layout: dict[str, Any] | None = None, **training: Any
) -> MemoryReport:
    """An estimate on `gpus` of one node or of nodes of eight."""
    return estimate(
        Scenario.from_dict(
            {
                "model": model,
                "cluster": {"gpus_per_node": min(gpus, 8), "nodes": max(1, gpus // 8)},
                "training": {"precision": "fsdp-mixed"} | training,
                "layout": layout or {},
            }
        )
    )


def kernel(code: str, tensor: int = 1, **options: Any) -> Kernel:
    """bf16, flash attention."""
    return Kernel(2, tensor, tensor > 1, "flash", code, **options)


def test_torchtitan_keeps_16_bit_norms_and_the_activated_gate() -> None:
    """4h + 8 of norms, 4h of linear inputs, q, k, v and the output, 4 a head, 8f a token."""
    by_hand = 4 * 4096 + 8 + 4 * 4096 + 2 * (4096 + 2 * 1024) + 2 * 4096 + 4 * 32 + 8 * 14336
    assert block_saved(LLAMA, ONE, kernel("torchtitan")).total == by_hand


def test_nanotron_keeps_queries_in_the_copy_of_all_three() -> None:
    """q, k and v made contiguous together, keys and values once more: 10h instead of 6h."""
    sizes = {
        code: dict(block_saved(MHA, ONE, kernel(code)).operators)["queries, keys, values"]
        for code in ("torchtitan", "nanotron")
    }
    assert sizes == {"torchtitan": 2 * 3 * 4096, "nanotron": 2 * 5 * 4096}


def test_per_op_keeps_every_first_of_two_products() -> None:
    """The input, q, v, gate and down's result, and what flash attention gives: 63,616 B a token."""
    torchtitan = kernel("torchtitan")
    saved, results = (f(LLAMA, ONE, torchtitan) for f in (block_saved, kept_results))
    by_hand = 2 * (4096 + 4096 + 1024 + 14336 + 4096) + 2 * 4096 + 4 * 32
    assert kept_bytes(saved, "per-op", results[0]) == by_hand == 63_616
    assert kept_bytes(saved, "full") < by_hand < saved.total


def test_a_joined_projection_is_one_product() -> None:
    """qkv, (o), up, (down) of a GPT block: the first and the third product of four."""
    joined = BlockShape(4096, 32, 32, 128, 128, 16384, activation="gelu", fused_qkv=True)
    kept = kept_results(joined, ONE, kernel("torchtitan"))[0]
    assert kept == 2 * (3 * 4096 + 16384) + 2 * 4096 + 4 * 32


def test_gathered_inputs_are_whole_on_every_rank() -> None:
    """torch's sequence parallelism saves attention's and the MLP's input whole; async does not."""
    again = block_saved(LLAMA, ONE, kernel("torchtitan", 8))
    kept = block_saved(LLAMA, ONE, kernel("torchtitan", 8, gathers_inputs=True))
    assert kept.total - again.total == pytest.approx(2 * 2 * 4096 * 7 / 8)


def test_regathering_is_a_choice_of_the_layout() -> None:
    """Megatron-LM and nanotron gather again by default, torchtitan where it is told to."""
    layout = {"tensor_parallel": 8, "sequence_parallel": True}
    long = {"model_code": "torchtitan", "sequence_length": 32768}
    chosen = [
        report(layout=layout | {"regather_inputs": again}, **long).peak_bytes
        for again in (None, False, True)
    ]
    assert chosen[0] == chosen[1] > chosen[2]
    scenario = Scenario.from_dict({"layout": layout | {"regather_inputs": True}})
    assert Scenario.from_dict(scenario.to_dict()) == scenario


@pytest.mark.parametrize(
    ("kind", "split", "forward", "backward"),
    [("full", False, 10, 12), ("full", True, 14, 16), ("compiled", False, 2, 4)],
)
def test_bytes_a_logit(kind: str, split: bool, forward: int, backward: int) -> None:
    """Eager, torch's loss_parallel, and compiled cross entropy of 16-bit logits."""
    found = loss_bytes(1000, 50_000, 2, kind, 4096, split=split)
    assert found.forward == pytest.approx(forward * 5e7, rel=1e-3)
    assert found.backward == pytest.approx(backward * 5e7, rel=1e-3)


def test_fsdp_in_a_pipeline_keeps_whole_gradients() -> None:
    """Until the last micro-batch: 2 B of gathered weights and 4 B of gradients a parameter."""
    layout = {"pipeline_parallel": 4, "reshard_after_forward": False}
    found = report(gpus=32, layout=layout, activation_checkpointing="full")
    stage = found.stages[1]
    elements = 8 * 218_112_000
    assert stage.phases["backward"]["gathered layers"] == 6 * elements
    assert stage.phases["backward"]["gradients"] == 0
    assert stage.phases["optimizer step"]["gradients"] == 4 * elements / 8


def test_torchs_pipeline_receives_each_micro_batch_into_its_own_buffer() -> None:
    """Inputs and gradients of outputs: two buffers a micro-batch in the middle, one at the ends."""
    layout = {"pipeline_parallel": 4, "reshard_after_forward": False}
    found = report(gpus=32, layout=layout, global_batch=64)  # eight micro-batches a replica
    one = 8 * 2 * 4096 * 4096
    middle, end = (found.stages[index].phases["between steps"]["buffers"] for index in (1, 0))
    assert (middle, end) == (2 * one, one)


def test_fsdp1_gives_gradients_to_frozen_weights_of_a_flat_parameter() -> None:
    """LoRA under FSDP1 holds gradients as large as its shards of the blocks; FSDP2 does not."""
    lora = {"trainable": {"lora": {"rank": 8}}, "precision": "bf16"}
    one, two = (
        report("llama-2-7b", 2, {"engine": engine}, **lora).worst.phases["optimizer step"]
        for engine in ("fsdp1", "fsdp2")
    )
    blocks = 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
    assert one["gradients"] - two["gradients"] == pytest.approx(2 * blocks / 2, rel=1e-6)


def test_reserved_pools_are_what_other_streams_needed() -> None:
    """At the loss: sharded gradients, the root's and a block's all-gather output, the logits."""
    found = report(loss="full", model_code="compiled", activation_checkpointing="full")
    assert found.binding_phase == "loss"
    root, block = 2 * 525_336_576 + 4096, 218_112_000
    gradients = 4 * 8_030_261_248 / 8
    by_hand = gradients + 2 * (root + block) + 2 * 4096 * 128_256
    assert found.cached_bytes == pytest.approx(by_hand, rel=1e-6)


def test_one_gpu_strands_only_the_logits() -> None:
    """Without FSDP there is one stream."""
    found = report(gpus=1, layout={"engine": "ddp"}, precision="bf16", sequence_length=16384)
    assert found.binding_phase == "loss"
    frame = frame_of(found.scenario, 0)
    idle = stranded_bytes(found.scenario, frame, found.phases, found.binding_phase)
    assert idle == 2 * 16384 * 128_256
    assert found.cached_bytes == 0  # the run does not fit, so nothing idle is left


def nanotron(zero_stage: int, gpus: int = 8, **layout: Any) -> MemoryReport:
    """Llama-2-7B with fp32 gradient accumulation."""
    return report(
        "llama-2-7b", gpus, {"engine": "nanotron", "zero_stage": zero_stage} | layout,
        precision="mixed-fp32-grads", optimizer_implementation="fused", model_code="nanotron",
        global_batch=4 * gpus,
    )  # fmt: skip


def test_nanotron_holds_18_bytes_a_parameter_or_6_and_12_shared() -> None:
    """16-bit weights, fp32 gradients, master weights and moments; ZeRO-1 parts the last 12."""
    parameters = 6_738_415_616
    states = {
        stage: sum(list(nanotron(stage).worst.phases["between steps"].values())[:4])
        for stage in (0, 1)
    }
    assert states[0] == 18 * parameters
    assert states[1] == pytest.approx((6 + 12 / 8) * parameters)


def test_nanotrons_16_bit_gradients_wait_for_the_end_of_backward() -> None:
    """Beside the fp32 buffer, two bytes a parameter as backward ends."""
    phase = nanotron(1).worst.phases["gradients complete"]
    assert phase["gradients"] == 4 * 6_738_415_616
    assert phase["buffers"] >= 2 * 6_738_415_616


def test_nanotron_wraps_in_ddp_only_without_zero() -> None:
    """Its buckets are two bytes a parameter, with more than one replica."""
    held = {
        key: nanotron(key[0], key[1]).worst.phases["between steps"]["buffers"]
        for key in ((0, 8), (1, 8), (0, 1))
    }
    assert held[0, 8] - held[1, 8] == 2 * 6_738_415_616
    assert held[0, 1] == held[1, 8]


def test_nanotrons_loss_has_fp32_logits_and_softmax() -> None:
    """4 + 4 bytes an entry at the end of forward, 4 + 2 as backward begins, V/t entries."""
    layout = {"tensor_parallel": 8, "sequence_parallel": True}
    phases = nanotron(0, 8, **layout).worst.phases
    cells = 4096 * 32000 / 8
    assert phases["forward"]["logits and loss"] == 8 * cells
    assert phases["loss"]["logits and loss"] == 6 * cells
