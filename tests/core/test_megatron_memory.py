"""Megatron-LM's engine and modules: what each mechanism adds, in numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.core.errors import ScenarioError
from shardwise.core.layout import Layout
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.activations import block_saved
from shardwise.core.memory.frame import frame_of
from shardwise.core.memory.kernel import kernel_of, tokens_of
from shardwise.core.memory.megatron import (
    head_loss,
    placeholder_bytes,
    resident_bytes,
    workspace_bytes,
)
from shardwise.core.memory.outside import outside_saved
from shardwise.core.memory.pipelines import (
    chunks_in_flight,
    handed_on_bytes,
    held_elsewhere,
    in_flight,
    interleaved_in_flight,
    kept_bytes,
    receive_buffer_bytes,
    retained_input_bytes,
)
from shardwise.core.memory.pools import stranded_bytes
from shardwise.core.memory.stages import stages_of
from shardwise.core.memory.sweep import sweep
from shardwise.core.permalink import from_query, to_query
from shardwise.core.scenario import Scenario

MIB = 2**20
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
TOKENS, HIDDEN, WIDE, VOCABULARY = 4096, 4096, 14336, 128256


def scenario(
    layout: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    model: object = LLAMA,
    gpu: str = "h100-sxm-80gb",
) -> Scenario:
    """A four-layer LLaMA of Megatron-LM on eight GPUs with accumulation."""
    return Scenario.from_dict(
        {
            "model": model,
            "cluster": {"gpu": gpu, "gpus_per_node": 8},
            "training": {
                "model_code": "megatron",
                "precision": "mixed-fp32-grads",
                "sequence_length": TOKENS,
                "global_batch": 64,
                **(training or {}),
            },
            "layout": {"engine": "megatron", **(layout or {})},
        }
    )


def report(*arguments: Any, **named: Any) -> MemoryReport:
    """The estimate of such a scenario."""
    return estimate(scenario(*arguments, **named))


def test_workspaces_follow_the_card() -> None:
    """32 MiB thrice on Hopper; 8.125 MiB twice and 4 MiB on Ampere; experts have four more."""
    hopper = scenario().cluster.gpu
    ampere = scenario(gpu="a100-sxm-80gb").cluster.gpu
    assert workspace_bytes(hopper, False) == 96 * MIB
    assert workspace_bytes(ampere, False) == 20.25 * MIB
    assert workspace_bytes(hopper, True) - workspace_bytes(hopper, False) == 128 * MIB
    assert workspace_bytes(ampere, True) - workspace_bytes(ampere, False) == 16 * MIB


def test_one_placeholder_a_shape_however_many_layers() -> None:
    """Four equal blocks have the placeholders of one: 2 bytes for each of its matrices' weights."""
    laid = scenario()
    (stage,) = stages_of(laid.model, laid.layout)
    attention = HIDDEN * (HIDDEN + 2 * 1024) + HIDDEN * HIDDEN
    assert placeholder_bytes(stage, 2) == 2 * (attention + 3 * HIDDEN * WIDE)
    unfused = scenario({"gradient_accumulation_fusion": False})
    assert resident_bytes(laid, stage) - resident_bytes(unfused, stage) == placeholder_bytes(
        stage, 2
    )


def test_experts_share_one_placeholder() -> None:
    """A grouped layer's experts have one shape each for both matrices."""
    laid = scenario(model="mixtral-8x7b")
    (stage,) = stages_of(laid.model, laid.layout)
    attention = HIDDEN * (HIDDEN + 2 * 1024) + HIDDEN * HIDDEN
    assert placeholder_bytes(stage, 2) == 2 * (attention + 3 * HIDDEN * WIDE)


def test_only_megatrons_own_modules_have_them() -> None:
    """Another engine or other modules keep no such buffers."""
    for laid in (
        scenario({"engine": "ddp"}),
        scenario(training={"model_code": "transformers"}),
    ):
        (stage,) = stages_of(laid.model, laid.layout)
        assert resident_bytes(laid, stage) == 0
        assert handed_on_bytes(laid, 1) == 0


def test_sequence_parallelism_gathers_the_heads_input_into_a_buffer_that_stays() -> None:
    """2 s b h bytes on the stage with the head, none without sequence parallelism."""
    pipeline = {"tensor_parallel": 2, "pipeline_parallel": 2}
    split = scenario({**pipeline, "sequence_parallel": True})
    whole = scenario(pipeline)
    for index, expected in ((0, 0), (1, 2 * TOKENS * HIDDEN)):
        stage = stages_of(split.model, split.layout)[index]
        assert resident_bytes(split, stage) - resident_bytes(whole, stage) == expected


def test_megatrons_own_attention_keeps_a_buffer_for_its_scores() -> None:
    """2 a s s b / t bytes, in the same buffer as the head's gathered input."""
    layout = {"tensor_parallel": 2, "sequence_parallel": True}
    sizes = []
    for attention in ("math", "eager"):
        laid = scenario(layout, {"attention": attention})
        sizes.append(resident_bytes(laid, stages_of(laid.model, laid.layout)[0]))
    assert sizes[1] - sizes[0] == 2 * 32 / 2 * TOKENS**2 - 2 * TOKENS * HIDDEN


def test_later_stages_keep_the_gradient_they_handed_on() -> None:
    """2 s b h bytes from the second stage on, over the tensor degree with sequence parallelism."""
    laid = scenario({"pipeline_parallel": 2})
    assert [handed_on_bytes(laid, index) for index in (0, 1)] == [0, 2 * TOKENS * HIDDEN]
    split = scenario({"pipeline_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True})
    assert handed_on_bytes(split, 1) == TOKENS * HIDDEN


def test_every_model_chunk_keeps_its_last_input_and_its_gradient() -> None:
    """Twice 2 s b h bytes for each chunk but the very first, which reads token ids."""
    pipeline = {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "interleaved"}
    laid, hidden = scenario(pipeline), 2 * TOKENS * HIDDEN
    assert [retained_input_bytes(laid, index) for index in (0, 1)] == [2 * hidden, 4 * hidden]
    between = estimate(laid).stages[1].phases["between steps"]
    assert between["activations"] == 4 * hidden
    assert retained_input_bytes(scenario(), 0) == 0


def test_deepspeeds_pipeline_keeps_outputs_and_inputs() -> None:
    """2 s b h bytes a micro-batch in flight for what was sent, and for what forward cloned."""
    laid = scenario({"engine": "deepspeed", "zero_stage": 1, "pipeline_parallel": 4})
    hidden = 2 * TOKENS * HIDDEN
    assert [kept_bytes(laid, index) for index in range(4)] == [
        hidden,
        2 * hidden,
        2 * hidden,
        hidden,
    ]
    ours = scenario({"pipeline_parallel": 2})
    assert [kept_bytes(ours, index) for index in (0, 1)] == [0, 0]


def test_deepspeeds_pipeline_receives_into_one_buffer_of_each_kind() -> None:
    """An input on all stages but the first and a gradient on all but the last, once a run."""
    laid = scenario({"engine": "deepspeed", "zero_stage": 1, "pipeline_parallel": 4})
    hidden = 2 * TOKENS * HIDDEN
    found = [receive_buffer_bytes(laid, index) for index in range(4)]
    assert found == [(hidden, 0), (2 * hidden, 0), (2 * hidden, 0), (hidden, 0)]
    assert receive_buffer_bytes(scenario({"pipeline_parallel": 2}), 0) == (0, 0)


def test_deepspeeds_pipeline_has_groups_of_the_world_and_of_a_replica() -> None:
    """Beside data, tensor and pipeline: PipelineParallelGrid's model group, and the world."""
    degrees = {"zero_stage": 1, "pipeline_parallel": 2, "tensor_parallel": 2}
    assert scenario({"engine": "deepspeed", **degrees}).layout.process_groups == 5
    assert scenario({"engine": "megatron", **degrees}).layout.process_groups == 3


def test_blooms_embedding_norm_keeps_its_input_in_megatrons_code() -> None:
    """2 s b h bytes more than a model without one, and s b h for the dropout's mask."""
    width, tokens = 1024, 4096
    sizes = {"n_layer": 2, "hidden_size": width, "n_head": 16, "vocab_size": 1024}
    bloom = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], **sizes}
    for dropout, extra in ((0.0, 2), (0.1, 3)):
        found = report({}, {"micro_batch": 1}, model=bloom | {"hidden_dropout": dropout}).scenario
        stage = stages_of(found.model, found.layout)[0]
        early = outside_saved(
            stage, tokens_of(found, stage.blocks[0][0]), kernel_of(found), 1024
        ).early
        assert early == extra * tokens * width


def test_deepspeeds_flat_gradients_add_to_what_is_reserved() -> None:
    """The larger of the step's copies and BF16Optimizer's bucket, (4 + 2) x 5e8 bytes."""
    layout = {"engine": "deepspeed", "zero_stage": 1}
    fused = {"optimizer_implementation": "fused"}
    for precision, model in (("mixed-16", "llama-3-8b"), ("mixed-20", "llama-3-8b")):
        found = report(layout, {"precision": precision, **fused}, model=model)
        stage = found.worst
        assert stage.binding_phase in ("forward", "loss", "backward")
        step = 6 * found.scenario.model.parameters / 8 if precision == "mixed-16" else 0.0
        bucket = 6 * 5e8 if precision == "mixed-20" else 0.0
        frame = frame_of(found.scenario, stage.index)
        idle = stranded_bytes(found.scenario, frame, stage.phases, stage.binding_phase)
        assert idle == pytest.approx(max(step, bucket))


def test_the_loss_is_a_softmax_in_place() -> None:
    """16-bit logits and an fp32 softmax: 6 bytes an entry, where transformers needs 10 and 12."""
    laid = scenario()
    (stage,) = stages_of(laid.model, laid.layout)
    loss = head_loss(laid, stage)
    assert loss.forward == loss.backward == 6 * TOKENS * VOCABULARY
    assert loss.saved == 4 * TOKENS * VOCABULARY


def test_the_fused_loss_leaves_the_heads_backward_as_the_peak() -> None:
    """Gradients of logits (in their place), weight and input, all in 16 bits."""
    laid = scenario(training={"loss": "fused"})
    (stage,) = stages_of(laid.model, laid.layout)
    loss = head_loss(laid, stage)
    assert loss.forward == 2 * TOKENS * VOCABULARY
    weight, inputs = VOCABULARY * HIDDEN, TOKENS * HIDDEN
    assert loss.backward == 2 * (TOKENS * VOCABULARY + weight + inputs)


def test_all_to_all_keeps_attentions_output_twice() -> None:
    """Before the all-to-all back and after it: 2 s b h / c bytes a layer more than in a ring."""
    ring = scenario({"context_parallel": 4})
    heads = scenario({"context_parallel": 4, "context_exchange": "a2a"})
    sizes = []
    for laid in (ring, heads):
        shape = laid.model.block_groups[0][0]
        sizes.append(block_saved(shape, tokens_of(laid, shape), kernel_of(laid)).total)
    assert sizes[1] - sizes[0] == 2 * TOKENS / 4 * HIDDEN


@pytest.mark.parametrize(("gpu", "batch", "copies"), [
    ("a100-sxm-80gb", 1, 0), ("a100-sxm-80gb", 2, 1), ("a100-sxm-80gb", 4, 1),
    ("h100-sxm-80gb", 4, 0),
])  # fmt: skip
def test_the_flash_attn_package_lays_its_output_out_anew(gpu: str, batch: int, copies: int) -> None:
    """For more than one sample, on cards where cuDNN's kernel is not preferred."""
    laid = scenario(training={"micro_batch": batch}, gpu=gpu)
    shape = laid.model.block_groups[0][0]
    sizes = dict(block_saved(shape, tokens_of(laid, shape), kernel_of(laid)).operators)
    assert sizes["attention output"] == (1 + copies) * 2 * batch * TOKENS * HIDDEN


@given(st.integers(2, 16), st.integers(2, 8), st.integers(0, 15))
def test_interleaved_stages_hold_what_the_schedule_runs_ahead(
    stages: int, chunks: int, index: int
) -> None:
    """As Megatron-LM counts warm-up: 2(p - i - 1) + (v - 1)p chunks, and the one to turn back."""
    index %= stages
    layout = Layout(pipeline_parallel=stages, virtual_stages=chunks)
    held = interleaved_in_flight(10**6, layout, index)
    assert held * chunks == pytest.approx((stages - index - 1) * 2 + (chunks - 1) * stages + 1)
    assert interleaved_in_flight(1, layout, index) <= 1


def test_the_first_interleaved_stage_agrees_with_the_paper() -> None:
    """Narayanan et al. 2021, section 2.2: p (1 + (p - 1) / (p v)) on the first stage."""
    layout = {"pipeline_parallel": 4, "virtual_stages": 2, "schedule": "interleaved"}
    laid = scenario(layout, model="llama-3-8b", training={"global_batch": 32})
    assert in_flight(laid, 0) == 4 * (1 + 3 / 8)


CHUNKS = {
    "pipeline_parallel": 4,
    "virtual_stages": 2,
    "schedule": "interleaved",
    "layers_per_stage": [0, 1, 1, 1, 1, 1, 1, 0],
}
SIX = {**LLAMA, "num_hidden_layers": 6}


def test_a_stage_has_every_pth_of_the_listed_virtual_stages() -> None:
    """As `--account-for-embedding-in-pipeline-split` makes it: ends without layers."""
    laid = scenario(CHUNKS, model=SIX, training={"global_batch": 32})
    assert [stage.layers for stage in stages_of(laid.model, laid.layout)] == [1, 2, 2, 1]
    assert from_query(to_query(laid)).scenario == laid
    # The first stage's layer is in its second chunk, the last one's in its first.
    assert [in_flight(laid, index) for index in (0, 3)] == [4, 4]
    assert in_flight(laid, 1) == (5 + 4) / 2


def test_listed_virtual_stages_of_one_size_are_the_even_ones() -> None:
    """One number a virtual stage says what one a stage does where all are alike."""
    even = {**CHUNKS, "layers_per_stage": None}
    listed = {**CHUNKS, "layers_per_stage": [1] * 8}
    eight, batch = {**LLAMA, "num_hidden_layers": 8}, {"global_batch": 32}
    one, other = (scenario(each, model=eight, training=batch) for each in (even, listed))
    assert estimate(one).stages == estimate(other).stages


def test_what_follows_the_last_block_waits_once_where_chunks_take_turns() -> None:
    """The last chunk of the last stage turns back at once: one head's input, not p of them."""
    laid = scenario(CHUNKS, model=SIX, training={"global_batch": 32})
    assert chunks_in_flight(laid.layout, 3) == (4, 1)
    assert held_elsewhere(laid, 3, in_flight(laid, 3), 10.0, (0.0, 3.0)) == (10 - 3) * 3
    assert held_elsewhere(laid, 0, in_flight(laid, 0), 10.0, (2.0, 0.0)) == (10 - 2) * 3 + 2 * 6


def test_fp16_gradients_are_copied_to_fp32_until_the_next_step() -> None:
    """4 bytes for each parameter that the rank updates, at the step and between steps."""
    laid = report(training={"precision": "mixed-16"})
    fp32 = report(training={"precision": "mixed-fp32-grads"})
    updated = laid.scenario.model.parameters / 8
    for phase in ("between steps", "optimizer step"):
        assert laid.phases[phase]["buffers"] - fp32.phases[phase]["buffers"] == 4 * updated
    assert laid.phases["forward"]["buffers"] == fp32.phases["forward"]["buffers"]


def test_expert_tensor_parallelism_cuts_experts_its_own_way() -> None:
    """Mixtral's experts over TP 2: half of each by default, whole with ETP 1 and twice the EP."""
    default = scenario({"tensor_parallel": 2, "expert_parallel": 4}, model="mixtral-8x7b")
    whole = {"tensor_parallel": 2, "expert_parallel": 8, "expert_tensor_parallel": 1}
    own = scenario(whole, model="mixtral-8x7b")
    sizes = [
        sum(t.elements for t in stages_of(laid.model, laid.layout)[0].tensors if t.expert)
        for laid in (default, own)
    ]
    assert sizes[0] == sizes[1] == 32 * 3 * HIDDEN * WIDE


def test_expert_degrees_that_do_not_fold_are_refused() -> None:
    """Eight experts' ranks times three do not divide eight GPUs."""
    layout = {"tensor_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 3}
    with pytest.raises(ScenarioError, match="data x context x tensor = 8"):
        scenario(layout, model="mixtral-8x7b")


@settings(deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]), st.booleans(), st.sampled_from(["full", "fused"]),
    st.sampled_from(["flash", "eager"]), st.sampled_from(["none", "selective", "full"]),
)  # fmt: skip
def test_more_of_anything_never_needs_less(
    tensor: int, parallel: bool, loss: str, attention: str, checkpointing: str
) -> None:
    """Twice the samples or twice the sequence raise the peak, whatever else is set."""
    layout = {"tensor_parallel": tensor, "sequence_parallel": parallel and tensor > 1}
    base = scenario(
        layout,
        {"loss": loss, "attention": attention, "activation_checkpointing": checkpointing},
    )
    peak = estimate(base).peak_bytes
    for changed in (
        replace(base.training, micro_batch=2),
        replace(base.training, sequence_length=2 * TOKENS),
    ):
        assert estimate(base.with_training(changed)).peak_bytes >= peak


def test_the_resident_bytes_are_opened_by_the_explanation() -> None:
    """The buffers' formula names placeholders and workspaces with their bytes."""
    opened = report().explain("buffers")
    assert "workspaces and gradient placeholders" in opened.formula
    assert "transformer_engine" in opened.source


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm-80gb"])
@pytest.mark.parametrize("loss", ["full", "fused"])
@pytest.mark.parametrize("attention", ["flash", "math", "eager"])
@pytest.mark.parametrize(
    "layout",
    [
        {"tensor_parallel": 2, "sequence_parallel": True},
        {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "interleaved"},
        {"context_parallel": 4, "context_exchange": "a2a"},
        {"engine": "deepspeed", "zero_stage": 1, "pipeline_parallel": 2},
    ],
)
def test_many_sizes_at_once_are_the_same_numbers(
    layout: dict[str, Any], attention: str, loss: str, gpu: str
) -> None:
    """Arrays of samples and lengths go through every branch to what single estimates give."""
    laid = scenario(layout, {"attention": attention, "loss": loss}, gpu=gpu)
    batches, lengths = [1, 2, 4], [1024, 4096, 8192]
    found = sweep(laid, micro_batch=batches, sequence_length=lengths)
    for index, (batch, length) in enumerate(zip(batches, lengths, strict=True)):
        training = replace(laid.training, micro_batch=batch, sequence_length=length)
        alone = estimate(laid.with_training(training))
        assert found.peak_bytes[index] == pytest.approx(alone.peak_bytes, rel=1e-12)
        assert found.steady_bytes[index] == pytest.approx(alone.steady_bytes, rel=1e-12)


def test_megatrons_settings_survive_a_dict_and_a_link() -> None:
    """Expert tensor parallelism, fusion and the context exchange read back as they were."""
    layout = {
        "tensor_parallel": 2,
        "context_parallel": 2,
        "expert_parallel": 4,
        "expert_tensor_parallel": 1,
        "gradient_accumulation_fusion": False,
        "context_exchange": "a2a",
    }
    laid = scenario(layout, model="mixtral-8x7b")
    assert Scenario.from_dict(laid.to_dict()) == laid
    assert from_query(to_query(laid)).scenario == laid
    with pytest.raises(ScenarioError, match="context_exchange"):
        scenario({"context_exchange": "ring"})
