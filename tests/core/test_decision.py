"""The decision: worked cases, cases from users, and what must hold for every scenario."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwise.core.attempts import Attempt, fits
from shardwise.core.decision import EXHAUSTED, Decision, decide
from shardwise.core.errors import ScenarioError
from shardwise.core.layout import Layout
from shardwise.core.memory import estimate
from shardwise.core.memory.rule_of_sixteen import rule_of_sixteen
from shardwise.core.scenario import Scenario
from shardwise.core.scenario_checks import divides_heads
from shardwise.core.strategies import (
    SPLITS,
    STRATEGIES,
    layout_for,
    lighter_ends,
    pipeline_degrees,
    split_degrees,
    tensor_degrees,
)
from shardwise.core.training import Training
from shardwise.core.units import format_gib

GIB = 2**30
LADDER = tuple(STRATEGIES)


def scenario(
    model: object,
    gpu: str = "a100-sxm-80gb",
    gpus: int = 8,
    nodes: int = 1,
    layout: dict[str, Any] | None = None,
    host_memory_gib: int | None = None,
    **training: Any,
) -> Scenario:
    """A scenario in one line."""
    cluster = {"gpu": gpu, "gpus_per_node": gpus, "nodes": nodes}
    if host_memory_gib:
        cluster["host_memory_gib"] = host_memory_gib
    return Scenario.from_dict(
        {"model": model, "cluster": cluster, "training": training, "layout": layout or {}}
    )


def attempts(decision: Decision) -> dict[str, Attempt]:
    """Everything that was tried, by strategy."""
    return {a.strategy: a for question in decision.questions for a in question.attempts}


def verdicts(decision: Decision) -> list[str]:
    """The five answers."""
    return [question.verdict for question in decision.questions]


def test_seven_billion_on_80_gb_is_an_optimizer_state_problem() -> None:
    """7B: 14 GB of weights would fit, 112 GB of states do not; ZeRO solves it."""
    asked = scenario({"parameters": 7e9})
    assert rule_of_sixteen(asked.model, asked.training.precision, asked.training.optimizer) == 112e9
    assert estimate(asked.with_layout(layout_for(asked, "ddp"))).parts["parameters"] == 14e9
    decision = decide(asked)
    assert (decision.strategy, decision.exhausted) == ("zero-1", "optimizer state")
    assert verdicts(decision) == ["no", "yes", "not asked", "not asked", "not asked"]
    assert "optimizer state" in decision.headline
    assert decision.questions[0].needed_bytes > 112e9 > decision.questions[0].available_bytes


def test_thirty_billion_under_ddp_is_refused_with_the_reason() -> None:
    """30B: 480 GB of states a replica; FSDP over eight cards is the answer."""
    asked = scenario({"parameters": 30e9})
    assert rule_of_sixteen(asked.model, asked.training.precision, asked.training.optimizer) == 480e9
    decision = decide(asked)
    first = decision.questions[0]
    assert first.verdict == "no"
    assert first.needed_bytes > 480e9
    assert first.why.startswith("DDP with full activation checkpointing needs ")
    assert "optimizer state" in first.why
    assert "too much" in first.why
    assert (decision.strategy, decision.exhausted) == ("zero-3", "parameters")


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_a_small_model_stays_with_ddp(gpus: int) -> None:
    """allenai/OLMo#762: a 1B model fits one card, so DDP; sharding was 4.6 times slower."""
    decision = decide(scenario("olmo-1b", gpus=gpus, micro_batch=2))
    assert (decision.strategy, decision.exhausted) == ("ddp", "throughput")
    assert decision.adjustments == ()
    assert "throughput ran out" in decision.headline
    assert any("More GPUs raise throughput, not room" in note for note in decision.notes)
    assert decision.next_step.startswith("Not needed: ")


FORTY_BILLION = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 48, "n_embd": 8192,
    "n_head": 64, "n_positions": 2048, "vocab_size": 51200,
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "tensor"), [(8, 64), (1, 8)])
def test_zero_over_a_data_parallel_degree_of_one_saves_nothing(nodes: int, tensor: int) -> None:
    """deepspeedai/DeepSpeed#237: TP over all cards and ZeRO-2; states are 16P/TP, and it says so.

    Positions and the biases of row-parallel layers are on every rank: 3 % more at TP 64.
    """
    layout = {"engine": "deepspeed", "zero_stage": 2, "tensor_parallel": tensor}
    asked = scenario(FORTY_BILLION, "v100-sxm-32gb", 8, nodes, layout, sequence_length=2048)
    report = estimate(asked)
    parts = report.phases["optimizer step"]
    states = sum(list(parts.values())[:4])
    assert states == pytest.approx(16 * asked.model.parameters / tensor, rel=0.04)
    notes = " ".join(decide(asked).notes)
    assert "ZeRO stage 2 has no effect: the data-parallel degree that it shards over is 1" in notes


def test_with_real_data_parallelism_the_sharded_part_is_divided_by_both() -> None:
    """The same 40B at TP 8 x DP 8: 2P/8 + 14P/64, and no warning."""
    layout = {"engine": "deepspeed", "zero_stage": 2, "tensor_parallel": 8}
    asked = scenario(FORTY_BILLION, "v100-sxm-32gb", 8, 8, layout, sequence_length=2048)
    states = sum(list(estimate(asked).phases["optimizer step"].values())[:4])
    assert states == pytest.approx(asked.model.parameters * (2 / 8 + 14 / 64), rel=0.01)
    assert not any("no effect" in note for note in decide(asked).notes)


def test_llama_3_8b_on_24_gb_cards_offloads_the_optimizer() -> None:
    """hiyouga/LlamaFactory#5977: ZeRO-3 does not fit eight RTX 3090, optimizer offload does."""
    layout = {"engine": "deepspeed", "zero_stage": 3}
    decision = decide(scenario("llama-3-8b", "rtx-3090", 8, 1, layout, sequence_length=1024))
    assert (decision.strategy, decision.exhausted) == ("offload", "optimizer state")
    assert decision.questions[2].verdict == "no"
    assert decision.scenario.layout.engine == "deepspeed"
    assert decision.scenario.layout.offload_optimizer == "cpu"


def test_seven_billion_on_16_gb_v100_is_no_fit_for_zero_3() -> None:
    """meta-llama/llama-cookbook#234: 12.55 GiB of states and foreach temporaries; offload."""
    decision = decide(scenario("llama-2-7b", "v100-sxm-16gb", activation_checkpointing="full"))
    tried = attempts(decision)["zero-3"]
    assert not tried.fits
    assert "buckets and temporaries" in tried.why or "optimizer state" in tried.why
    assert decision.strategy == "offload"


def test_a_long_context_takes_tensor_parallelism_and_mentions_the_logits() -> None:
    """pytorch/torchtitan#678: 70B at 131,072 tokens; TP 8 with full checkpointing, chunked loss."""
    decision = decide(scenario("llama-3.1-70b", "h100-sxm-80gb", 8, 8, sequence_length=131_072))
    assert decision.strategy == "tensor"
    assert decision.scenario.layout.tensor_parallel == 8
    assert any("full activation checkpointing" in change for change in decision.adjustments)
    assert any("chunked or fused loss" in note for note in decision.notes)
    why = decision.questions[3].why
    assert "ZeRO-3 + optimizer offload" in why
    assert "Tensor parallel + FSDP (TP 8)" in why


def test_a_chunked_loss_that_spares_offloading_is_offered() -> None:
    """8B on eight 24 GB cards at 4,096 tokens: only the logits keep ZeRO-3 from fitting."""
    decision = decide(scenario("llama-3-8b", "rtx-3090", 8, 1, sequence_length=4096))
    assert decision.strategy == "offload"
    assert "Or compute the loss in chunks (Loss: chunked): then ZeRO-3" in decision.headline
    chunked = decide(scenario("llama-3-8b", "rtx-3090", 8, 1, sequence_length=4096, loss="chunked"))
    assert chunked.strategy == "zero-3"
    assert "in chunks" not in chunked.headline


def test_a_million_tokens_need_context_parallelism() -> None:
    """Where a sample is too long for anything else, the context degree that fits is named."""
    asked = scenario("llama-3-8b", "h100-sxm-80gb", 8, 4, sequence_length=2**20)
    decision = decide(asked)
    assert (decision.strategy, decision.exhausted) == ("none", "activations")
    assert "1,048,576 tokens" in decision.headline
    assert "layout.context_parallel 8" in decision.next_step
    for degree, enough in ((8, True), (4, False)):
        tried = scenario(
            "llama-3-8b", "h100-sxm-80gb", 8, 4, {"context_parallel": degree},
            sequence_length=2**20, activation_checkpointing="full", loss="chunked",
        )  # fmt: skip
        report = estimate(tried)
        assert fits(report) is enough


def test_a_model_too_large_for_the_cluster_says_how_many_nodes_would_do() -> None:
    """70B on eight L4: nothing fits; the number of nodes it names does, half of it does not."""
    decision = decide(scenario("llama-3-70b", "l4", 8, 1, host_memory_gib=64))
    assert (decision.strategy, decision.exhausted) == ("none", "whole model")
    assert verdicts(decision) == ["no"] * 5
    nodes = int(decision.next_step.split("With ")[1].split()[0])
    for count, enough in ((nodes, True), (nodes // 2, False)):
        laid = scenario("llama-3-70b", "l4", 8, count, host_memory_gib=64)
        tried = attempts(decide(laid))
        heavier = [tried[key].fits for key in ("zero-3", "tensor") if key in tried]
        assert any(heavier) is enough


def test_one_gpu_can_only_offload() -> None:
    """With one card sharding saves nothing; the questions say so instead of offering it."""
    decision = decide(scenario("llama-3-8b", gpus=1, host_memory_gib=512))
    assert decision.strategy == "offload"
    assert set(attempts(decision)) == {"ddp", "offload"}
    assert "data-parallel degree of 1" in decision.questions[1].why


def test_offload_needs_the_hosts_memory() -> None:
    """Offload is refused where a node's RAM cannot hold the states, with both figures."""
    decision = decide(scenario("llama-3-8b", gpus=1, host_memory_gib=64))
    tried = attempts(decision)["offload"]
    assert not tried.fits
    assert "64.0 GiB" in tried.why
    assert decision.strategy == "none"


def test_a_smaller_micro_batch_comes_before_a_heavier_strategy() -> None:
    """GPT-2 with 512 samples a micro-batch: accumulate, stay with DDP, name the activations."""
    decision = decide(scenario("gpt2", micro_batch=512, global_batch=4096, sequence_length=1024))
    assert (decision.strategy, decision.exhausted) == ("ddp", "activations")
    assert decision.scenario.training.micro_batch < 512
    assert decision.scenario.global_batch == 4096
    assert decision.adjustments[0].startswith("micro-batch 512 -> ")


def test_the_global_batch_bounds_the_micro_batch_but_not_the_strategy() -> None:
    """64 replicas of 4 samples are more than 128: halve the micro-batch, no more machinery."""
    decision = decide(scenario("gpt2", gpus=8, nodes=8, micro_batch=4, global_batch=128))
    assert (decision.strategy, decision.exhausted) == ("ddp", "throughput")
    assert decision.scenario.training.micro_batch == 2
    decision = decide(scenario("gpt2", gpus=8, nodes=8, global_batch=32))
    assert decision.strategy == "ddp"
    assert any("use fewer replicas" in note for note in decision.notes)


def test_small_models_gain_nothing_from_zero_2() -> None:
    """deepspeedai/DeepSpeed#1302: BERT-large on four cards is DDP; stage 2's buckets cost more."""
    layout = {"engine": "deepspeed"}
    asked = scenario("bert-large", gpus=4, layout=layout, sequence_length=512, micro_batch=8)
    assert decide(asked).strategy == "ddp"


def test_selective_checkpointing_is_no_answer_with_flash_attention() -> None:
    """NVIDIA/Megatron-LM#1225: selective moves the peak by about 2 %, full is what is offered."""
    none, selective = (
        estimate(scenario("gpt2-xl", sequence_length=1024, activation_checkpointing=kind))
        for kind in ("none", "selective")
    )
    assert selective.peak_bytes > 0.97 * none.peak_bytes


def test_cards_without_peer_to_peer_are_warned_of_tensor_parallelism() -> None:
    """A GeForce card that must split layers is told that its copies go through the host."""
    decision = decide(scenario("llama-3-70b", "rtx-4090", 8, 10, host_memory_gib=64))
    assert (decision.strategy, decision.exhausted) == ("tensor", "single layer")
    assert any("no peer-to-peer" in note for note in decision.notes)
    fast = decide(scenario("llama-3.1-405b", "a100-sxm-40gb", 8, 64))
    assert fast.strategy == "tensor"
    assert not any("no peer-to-peer" in note for note in fast.notes)


@pytest.mark.parametrize(("nodes", "engine"), [(1, "fsdp2"), (4, "deepspeed"), (16, "deepspeed")])
def test_experts_that_fsdp2_would_keep_whole_are_cut_flat(nodes: int, engine: str) -> None:
    """Past 8 ranks FSDP2 pads Mixtral's 8 experts, so DeepSpeed's flat shards are taken."""
    asked = scenario("mixtral-8x7b", "a100-sxm-40gb", 8, nodes)
    laid = asked.with_layout(layout_for(asked, "zero-3"))
    assert laid.layout.engine == engine
    assert layout_for(scenario("llama-3-8b", nodes=nodes), "zero-3").engine == "fsdp2"
    decision = decide(asked)
    if nodes == 1:
        assert decision.next_step == "With 4 such nodes (32 GPUs) ZeRO-3 / FSDP would fit."
    else:
        assert (decision.strategy, decision.scenario.layout.engine) == ("zero-3", "deepspeed")
        assert any(note.startswith("DeepSpeed cuts flat buffers") for note in decision.notes)
        by_rows = {"engine": "fsdp2", "zero_stage": 3}
        training = {"activation_checkpointing": "full"}
        kept = scenario("mixtral-8x7b", "a100-sxm-40gb", 8, nodes, by_rows, **training)
        assert estimate(kept).verdict == "does not fit"


@pytest.mark.parametrize(
    ("model", "gpu", "kind"),
    [({"parameters": 7e9}, "rtx-4090", "LoRA"), ("llama-2-13b", "rtx-4080", "QLoRA")],
)
def test_where_full_training_does_not_fit_adapters_are_offered(
    model: object, gpu: str, kind: str
) -> None:
    """One consumer card: what LoRA or QLoRA would need there, as its own estimate has it."""
    decision = decide(scenario(model, gpu, 1))
    assert decision.strategy == "none"
    offered = decision.notes[0]
    assert offered.startswith(f"If adapters will do instead of full training (Trained: {kind})")
    base = "nf4" if kind == "QLoRA" else "16-bit"
    adapters = {"lora": {"rank": 16, "base": base}}
    training = {"trainable": adapters, "activation_checkpointing": "full"}
    report = estimate(scenario(model, gpu, 1, layout={"engine": "ddp"}, **training))
    assert report.verdict == "fits"
    assert format_gib(report.needed_bytes) in offered


def test_three_axes_come_last() -> None:
    """Where even TP 4 inside a node is too little, stages come on top, and the bubble is named."""
    layout = {"engine": "fsdp2"}
    decision = decide(scenario("mixtral-8x7b", "rtx-3090", 4, 16, layout, 32, sequence_length=4096))
    assert (decision.strategy, decision.exhausted) == ("3d", "whole model")
    chosen = decision.scenario.layout
    assert min(chosen.tensor_parallel, chosen.pipeline_parallel) > 1
    assert verdicts(decision) == ["no", "no", "no", "no", "yes"]
    assert decision.next_step.startswith("There is no heavier step")


@pytest.mark.parametrize(
    ("nodes", "strategy", "tensor"),
    [(16, "tensor-offload", 2), (32, "tensor", 4), (64, "offload", 1)],
)
def test_deepseek_v3_on_h100(nodes: int, strategy: str, tensor: int) -> None:
    """671B: experts of one layer are 22 GB gathered, so they are split; 128 GPUs offload besides.

    16 bytes a parameter over 128 cards are 84 GB each: all that the card gives. 512 cards are more
    than the 256 experts: there DeepSpeed's flat shards take FSDP2's place, whose rows would be
    padded, and with the optimizer offloaded no layer has to be split.
    """
    decision = decide(scenario("deepseek-v3", "h100-sxm-80gb", 8, nodes))
    chosen = decision.scenario
    assert (decision.strategy, chosen.layout.tensor_parallel) == (strategy, tensor)
    assert estimate(chosen).verdict == "fits"
    assert estimate(chosen).host_bytes_per_node <= chosen.cluster.host_memory_bytes


def test_llama_405b_on_128_h100() -> None:
    """16 bytes of 405B over 128 cards are 51 GB, and the rest of a step needs more than is left.

    Meta trained it with tensor, context and pipeline parallelism on 16,384; offloading is simpler.
    """
    decision = decide(scenario("llama-3.1-405b", "h100-sxm-80gb", 8, 16))
    assert decision.strategy == "offload"
    refused = attempts(decision)["zero-3"]
    assert refused.needed_bytes > 16 * 405e9 / 128


@pytest.mark.parametrize(("host", "strategy"), [(None, "none"), (2048, "offload")])
def test_seventy_billion_on_eight_cards_of_24_gb(host: int | None, strategy: str) -> None:
    """The cards have 192 GB, the states 1.1 TB: only host memory makes room, and it is named."""
    decision = decide(scenario("llama-3-70b", "rtx-4090", 8, 1, host_memory_gib=host))
    assert decision.strategy == strategy
    assert host is not None or "of host memory a node" in decision.headline
    tried = set(attempts(decision))
    assert strategy != "none" or {"tensor-offload", "pipeline-offload"} <= tried


def test_stages_need_not_have_as_many_layers() -> None:
    """61 layers go over 8 or 16 stages, as torchtitan's and Megatron-LM's splits do."""
    asked = scenario("deepseek-v3", "h100-sxm-80gb", 8, 32)
    assert {8, 16} <= set(pipeline_degrees(asked))
    for stages in (8, 16):
        layers = lighter_ends(61, stages)
        assert sum(layers) == 61 and max(layers[1:-1]) - min(layers[1:-1]) <= 1
        assert layers[-1] < max(layers)
        laid = asked.with_layout(layout_for(asked, "pipeline", 1, stages, layers))
        assert [stage.layers for stage in estimate(laid).stages] == list(layers)


def test_even_stages_come_before_uneven_ones() -> None:
    """Degrees that divide the layers too are tried first: 80 layers over 16, then over 32."""
    asked = scenario("llama-3-70b", "h100-sxm-80gb", 8, 8)
    assert pipeline_degrees(asked) == (2, 4, 8, 16, 32, 64)
    assert pipeline_degrees(scenario("llama-3-8b", gpus=12)) == (2, 4, 3, 6, 12)


MODELS = st.sampled_from(
    ["gpt2", "llama-3.2-1b", "llama-3-8b", "qwen2.5-14b", "mixtral-8x7b", "llama-3-70b",
     "phi-4", "mamba-2.8b", "t5-3b", "llama-3.1-405b"]
)  # fmt: skip
CARDS = st.sampled_from(
    ["t4", "rtx-3090", "v100-sxm-32gb", "a100-sxm-40gb", "h100-sxm-80gb", "b200-sxm-180gb"]
)


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    """A question as a dict: model, cluster, training, engine family."""
    return {
        "model": draw(MODELS),
        "cluster": {
            "gpu": draw(CARDS),
            "gpus_per_node": draw(st.sampled_from([1, 2, 4, 6, 8])),
            "nodes": draw(st.sampled_from([1, 2, 3, 8, 16])),
            "host_memory_gib": draw(st.sampled_from([64, 512, 2048])),
        },
        "training": {
            "sequence_length": draw(st.sampled_from([512, 2048, 4096, 32_768, 131_072])),
            "micro_batch": draw(st.sampled_from([1, 2, 7, 16])),
            "global_batch": draw(st.sampled_from([None, 64, 1024])),
            "precision": draw(st.sampled_from(["mixed-16", "fsdp-mixed", "fp32", "autocast"])),
            "optimizer": draw(st.sampled_from(["adamw", "sgd", "adafactor"])),
            "activation_checkpointing": draw(st.sampled_from(["none", "full"])),
            "loss": draw(st.sampled_from(["full", "fused"])),
        },
        "layout": {"engine": draw(st.sampled_from(["fsdp2", "deepspeed", "ddp"]))},
    }


def trainings(given_one: Training) -> list[Training]:
    """The training set-up and all lighter ones: halved micro-batches, full checkpointing."""
    sizes = [given_one.micro_batch]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    kinds = {given_one.activation_checkpointing, "full"}
    return [
        replace(given_one, micro_batch=size, activation_checkpointing=kind)
        for size in sizes
        for kind in kinds
    ]


def fits_somehow(asked: Scenario, strategy: str, decided: Layout | None = None) -> bool:
    """Whether any degree and any lighter training of the strategy fits, tried one by one.

    `decided` may have layers a stage of its own, tried last.
    """
    if strategy in ("tensor", "tensor-offload"):
        degrees = [(degree, 1) for degree in tensor_degrees(asked)]
    elif strategy in SPLITS:
        degrees = list(split_degrees(asked))
    else:
        degrees = [(1, 1)]
    if strategy.startswith("zero") and asked.cluster.world_size == 1:
        return False
    layouts = [layout_for(asked, strategy, *degree) for degree in degrees]
    if decided is not None and decided.layers_per_stage:
        layouts.append(decided)
    for layout in layouts:
        for training in trainings(asked.training):
            try:
                laid = asked.with_layout(layout, training)
            except ScenarioError:
                continue
            report = estimate(laid)
            wanted = training.global_batch
            too_many = (
                wanted
                and training.micro_batch > 1
                and (laid.data_parallel * training.micro_batch > wanted)
            )
            if (
                fits(report)
                and not too_many
                and report.host_bytes_per_node <= laid.cluster.host_memory_bytes
            ):
                return True
    return False


WHOLE_AT_ONCE = {
    "model": "llama-3-8b",
    "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": 1, "nodes": 8},
    "training": {
        "sequence_length": 512, "micro_batch": 16, "global_batch": 64, "precision": "fsdp-mixed",
    },
    "layout": {"engine": "deepspeed"},
}  # fmt: skip
"""Eight samples at once fit under ZeRO-1; one by one they don't, as gradients are accumulated."""


@settings(max_examples=120, deadline=None)
@given(questions())
@example(WHOLE_AT_ONCE)
def test_never_more_machinery_than_needed(value: dict[str, Any]) -> None:
    """No lighter strategy fits at any degree; the chosen one does."""
    asked = Scenario.from_dict(value)
    decision = decide(asked)
    rung = "pipeline" if decision.strategy == "3d" else decision.strategy
    lighter = LADDER[: LADDER.index(rung)] if rung != "none" else LADDER
    for strategy in lighter:
        assert not fits_somehow(asked, strategy), strategy
    if rung != "none":
        report = estimate(decision.scenario)
        assert fits(report)
        assert fits_somehow(asked, rung, decision.scenario.layout)


@settings(max_examples=200, deadline=None)
@given(questions())
def test_it_stops_at_the_first_yes(value: dict[str, Any]) -> None:
    """no ... no, at most one yes, then not asked; the named resource goes with the strategy."""
    asked = Scenario.from_dict(value)
    decision = decide(asked)
    said = verdicts(decision)
    assert len(said) == 5
    if decision.strategy == "none":
        assert said == ["no"] * 5
        assert decision.scenario == asked
    else:
        at = said.index("yes")
        assert said == ["no"] * at + ["yes"] + ["not asked"] * (4 - at)
        expected = EXHAUSTED[decision.strategy]
        assert decision.exhausted in (
            (expected, "activations") if decision.strategy == "ddp" else (expected,)
        )
    for question in decision.questions:
        assert question.available_bytes == asked.cluster.gpu.usable_bytes
        assert (question.needed_bytes > 0) == bool(question.attempts)
        assert question.why.endswith(".")


@settings(max_examples=200, deadline=None)
@given(questions())
def test_no_degree_fails_to_divide(value: dict[str, Any]) -> None:
    """Chosen and tried degrees divide heads and GPUs, and TP stays inside a node."""
    asked = Scenario.from_dict(value)
    decision = decide(asked)
    cluster, model = asked.cluster, asked.model
    for laid in [decision.scenario, *(a.scenario for a in attempts(decision).values())]:
        layout = laid.layout
        assert cluster.gpus_per_node % layout.tensor_parallel == 0
        assert layout.tensor_parallel == 1 or divides_heads(model, layout.tensor_parallel)
        assert layout.pipeline_parallel <= model.layers
        assert cluster.world_size % (layout.tensor_parallel * layout.pipeline_parallel) == 0
        assert laid.data_parallel * layout.model_parallel == cluster.world_size


@settings(max_examples=200, deadline=None)
@given(questions())
def test_its_sentences_can_be_read(value: dict[str, Any]) -> None:
    """Sentences end, have no doubled marks, no None, no negative sizes and no bare numbers."""
    decision = decide(Scenario.from_dict(value))
    texts = [decision.headline, decision.next_step, *decision.notes]
    texts += [question.why for question in decision.questions]
    for text in texts:
        assert text.endswith(".")
        assert text[0].isupper()
        for odd in ("None", "  ", "..", " .", ": .", "-0", "nan", "inf ", "(s)", "needs -"):
            assert odd not in text, (odd, text)


RUNGS = {strategy: index for index, strategy in enumerate((*LADDER, "none"))}
RUNGS["3d"] = RUNGS["pipeline"]


@settings(max_examples=150, deadline=None)
@given(questions(), st.sampled_from([1.1, 1.5, 2.0, 4.0]))
def test_a_larger_card_never_gets_a_heavier_strategy(value: dict[str, Any], times: float) -> None:
    """The same cluster with more memory on each card climbs at most as far."""
    asked = Scenario.from_dict(value)
    gpu = asked.cluster.gpu
    larger = replace(
        gpu,
        memory_bytes=int(gpu.memory_bytes * times),
        usable_bytes=int(gpu.usable_bytes * times),
    )
    cluster = replace(asked.cluster, gpu=larger)
    roomier = Scenario.of(asked.model, cluster, asked.training, asked.layout, asked.model_source)
    assert RUNGS[decide(roomier).strategy] <= RUNGS[decide(asked).strategy]


@settings(max_examples=60, deadline=None)
@given(questions())
def test_the_decision_does_not_depend_on_what_was_asked_before(value: dict[str, Any]) -> None:
    """The same question gets an equal answer from cold caches."""
    asked = Scenario.from_dict(value)
    warm = decide(asked)
    for module in ("shardwise.core.decision", "shardwise.core.memory.estimate"):
        for cached in ("_decided", "_estimated"):
            if function := getattr(importlib.import_module(module), cached, None):
                function.cache_clear()
    assert decide(asked) == warm


@settings(max_examples=60, deadline=None)
@given(questions())
def test_the_chosen_scenario_is_a_scenario_like_any_other(value: dict[str, Any]) -> None:
    """It reads back from its dict to an equal one with an equal report."""
    decision = decide(Scenario.from_dict(value))
    again = Scenario.from_dict(decision.scenario.to_dict())
    assert again == decision.scenario
    assert estimate(again) == estimate(decision.scenario)
