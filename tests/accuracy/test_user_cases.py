"""Questions that people asked in public, with the figures that a right answer has.

Each test names the issue; the wording and the scenario are this project's own.
"""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.core.advice import bubble
from shardwise.core.catalogue import load_model
from shardwise.core.decision import decide
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.activations import block_saved
from shardwise.core.memory.host import host_bytes_at_load, host_bytes_per_node
from shardwise.core.memory.kernel import kernel_of, tokens_of
from shardwise.core.memory.reserve import COMMUNICATOR_BYTES, CONTEXT_BYTES
from shardwise.core.memory.rule_of_sixteen import zero_state_bytes
from shardwise.core.memory.stages import stages_of
from shardwise.core.model import Model
from shardwise.core.scenario import Scenario
from shardwise.core.units import GB, GIB


def scenario(
    model: object, gpu: str, gpus: int, layout: Any = None, *, nodes: int = 1, **training: Any
) -> Scenario:
    """A model on nodes of so many cards."""
    return Scenario.from_dict(
        {
            "model": model,
            "cluster": {"gpu": gpu, "gpus_per_node": gpus, "nodes": nodes},
            "training": training,
            "layout": layout or {},
        }
    )


def states(report: MemoryReport) -> float:
    """Bytes of model states as the optimizer steps."""
    parts = report.phases["optimizer step"]
    names = ("parameters", "gradients", "master weights", "optimizer state")
    return sum(parts[name] for name in names)


def test_lora_on_a_30b_mixture_runs_out_of_frozen_parameters() -> None:
    """eullm/eullm#410, AgileRL/AgileRL#658: 61 GB of bf16 base; ZeRO-1 and 2 save next to nothing.

    Memory goes by all 30.5 B parameters and not by the 3.35 B that a token meets; an int8 base,
    whole on each card under DDP (about 31 GB of it), or sharding it is what helps.
    """
    lora = {"lora": {"rank": 16, "targets": ["q", "k", "v", "o"]}}
    asked = scenario("qwen3-30b-a3b", "mi250x", 4, trainable=lora, sequence_length=2048)
    assert asked.model.parameters == 30_532_122_624
    by_stage = {
        stage: estimate(
            scenario(
                "qwen3-30b-a3b", "mi250x", 4, {"engine": "deepspeed", "zero_stage": stage},
                trainable=lora,
            )
        )
        for stage in (0, 1, 2, 3)
    }  # fmt: skip
    assert by_stage[0].phases["between steps"]["parameters"] / GB == pytest.approx(61, abs=0.2)
    assert states(by_stage[0]) - states(by_stage[2]) < 0.005 * states(by_stage[0])
    assert states(by_stage[3]) < 0.3 * states(by_stage[0])
    decision = decide(asked)
    assert (decision.strategy, decision.exhausted) == ("zero-3", "parameters")
    assert any("int8" in note and "DDP" in note for note in decision.notes)
    int8 = {"lora": lora["lora"] | {"base": "int8"}}
    whole = estimate(scenario("qwen3-30b-a3b", "mi250x", 4, {"engine": "ddp"}, trainable=int8))
    assert whole.phases["between steps"]["parameters"] / GB == pytest.approx(31.3, abs=0.3)


def test_the_gathered_mixture_layer_counts() -> None:
    """AgileRL/AgileRL#658: one layer's 128 experts are gathered at once, three buffers of it.

    Entering a layer FSDP2 holds the layer, its all-gather buffer and the one of the layer before.
    """
    lora = {"lora": {"rank": 16, "targets": ["q", "v"]}}
    report = estimate(scenario("qwen3-30b-a3b", "mi250x", 4, trainable=lora, sequence_length=512))
    layer = load_model("qwen3-30b-a3b").blocks[0].parameters
    assert layer > 0.6e9
    gathered = max(parts["gathered layers"] for parts in report.phases.values())
    root = load_model("qwen3-30b-a3b").parameters - 48 * layer
    assert gathered == pytest.approx(2 * (root + 3 * layer), rel=1e-3)


def test_qlora_of_70b_needs_its_base_cut() -> None:
    """InternLM/xtuner#88, hiyouga/LlamaFactory#4559: 4-bit 70B under DDP on 40 GB never fits.

    36 to 39 GB of base in each replica, about 55 GB a GPU in all; ZeRO-2 shards the adapters'
    states only; more cards change nothing; FSDP with NF4 storage does fit.
    """
    lora = {"rank": 64, "targets": "all-linear", "base": "nf4"}
    base = 68_976_648_192

    def on(gpus: int, layout: dict[str, Any], gpu: str = "a100-sxm-40gb") -> MemoryReport:
        return estimate(
            scenario(
                "llama-2-70b", gpu, gpus, layout, trainable={"lora": lora}, sequence_length=1024,
                activation_checkpointing="full",
            )
        )  # fmt: skip

    ddp = on(8, {"engine": "ddp"})
    adapters = 2 * 828_375_040
    frozen = ddp.phases["between steps"]["parameters"] - adapters
    assert 0.5 <= frozen / base <= 0.58
    assert 36 <= frozen / GB <= 40
    assert ddp.verdict == "does not fit"
    assert ddp.device_bytes / GB == pytest.approx(55, abs=7)
    assert on(16, {"engine": "ddp"}).peak_bytes == ddp.peak_bytes
    saved = states(ddp) - states(on(8, {"engine": "deepspeed", "zero_stage": 2}))
    assert saved / GB < 12
    assert on(8, {"engine": "deepspeed", "zero_stage": 2}).verdict == "does not fit"
    assert on(8, {"engine": "fsdp2"}).verdict == "fits"
    assert on(4, {"engine": "fsdp2"}, "rtx-4090").verdict in ("fits", "tight")
    with pytest.raises(ScenarioError, match="ZeRO-3 can cut"):
        on(8, {"engine": "deepspeed", "zero_stage": 3})
    asked = scenario(
        "llama-2-70b", "a100-sxm-40gb", 8, {"engine": "ddp"}, trainable={"lora": lora},
        sequence_length=1024,
    )  # fmt: skip
    assert (decide(asked).strategy, decide(asked).exhausted) == ("zero-3", "parameters")


def test_lora_of_30b_keeps_a_frozen_copy_under_zero_2() -> None:
    """deepspeedai/DeepSpeed#5109: ZeRO-2 keeps 2P = 60.6 GiB a GPU, ZeRO-3 2P/8 = 7.6 GiB."""
    lora = {"lora": {"rank": 8}}
    for stage, expected in ((2, 60.6), (3, 7.6)):
        layout = {"engine": "deepspeed", "zero_stage": stage}
        laid = scenario({"parameters": 32.5e9}, "a100-sxm-80gb", 8, layout, trainable=lora)
        own = estimate(laid).phases["between steps"]
        assert own["parameters"] / GIB == pytest.approx(expected, abs=0.1)
        assert own["optimizer state"] < 0.02 * own["parameters"]


def test_llama_3_8b_on_24_gb_cards_wants_the_optimizer_offloaded() -> None:
    """hiyouga/LlamaFactory#5977: 14.96 GiB of states and no fit; 13 GB a card with offload."""
    given = {"sequence_length": 1024, "global_batch": 16}
    layout = {"engine": "deepspeed", "zero_stage": 3}
    plain = estimate(scenario("llama-3-8b", "rtx-3090", 8, layout, **given))
    assert states(plain) / GIB == pytest.approx(14.96, abs=0.02)
    assert plain.verdict in ("tight", "does not fit")
    both = layout | {"offload": {"optimizer": "cpu", "parameters": "cpu"}}
    assert estimate(scenario("llama-3-8b", "rtx-3090", 8, both, **given)).verdict == "fits"
    asked = scenario("llama-3-8b", "rtx-3090", 8, layout, **given)
    assert decide(asked).strategy in ("zero-3", "offload")


def test_qwen_3b_fits_with_zero_3_where_zero_2_dies() -> None:
    """hiyouga/LlamaFactory#6752: ZeRO-2 on four 24 GB cards dies, ZeRO-3's states are 12.9 GiB.

    12.9 is 18P/4: the rule's 16 and fp32 gradients at the step.
    """
    reports = {
        stage: estimate(
            scenario(
                "qwen2.5-3b", "rtx-3090", 4,
                {"engine": "deepspeed", "zero_stage": stage, "overlap_comm": True},
                sequence_length=512,
            )
        )
        for stage in (2, 3)
    }  # fmt: skip
    assert reports[2].verdict != "fits"
    assert reports[3].verdict == "fits"
    fp32_gradients = 4 * 3_085_938_688 / 4
    textbook = states(reports[3]) - 0.5 * fp32_gradients
    assert (textbook + fp32_gradients) / GIB == pytest.approx(12.9, abs=0.05)


def test_a_7b_dies_in_the_optimizers_square_root() -> None:
    """meta-llama/llama-cookbook#234: 12.55 GiB of states and 3.1 of foreach's list on 16 GB cards.

    The peak is in the step; fused or for-loop AdamW, or 8-bit states, make room.
    """

    def at_step(code: str, optimizer: str = "adamw") -> float:
        report = estimate(
            scenario(
                "llama-2-7b", "v100-sxm-16gb", 8, {"engine": "fsdp2"}, sequence_length=512,
                precision="fsdp-mixed", optimizer=optimizer, optimizer_implementation=code,
            )
        )  # fmt: skip
        return sum(report.phases["optimizer step"].values())

    assert (at_step("foreach") - at_step("fused")) / GIB == pytest.approx(3.14, abs=0.02)
    assert at_step("fused") / GIB == pytest.approx(12.55, abs=0.02)
    assert at_step("foreach") + CONTEXT_BYTES > 15.77 * GIB
    assert at_step("fused", "adamw-8bit") < 0.65 * at_step("fused")


def test_eight_ranks_that_load_onto_one_card() -> None:
    """huggingface/lerobot#4009, pytorch/pytorch#135279: 8 x 22.43 GiB on GPU 0, or 7 contexts."""
    laid = scenario({"parameters": 6_020_710_599}, "h200-sxm-141gb", 8, precision="fp32")
    whole = host_bytes_at_load(laid)
    assert whole / GIB == pytest.approx(22.43, abs=0.01)
    assert host_bytes_at_load(laid, sharded=False) / GIB == pytest.approx(179.4, abs=0.1)
    assert host_bytes_at_load(laid, sharded=False) > laid.cluster.gpu.usable_bytes > whole
    assert pytest.approx(6.3, abs=0.35) == 7 * CONTEXT_BYTES / GB


@pytest.mark.parametrize(
    ("stage", "gpus", "fitted"),
    [
        (0, 2, False), (0, 8, False), (1, 2, False), (1, 4, False), (1, 8, False),
        (2, 2, False), (2, 4, False), (2, 8, True),
        (3, 2, False), (3, 4, True), (3, 8, True),
    ],
)  # fmt: skip
def test_a_u_net_known_by_its_size_only(stage: int, gpus: int, fitted: bool) -> None:
    """kohya-ss/sd-scripts#1101: 2.57 B parameters, 8-bit AdamW, 24 GB cards.

    With 14.5 GB for the activations that the user measured, ZeRO-2 first fits on 8 cards, ZeRO-3
    on 4, DDP and ZeRO-1 never: as reported.
    """
    layout = {"engine": "deepspeed", "zero_stage": stage}
    laid = scenario(
        {"parameters": 2.57e9}, "rtx-3090", gpus, layout, optimizer="adamw-8bit",
        optimizer_implementation="fused",
    )  # fmt: skip
    measured = 14.5 * GB
    needed = states(estimate(laid)) + measured + CONTEXT_BYTES + COMMUNICATOR_BYTES
    assert (needed <= laid.cluster.gpu.usable_bytes) is fitted


@pytest.mark.parametrize("size", [1e7, 1e8, 5e8])
@pytest.mark.parametrize("overlap", [False, True])
def test_zero_2_above_zero_1(size: float, overlap: bool) -> None:
    """deepspeedai/DeepSpeed#1302: the buckets of 5e8 elements outweigh what stage 2 saves at 340 M.

    1.8 B on 8 cards: two buckets instead of none differ by the 2 GB that were measured.
    """

    def peak(parameters: float, gpus: int, stage: int) -> MemoryReport:
        layout = {
            "engine": "deepspeed", "zero_stage": stage, "reduce_bucket_elements": size,
            "overlap_comm": overlap and stage < 3,
        }  # fmt: skip
        return estimate(scenario({"parameters": parameters}, "v100-sxm-32gb", gpus, layout))

    bucket = 2 * size * (2 if overlap else 1)
    for parameters, gpus in ((340e6, 4), (1.8e9, 8)):
        backward = peak(parameters, gpus, 2).phases["backward"]
        assert backward["buffers"] == pytest.approx(bucket, rel=1e-3)
    saved = 2 * 340e6 * (1 - 1 / 4)  # what stage 2 saves of the gradients
    assert (bucket > saved) is (size == 5e8)
    if size == 5e8 and overlap:
        assert bucket / GB == pytest.approx(2.0)


def test_activations_of_experts_do_not_shrink_with_expert_parallelism() -> None:
    """NVIDIA/Megatron-LM#1784: top-8 of 128 experts of width 768; the all-to-all trades rows."""
    per = {}
    for expert in (1, 8):
        laid = scenario("qwen3-30b-a3b", "h100-sxm-80gb", 8, {"expert_parallel": expert})
        shape = laid.model.block_groups[0][0]
        assert (shape.experts, shape.experts_per_token, shape.expert_intermediate) == (128, 8, 768)
        per[expert] = dict(block_saved(shape, tokens_of(laid, shape), kernel_of(laid)).operators)
    assert per[1] == per[8]
    rows = 2 * 4096 * 8
    assert per[1]["expert inputs"] == rows * 2048
    assert per[1]["experts"] == rows * 4 * 768


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
        ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704),
        ("gpt-oss-20b", 20_914_757_184, 4_187_440_704),
    ],
)
def test_memory_goes_by_all_parameters(name: str, total: int, active: int) -> None:
    """AlexsJones/llmfit#230, jranaraki/vllm-fit#27: 10 B active of 122 B is no 33 GB model."""
    model = load_model(name)
    assert (model.parameters, model.active_parameters) == (total, active)
    report = estimate(scenario(name, "h200-sxm-141gb", 8, {"engine": "ddp"}))
    assert report.phases["between steps"]["parameters"] == 2 * total


def test_the_shard_type_decides_and_not_the_word_mixed() -> None:
    """huggingface/accelerate#2674, #3979: fp32 shards 12.55 GiB, all in bf16 6.28 GiB on 8 GPUs."""
    for precision, expected in (("fsdp-mixed", 12.55), ("bf16", 6.28)):
        laid = scenario("llama-2-7b", "a100-sxm-80gb", 8, precision=precision)
        assert states(estimate(laid)) / GIB == pytest.approx(expected, abs=0.01)


def test_fp8_lm_is_six_bytes_beside_its_weights() -> None:
    """Azure/MS-AMP#173: 16 bytes without 16-bit copies become 6: 2 master, 1 gradient, 1 + 2."""
    report = estimate(
        scenario({"parameters": 1e9}, "h100-sxm-80gb", 1, {"engine": "ddp"}, precision="fp8-lm")
    )
    own = report.phases["optimizer step"]
    weights = own["parameters"]
    assert weights == 1e9
    assert states(report) - weights == 6e9


def test_counting_after_wrapping_sees_a_shard() -> None:
    """foundation-model-stack/fms-fsdp#67: a sum over an FSDP model's tensors is about P/8."""
    laid = scenario("llama-2-7b", "a100-sxm-80gb", 8)
    (stage,) = stages_of(laid.model, laid.layout)
    local = estimate(laid).phases["between steps"]["parameters"] / 2
    assert stage.elements == 6_738_415_616
    assert local == pytest.approx(stage.elements / 8, rel=1e-3)


def test_fewer_micro_batches_than_stages() -> None:
    """pytorch/torchtitan#775, #947: 3 micro-batches in 6 stages are refused; bubbles at 6, 48."""
    layout = {"pipeline_parallel": 6, "engine": "megatron", "zero_stage": 0}

    def of(samples: int) -> Scenario:
        counted = {"num_hidden_layers": 36, "model_type": "llama", "hidden_size": 1024,
                   "intermediate_size": 4096, "num_attention_heads": 8, "vocab_size": 32000,
                   "architectures": ["LlamaForCausalLM"]}  # fmt: skip
        return scenario(counted, "a100-sxm-80gb", 6, layout, global_batch=samples)

    with pytest.raises(ScenarioError, match="at least 6"):
        of(3)
    assert "45%" in bubble(of(6))
    assert "9%" in bubble(of(48))


@pytest.mark.parametrize(
    ("gpus", "layout"),
    [
        (8, {"tensor_parallel": 2, "pipeline_parallel": 3}),
        (8, {"context_parallel": 8, "data_parallel": 8}),
        (4, {"expert_parallel": 8}),
    ],
)
def test_degrees_multiply_to_the_world(gpus: int, layout: dict[str, Any]) -> None:
    """pytorch/torchtitan#27, #1184: context parallelism is not free, experts fold into data."""
    with pytest.raises(ScenarioError) as raised:
        scenario("mixtral-8x7b", "h100-sxm-80gb", gpus, layout)
    assert raised.value.field.startswith("layout")


@pytest.mark.parametrize("gpu", ["t4", "v100-sxm-16gb"])
def test_no_bf16_before_ampere(gpu: str) -> None:
    """tatsu-lab/stanford_alpaca#133, databrickslabs/dolly#11: no bf16, so 16-bit means fp16."""
    with pytest.raises(ScenarioError, match="mixed-16"):
        scenario("gpt2", gpu, 4, precision="bf16")
    lines = estimate(scenario("gpt2", gpu, 4)).assumptions
    assert any("fp16 with loss scaling" in line for line in lines)
    assert any("FlashAttention" in line for line in lines)


def test_zero_3_takes_no_8_bit_base() -> None:
    """huggingface/peft#306, deepspeedai/DeepSpeed#3620: 8-bit T5-XXL under ZeRO-3 is an error."""
    lora = {"lora": {"targets": ["q", "v"], "base": "int8"}}
    with pytest.raises(ScenarioError, match="DDP"):
        scenario("flan-t5-xxl", "a100-sxm-80gb", 8, {"engine": "deepspeed"}, trainable=lora)
    laid = scenario("flan-t5-xxl", "a100-sxm-80gb", 8, {"engine": "ddp"}, trainable=lora)
    assert estimate(laid).phases["between steps"]["parameters"] < 13e9


def test_heads_need_not_fill_the_hidden_size() -> None:
    """huggingface/transformers#46211: hidden 1792 with 24 heads of 128 is a model, not an error."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
        "hidden_size": 1792, "intermediate_size": 8064, "num_hidden_layers": 32,
        "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
        "tie_word_embeddings": True,
    }  # fmt: skip
    shape = Model.from_config(config).block_groups[0][0]
    assert (shape.heads * shape.head_dim, shape.hidden) == (3072, 1792)


def test_the_backbone_alone_counts_short() -> None:
    """deepspeedai/DeepSpeed#1883: AutoModel's GPT-J is 5.84 B, the model that trains 6.05 B."""
    config: dict[str, Any] = {
        "model_type": "gptj",
        "vocab_size": 50400,
        "n_embd": 4096,
        "n_layer": 28,
    }
    whole = Model.from_config(config | {"architectures": ["GPTJForCausalLM"]}).parameters
    bare = Model.from_config(config | {"architectures": ["GPTJModel"]}).parameters
    assert (whole, bare) == (6_050_882_784, 5_844_393_984)


def test_llama_3_8b_on_eight_mi300x() -> None:
    """AMD's 192 GiB: batch 4 in bf16 fits; a MI250X is two devices of 64 GiB."""
    laid = scenario("llama-3-8b", "mi300x", 8, micro_batch=4, sequence_length=4096)
    assert laid.cluster.gpu.memory_bytes == 192 * GIB
    assert estimate(laid).verdict == "fits"
    assert scenario("gpt2", "mi250x", 8).cluster.gpu.memory_bytes == 64 * GIB


def test_a_mig_slice_is_a_small_card_without_peers() -> None:
    """NVIDIA/nccl#1716: each slice has its own memory and no peer-to-peer copies."""
    for gpu, size in (("a100-mig-1g-10gb", 10), ("a100-mig-3g-40gb", 40)):
        card = scenario("gpt2", gpu, 2).cluster.gpu
        assert card.memory_bytes == size * GIB
        assert not card.peer_to_peer


@pytest.mark.parametrize(("stage", "gpus", "expected"), [(0, 1, 16.0), (1, 8, 5.5), (2, 8, 3.75)])
def test_stages_of_the_paper(stage: int, gpus: int, expected: float) -> None:
    """deepspeedai/DeepSpeed#1302: what each stage saves by the ZeRO paper, bytes a parameter."""
    assert zero_state_bytes(1e9, stage, gpus) / 1e9 == expected
    layout = {"engine": "deepspeed", "zero_stage": stage}
    assert states(estimate(scenario({"parameters": 1e9}, "a100-sxm-80gb", gpus, layout))) == (
        expected * 1e9
    )


def test_nvme_still_takes_pinned_host_memory() -> None:
    """deepspeedai/DeepSpeed#3000: a run on NVMe died of its pinned buffers.

    Five buffers of 1e8 16-bit parameters a rank, and four fp32 ones of the largest sub-group.
    """
    offload = {"optimizer": "nvme", "parameters": "nvme"}
    layout = {"engine": "deepspeed", "zero_stage": 3, "offload": offload}
    laid = scenario({"parameters": 8e9}, "a100-sxm-80gb", 8, layout)
    host = host_bytes_per_node(laid, stages_of(laid.model, laid.layout))
    shard = 8e9 / 8
    expected = 8 * (5 * 1e8 * 2 + 4 * 4 * shard + 2 * shard)
    assert host == pytest.approx(expected, rel=1e-3)
    large = scenario({"parameters": 80e9}, "a100-sxm-80gb", 8, layout)
    more = host_bytes_per_node(large, stages_of(large.model, large.layout))
    # A sub-group has at most 1e9 elements: only the gradients grow from there.
    assert more == pytest.approx(8 * (1e9 + 16e9 + 2 * 10e9), rel=1e-3)
