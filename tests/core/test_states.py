"""Model states against the ZeRO paper, DeepSpeed's and Megatron-LM's estimators and real torch."""

from __future__ import annotations

import csv
import io
import warnings
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwise.core.catalogue import data_root, load_model
from shardwise.core.memory import estimate
from shardwise.core.memory.rule_of_sixteen import bytes_per_parameter, zero_state_bytes
from shardwise.core.memory.stages import Stage, even_layers, stages_of
from shardwise.core.memory.states import sharded_shape, stage_states
from shardwise.core.memory.tensor_classes import local_shape
from shardwise.core.model import Model
from shardwise.core.optimizers import OPTIMIZERS, state_bytes
from shardwise.core.precision import POLICIES
from shardwise.core.scenario import Scenario

TABLE = list(
    csv.DictReader(io.StringIO((data_root() / "measured" / "zero_table1.csv").read_text()))
)
STATES = ("parameters", "gradients", "master weights", "optimizer state")
rows = pytest.mark.parametrize("row", TABLE, ids=lambda row: row["id"])


def scenario(
    model: object, gpus: int, nodes: int = 1, layout: dict[str, Any] | None = None, **training: Any
) -> Scenario:
    """A scenario on `nodes` nodes of `gpus` cards."""
    return Scenario.from_dict(
        {
            "model": model,
            "cluster": {"gpus_per_node": gpus, "nodes": nodes},
            "training": training,
            "layout": layout or {},
        }
    )


def at_step(laid: Scenario) -> float:
    """Bytes of model states on one GPU when the optimizer steps."""
    parts = estimate(laid).phases["optimizer step"]
    return sum(parts[name] for name in STATES)


def last_digit(printed: str) -> float:
    """What the last printed digit is worth; the paper both rounds and cuts."""
    return 10.0 ** -len(printed.partition(".")[2])


def test_the_papers_table_is_whole() -> None:
    """Three models, three stages, six world sizes: 54 cells."""
    assert len(TABLE) == 54
    assert len({(row["parameters"], row["zero_stage"], row["gpus"]) for row in TABLE}) == 54


@rows
def test_the_formula_gives_the_zero_papers_table(row: dict[str, str]) -> None:
    """Each cell of Rajbhandari et al. 2020, table 1, to its last printed digit."""
    size = zero_state_bytes(float(row["parameters"]), int(row["zero_stage"]), int(row["gpus"]))
    printed = row["model_states_gb"]
    assert abs(size / 1e9 - float(printed)) < last_digit(printed)


@rows
def test_the_memory_model_gives_the_zero_papers_table(row: dict[str, str]) -> None:
    """The same cells from a whole scenario, tensor by tensor, under DeepSpeed's stages."""
    gpus = int(row["gpus"])
    laid = scenario(
        {"parameters": row["parameters"]},
        min(gpus, 8),
        max(1, gpus // 8),
        {"engine": "deepspeed", "zero_stage": int(row["zero_stage"])},
    )
    printed = row["model_states_gb"]
    assert abs(at_step(laid) / 1e9 - float(printed)) < last_digit(printed)


def test_stage_zero_is_the_rule_of_sixteen() -> None:
    """7B: 14 GB of weights and 112 GB of states (the mission's worked case)."""
    laid = scenario({"parameters": 7e9}, 8, layout={"engine": "ddp"})
    assert zero_state_bytes(7e9, 0, 8) == 112e9
    assert at_step(laid) == 112e9
    assert estimate(laid).parts["parameters"] == 14e9


@pytest.mark.parametrize(
    ("precision", "each"),
    [
        ("mixed-16", (2, 2, 4, 4, 4)),
        ("mixed-fp32-grads", (2, 4, 4, 4, 4)),
        ("mixed-20", (2, 6, 4, 4, 4)),
        ("fsdp-mixed", (4, 4, 0, 4, 4)),
        ("autocast", (4, 4, 0, 4, 4)),
        ("bf16", (2, 2, 0, 2, 2)),
        ("fp32", (4, 4, 0, 4, 4)),
    ],
)
def test_each_policy_has_its_published_bytes(precision: str, each: tuple[int, ...]) -> None:
    """16, 18 (Megatron-LM#654), 20 (MT-NLG), 8 and 16 bytes a parameter, by part."""
    counted = bytes_per_parameter(Model.from_parameters(1e9), POLICIES[precision], "adamw")
    assert counted == type(counted)(*each)
    assert counted.total == sum(each)
    laid = scenario({"parameters": 1e9}, 8, layout={"engine": "ddp"}, precision=precision)
    assert at_step(laid) == sum(each) * 1e9


@pytest.mark.parametrize(("ranks", "each"), [(1, 18.0), (2, 12.0), (8, 7.5), (64, 6 + 12 / 64)])
def test_megatrons_distributed_optimizer_is_6_and_12_over_d(ranks: int, each: float) -> None:
    """Megatron-LM's theoretical_memory_usage.py: 18, or 6 + 12/d bytes a parameter."""
    laid = scenario(
        {"parameters": 1e9},
        min(ranks, 8),
        max(1, ranks // 8),
        {"engine": "megatron", "zero_stage": 1},
        precision="mixed-fp32-grads",
    )
    assert at_step(laid) == pytest.approx(each * 1e9, rel=1e-9)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "mebibytes"),
    [(1, 1, 57436.90), (2, 1, 34463.29), (4, 1, 22977.05), (8, 1, 17235.07), (1, 2, 34462.14)],
)
def test_megatrons_own_script_for_llama_3_8b(tensor: int, pipeline: int, mebibytes: float) -> None:
    """Weights and optimizer of Llama-3-8B on 8 GPUs as theoretical_memory_usage.py prints them.

    The script divides the norms by the tensor degree too, hence 1 part in 5000.
    """
    laid = scenario(
        "llama-3-8b",
        8,
        layout={
            "engine": "megatron",
            "zero_stage": 1,
            "tensor_parallel": tensor,
            "pipeline_parallel": pipeline,
        },
        precision="mixed-fp32-grads",
    )
    assert at_step(laid) / 2**20 == pytest.approx(mebibytes, rel=2e-4)


def test_megatrons_own_script_for_gpt_3() -> None:
    """GPT-3 175B, TP 8 x PP 8: 2.7185e9 parameters on a middle stage's rank, 2.7971e9 on the first.

    The first stage has the vocabulary table besides; positions (here one row) are left out there.
    """
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 96, "n_embd": 12288,
        "n_head": 96, "n_positions": 1, "vocab_size": 51200,
    }  # fmt: skip
    layout = {"engine": "megatron", "tensor_parallel": 8, "pipeline_parallel": 8, "zero_stage": 0}
    laid = scenario(config, 8, 8, layout, precision="mixed-fp32-grads")
    stages = stages_of(laid.model, laid.layout)
    assert stages[3].elements == pytest.approx(2.7185e9, rel=1e-3)
    assert stages[0].elements == pytest.approx(2.7971e9, rel=1e-3)
    assert at_step(laid) / 2**20 == pytest.approx(48016.18, rel=1e-3)


# DeepSpeed's estimators (deepspeed/runtime/zero/stage3.py and stage_1_and_2.py, 0.19), GiB:
# parameters, largest layer, GPUs a node, nodes, stage, offloaded, host a node or None, GPU.
DEEPSPEED = [
    (2851e6, 32e6, 8, 1, 2, "", None, 11.28),
    (2851e6, 32e6, 8, 1, 2, "o", None, 5.31),
    (2851e6, 32e6, 8, 1, 3, "", None, 6.09),
    (2851e6, 32e6, 8, 1, 3, "o", 63.72, 0.78),
    (2851e6, 32e6, 8, 1, 3, "po", 71.69, 0.12),
    (2783e6, 65e6, 1, 1, 3, "", None, 46.90),
    (2783e6, 65e6, 1, 1, 3, "o", 62.20, 5.43),
    (2783e6, 65e6, 1, 1, 3, "po", 69.98, 0.24),
    (6805e6, 131e6, 4, 1, 3, "", None, 29.01),
    (6805e6, 131e6, 4, 1, 3, "o", 152.10, 3.66),
    (6805e6, 131e6, 4, 1, 3, "po", 171.12, 0.49),
    (8030261248, 525336576, 8, 1, 2, "", None, 31.78),
    (8030261248, 525336576, 8, 1, 2, "o", None, 14.96),
    (8030261248, 525336576, 8, 1, 3, "", None, 18.78),
    (8030261248, 525336576, 8, 1, 3, "o", 179.49, 3.83),
    (8030261248, 525336576, 8, 1, 3, "po", 201.93, 1.96),
    (8030261248, 525336576, 8, 4, 2, "", None, 19.16),
    (8030261248, 525336576, 8, 4, 3, "", None, 6.16),
    (8030261248, 525336576, 8, 4, 3, "o", 44.87, 2.42),
    (8030261248, 525336576, 8, 4, 3, "po", 50.48, 1.96),
]


@pytest.mark.parametrize("case", DEEPSPEED, ids=str)
def test_deepspeeds_estimators_agree(case: tuple[Any, ...]) -> None:
    """States at the optimizer step, and host memory, are what DeepSpeed's estimators print.

    Stage 2's has 4 bytes more for fp32 gradients at the step, stage 3's 2 (the real copies go by
    groups of at most 1e9 elements) and the largest layer twice over in 16 bits, gathered here.
    """
    parameters, largest, gpus, nodes, stage, offloaded, host, gpu = case
    offload = {
        "optimizer": "cpu" if "o" in offloaded else "none",
        "parameters": "cpu" if "p" in offloaded else "none",
    }
    layout = {"engine": "deepspeed", "zero_stage": stage, "offload": offload}
    report = estimate(scenario({"parameters": parameters}, gpus, nodes, layout))
    parts = report.phases["optimizer step"]
    temporary = 0.0 if offloaded else (4 if stage == 2 else 2) * parameters / (gpus * nodes)
    live = 4 * largest if stage == 3 else 0
    states = sum(parts[name] for name in STATES)
    assert (states + temporary + live) / 2**30 == pytest.approx(gpu, abs=0.011)
    if stage == 2 and not offloaded:
        assert parts["buffers"] >= temporary
    if host is not None:
        assert report.host_bytes_per_node / 2**30 == pytest.approx(host, abs=0.011)


TINY = {
    "llama": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
        "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 130, "tie_word_embeddings": False,
    },
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 48, "n_layer": 2,
        "n_head": 4, "n_positions": 32, "vocab_size": 101,
    },
    "mixtral": {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 32,
        "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
        "vocab_size": 96, "tie_word_embeddings": False,
    },
}  # fmt: skip
tiny = pytest.mark.parametrize("name", TINY)


def real_model(name: str) -> Any:
    """The tiny model as transformers builds it, with a gradient on every parameter."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = dict(TINY[name])
    model_type = config.pop("model_type")
    config.pop("architectures")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own deprecations are not under test
        made = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(model_type, **config), dtype=torch.float32
        )
    for parameter in made.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return made


def stepped_bytes(*optimizers: Any) -> int:
    """Bytes of state tensors after one step of real optimizers; scalars (step, RMS) apart."""
    total = 0
    for optimizer in optimizers:
        optimizer.step()
        for state in optimizer.state.values():
            for name, value in state.items():
                if hasattr(value, "element_size") and name not in ("step", "RMS"):
                    total += value.numel() * value.element_size()
    return total


def counted_bytes(name: str, optimizer: str) -> float:
    """The same as this package counts it."""
    tensors = Model.from_config(TINY[name]).tensors
    return sum(state_bytes(t.shape, t.part, optimizer, 4) for t in tensors)


@tiny
def test_adamw_keeps_what_torch_keeps(name: str) -> None:
    """torch.optim.AdamW: two fp32 moments of every tensor."""
    model = real_model(name)
    import torch

    real = stepped_bytes(torch.optim.AdamW(model.parameters(), lr=1e-3))
    assert counted_bytes(name, "adamw") == real


@tiny
@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd-momentum", 0.9)])
def test_sgd_keeps_what_torch_keeps(name: str, optimizer: str, momentum: float) -> None:
    """torch.optim.SGD: nothing, or one momentum buffer."""
    model = real_model(name)
    import torch

    real = stepped_bytes(torch.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum))
    assert counted_bytes(name, optimizer) == real


@tiny
def test_adafactor_keeps_what_transformers_keeps(name: str) -> None:
    """transformers' Adafactor without a first moment: row and column factors, vectors whole."""
    model = real_model(name)
    import transformers

    real = stepped_bytes(transformers.Adafactor(model.parameters(), lr=1e-3, relative_step=False))
    assert counted_bytes(name, "adafactor") == real


@tiny
def test_adafactor_keeps_what_torch_keeps(name: str) -> None:
    """torch.optim.Adafactor keeps the same factors."""
    model = real_model(name)
    import torch

    real = stepped_bytes(torch.optim.Adafactor(model.parameters()))
    assert counted_bytes(name, "adafactor") == real


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_muon_keeps_what_torch_keeps(name: str) -> None:
    """torch.optim.Muon on hidden matrices, AdamW on embeddings, head and vectors."""
    model = real_model(name)
    import torch

    parts = {t.name: t.part for t in Model.from_config(TINY[name]).tensors}
    hidden, rest = [], []
    for key, parameter in model.named_parameters():
        outer = parts[key] in ("embedding", "position", "head")
        (hidden if parameter.ndim == 2 and not outer else rest).append(parameter)
    real = stepped_bytes(torch.optim.Muon(hidden), torch.optim.AdamW(rest))
    assert counted_bytes(name, "muon") == real


def test_eight_bit_states_are_two_bytes_and_a_scale() -> None:
    """bitsandbytes: two uint8 states and an fp32 absmax a block of 256; small tensors stay fp32."""
    assert state_bytes((4096, 4096), "mlp", "adamw-8bit", 4) == 2 * (4096**2 + 4 * 4096**2 / 256)
    assert state_bytes((4095,), "norm", "adamw-8bit", 4) == 8 * 4095


SHAPES = st.lists(st.integers(1, 300), min_size=1, max_size=3).map(tuple)


@given(SHAPES, st.integers(1, 64))
def test_fsdp2_shards_are_torch_chunks(shape: tuple[int, ...], ranks: int) -> None:
    """The largest shard is the first of torch.chunk along dimension 0."""
    torch = pytest.importorskip("torch")
    first = torch.chunk(torch.empty(shape, device="meta"), ranks, dim=0)[0]
    assert sharded_shape(shape, ranks) == tuple(first.shape)


@pytest.mark.parametrize("ranks", [2, 8, 100])
def test_a_real_fsdp2_model_holds_what_rank_zero_is_said_to_hold(ranks: int) -> None:
    """fully_shard over a pretended process group: rank 0's local tensors add up to the count."""
    torch = pytest.importorskip("torch")
    model = real_model("llama")
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    laid = scenario(TINY["llama"], ranks)
    (stage,) = stages_of(laid.model, laid.layout)
    counted = stage_states(stage, laid.layout, POLICIES["mixed-16"], "adamw", ranks)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        held = sum(parameter.to_local().numel() for parameter in model.parameters())
    finally:
        torch.distributed.destroy_process_group()
    assert counted.sharded_elements == held


def one_stage(name: str, **layout: Any) -> tuple[Scenario, Stage]:
    """A catalogue model as one stage."""
    laid = scenario(name, 8, layout=layout)
    return laid, stages_of(laid.model, laid.layout)[0]


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "gpt2", "deepseek-v2-lite"])
def test_an_unsplit_stage_holds_every_parameter_once(name: str) -> None:
    """Tensor classes, units and root all add up to the model."""
    laid, stage = one_stage(name)
    assert stage.elements == laid.model.parameters
    assert sum(stage.units) + stage.root == laid.model.parameters
    assert stage.layers == laid.model.layers == len(stage.units)


@given(st.sampled_from(["llama-3-8b", "gpt2", "mixtral-8x7b", "qwen2.5-0.5b"]), st.integers(1, 12))
def test_stages_share_the_layers_out(name: str, pipeline: int) -> None:
    """Stages hold all parameters once; a tied embedding once more on the last of several."""
    model = load_model(name)
    laid = scenario(name, pipeline, layout={"pipeline_parallel": pipeline})
    stages = stages_of(model, laid.layout)
    counts = [stage.layers for stage in stages]
    assert sum(counts) == model.layers
    assert max(counts) - min(counts) <= 1
    embedding = model.parameters_by_part["embedding"]
    copied = embedding if model.tied and pipeline > 1 else 0
    assert sum(stage.elements for stage in stages) == model.parameters + copied


@given(st.integers(1, 500), st.integers(1, 64))
def test_layers_are_shared_out_evenly(layers: int, stages: int) -> None:
    """No two stages differ by more than one layer and none is lost."""
    counts = even_layers(layers, stages)
    assert (len(counts), sum(counts)) == (stages, layers)
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt2", "mixtral-8x7b", "opt-1.3b"])
@pytest.mark.parametrize("degree", [2, 4])
def test_tensor_parallel_ranks_hold_the_model_between_them(name: str, degree: int) -> None:
    """Cut tensors times the degree, and replicated ones once, are the model; padding is tiny."""
    model = load_model(name)
    cut = whole = 0
    for tensor in model.tensors:
        shape, _, _ = local_shape(tensor, degree, 1)
        elements = 1
        for size in shape:
            elements *= size
        if shape == tensor.shape:
            whole += elements
        else:
            cut += elements
    assert cut * degree + whole == pytest.approx(model.parameters, rel=1e-3)
    assert whole < 0.01 * model.parameters


def test_expert_parallelism_splits_experts_alone() -> None:
    """Mixtral over EP 8: each rank holds one expert of eight and everything else whole."""
    model = load_model("mixtral-8x7b")
    laid = scenario("mixtral-8x7b", 8, layout={"engine": "ddp", "expert_parallel": 8})
    (stage,) = stages_of(model, laid.layout)
    experts = model.parameters_by_part["experts"]
    assert stage.elements == model.parameters - experts + experts // 8


LADDER = {
    "deepspeed": [("deepspeed", 0), ("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3)],
    "torch": [("ddp", 0), ("zero-redundancy", 1), ("fsdp2", 2), ("fsdp2", 3)],
    "megatron": [("megatron", 0), ("megatron", 1)],
}
MODELS = st.sampled_from(["gpt2", "llama-3-8b", "mixtral-8x7b", "t5-small"])
OPTIMIZER_KEYS = st.sampled_from(sorted(OPTIMIZERS))
POLICY_KEYS = st.sampled_from(sorted(POLICIES))


def held(model: str, engine: str, stage: int, gpus: int, optimizer: str, precision: str) -> float:
    """Bytes of states on the fullest GPU between backward and step."""
    layout = {"engine": engine, "zero_stage": stage}
    return at_step(scenario(model, gpus, layout=layout, optimizer=optimizer, precision=precision))


@given(MODELS, st.sampled_from(sorted(LADDER)), st.integers(1, 64), OPTIMIZER_KEYS, POLICY_KEYS)
def test_a_higher_stage_never_raises_states(
    model: str, family: str, gpus: int, optimizer: str, precision: str
) -> None:
    """Within one engine family each ZeRO stage holds at most what the one below holds."""
    sizes = [held(model, *rung, gpus, optimizer, precision) for rung in LADDER[family]]
    for lower, higher in pairwise(sizes):
        assert higher <= lower * (1 + 1e-12)


@given(
    MODELS,
    st.sampled_from([rung for ladder in LADDER.values() for rung in ladder]),
    st.integers(1, 32),
    st.integers(2, 8),
    OPTIMIZER_KEYS,
    POLICY_KEYS,
)
@example("t5-small", ("zero-redundancy", 1), 3, 2, "muon", "autocast")
def test_more_gpus_never_raise_states(
    model: str, rung: tuple[str, int], gpus: int, times: int, optimizer: str, precision: str
) -> None:
    """More data-parallel ranks hold at most as much each; under DDP exactly as much."""
    few = held(model, *rung, gpus, optimizer, precision)
    many = held(model, *rung, gpus * times, optimizer, precision)
    assert many <= few * (1 + 1e-12)
    if rung[1] == 0:
        assert many == few
