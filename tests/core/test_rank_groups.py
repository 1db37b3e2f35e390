"""What each rank holds, against real torch and DeepSpeed objects, and which ranks bind."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.core.memory import estimate
from shardwise.core.memory.ranks import RankGroup, binding_sentence
from shardwise.core.memory.report import MemoryReport
from shardwise.core.memory.shares import rows_of
from shardwise.core.memory.stages import stages_of
from shardwise.core.memory.states import stage_states
from shardwise.core.memory.tensor_classes import TensorClass
from shardwise.core.precision import POLICIES
from shardwise.core.scenario import Scenario

MIXTRAL = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 32,
    "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    "vocab_size": 97, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 48, "n_layer": 2,
    "n_head": 4, "n_positions": 32, "vocab_size": 101,
}  # fmt: skip


def report(
    model: object, gpus: int, nodes: int = 1, layout: object = None, **training: Any
) -> MemoryReport:
    """An estimate on `nodes` nodes of `gpus` cards."""
    return estimate(
        Scenario.from_dict(
            {
                "model": model,
                "cluster": {"gpus_per_node": gpus, "nodes": nodes},
                "training": {"precision": "fp32", **training},
                "layout": layout or {},
            }
        )
    )


def group_of(found: MemoryReport, shard: int) -> RankGroup:
    """The group that a shard of the first stage belongs to."""
    return next(g for g in found.ranks if g.shards[0] <= shard <= g.shards[1] and not g.stage)


SHAPES = st.lists(st.integers(1, 300), min_size=1, max_size=3).map(tuple)


@given(SHAPES, st.integers(1, 64))
@settings(deadline=None)
def test_rows_are_torch_chunks_on_every_rank(shape: tuple[int, ...], ranks: int) -> None:
    """FSDP2's own `_chunk_with_empty`: the rows of each rank, and of the first for the storage."""
    torch = pytest.importorskip("torch")
    from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

    laid = report(GPT2, ranks, layout={"engine": "fsdp2"}).scenario
    rows, stored = rows_of(TensorClass(shape, "mlp", False, 1), laid, 0)
    chunks = _chunk_with_empty(torch.empty(shape, device="meta"), ranks, dim=0)
    held = [chunk.shape[0] if chunk.numel() else 0 for chunk in chunks]
    assert rows.tolist() == held
    assert set(stored.tolist()) == {held[0]}


def held_by(config: dict[str, Any], ranks: int, rank: int) -> tuple[int, int]:
    """(bytes of parameter storages, bytes of AdamW's moments) of a real FSDP2 model's rank."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    own = {key: value for key, value in config.items() if key != "architectures"}
    made = transformers.AutoConfig.for_model(own.pop("model_type"), **own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own deprecations are not under test
        model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    layers = model.model.layers if hasattr(model, "model") else model.transformer.h
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer = torch.optim.AdamW(parameters, foreach=False)
        optimizer.step()
        stored = sum(p._local_tensor.untyped_storage().nbytes() for p in parameters)
        moments = sum(
            4 * optimizer.state[p][name].to_local().numel()
            for p in parameters
            for name in ("exp_avg", "exp_avg_sq")
        )
    finally:
        torch.distributed.destroy_process_group()
    return stored, moments


@pytest.mark.parametrize("config", [MIXTRAL, GPT2], ids=lambda config: config["model_type"])
@pytest.mark.parametrize("ranks", [3, 6, 100])
def test_a_real_fsdp2_model_holds_as_much_on_first_middle_and_last_rank(
    config: dict[str, Any], ranks: int
) -> None:
    """Storage of parameters is the same on every rank, moments have the rank's own rows alone."""
    found = report(config, ranks, layout={"engine": "fsdp2"})
    for rank in (0, ranks // 2, ranks - 1):
        states = group_of(found, rank).states
        assert (states["parameters"], states["optimizer state"]) == held_by(config, ranks, rank)


@pytest.mark.parametrize("ranks", [3, 8, 100])
def test_deepspeeds_stage_3_pads_each_tensor(ranks: int) -> None:
    """Its own `_aligned_size` over the ranks is every rank's share of every tensor."""
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero.partition_parameters import Init

    laid = report(GPT2, ranks, layout={"engine": "deepspeed", "zero_stage": 3}).scenario
    (stage,) = stages_of(laid.model, laid.layout)
    init = SimpleNamespace(_partition_world_size=lambda parameter: ranks)
    init._padding_size = lambda parameter: Init._padding_size(init, parameter)
    whole = padding = 0
    for tensor in stage.tensors:
        parameter = SimpleNamespace(ds_numel=math.prod(tensor.shape))
        aligned = Init._aligned_size(init, parameter)
        whole += tensor.count * aligned // ranks
        padding += tensor.count * (aligned - parameter.ds_numel)
    counted = stage_states(stage, laid.layout, POLICIES["mixed-16"], "adamw", ranks)
    assert counted.sharded_elements == whole
    (group,) = estimate(laid).ranks
    assert group.ranks == ranks
    assert (f"{padding:,} weights" in group.why) == bool(padding)


@pytest.mark.parametrize("ranks", [3, 8, 100])
def test_flat_parameters_are_padded_as_fsdp1_pads_them(ranks: int) -> None:
    """torch's own `_get_shard`: as long on every rank, zeros at the end of the last ones."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that FSDP1 is deprecated
        from torch.distributed.fsdp._flat_param import FlatParamHandle
    found = report(GPT2, ranks, layout={"engine": "fsdp1"})
    (stage,) = stages_of(found.scenario.model, found.scenario.layout)
    padding = 0
    for unit in (*stage.units, stage.root):
        flat = torch.empty(unit, device="meta")
        shards = [FlatParamHandle._get_shard(flat, rank, ranks) for rank in range(ranks)]
        assert {shard.numel() for shard, _ in shards} == {-(-unit // ranks)}
        padding += sum(padded for _, padded in shards)
    (group,) = found.ranks
    assert (f"{padding:,} weights" in group.why) == bool(padding)


def test_eight_experts_over_64_ranks_leave_eight_full_and_56_without() -> None:
    """Mixtral: moments of experts on eight ranks alone, 42 GiB that the others do not have."""
    found = report("mixtral-8x7b", 8, 8, {"engine": "fsdp2"}, precision="fsdp-mixed")
    full, rest = found.ranks
    assert (full.ranks, full.shards, rest.ranks, rest.shards) == (8, (0, 7), 56, (8, 63))
    tensors = found.scenario.model.tensors  # the router's matrix has eight rows as well
    experts = sum(t.elements for t in tensors if t.part in ("experts", "router"))
    assert full.states["optimizer state"] - rest.states["optimizer state"] == 8 * experts / 8
    assert full.states["parameters"] == rest.states["parameters"]
    assert full.peak_bytes == found.peak_bytes > rest.peak_bytes + 40 * 2**30
    said = binding_sentence(found)
    assert said.startswith("8 ranks of 64 bind")
    assert "no rows of 96 (too few to go round) of 291 tensors" in said


@pytest.mark.parametrize("engine", ["ddp", "fsdp1", "fsdp2", "deepspeed", "megatron", "nanotron"])
def test_one_group_where_all_ranks_are_alike(engine: str) -> None:
    """Llama-3-8B's rows divide by eight."""
    found = report("llama-3-8b", 8, layout={"engine": engine}, precision="mixed-16")
    (group,) = found.ranks
    assert group.ranks == 8
    assert group.peak_bytes == found.peak_bytes
    assert binding_sentence(found).startswith("All 8 ranks alike")


def test_stages_have_groups_of_their_own() -> None:
    """Embedding on the first, head on the last, fewer micro-batches in flight behind."""
    layout = {"engine": "megatron", "pipeline_parallel": 4, "tensor_parallel": 8}
    found = report("llama-3-70b", 8, 4, layout, precision="mixed-fp32-grads")
    assert [group.stage for group in found.ranks] == [0, 1, 2, 3]
    assert [group.peak_bytes for group in found.ranks] == [s.peak_bytes for s in found.stages]
    assert "stage 0 (20 layers, embedding; 4 micro-batches in flight)" in binding_sentence(found)


def test_replicas_of_shards_count_as_ranks() -> None:
    """Hybrid sharding: the same shards several times over."""
    found = report("gpt2", 8, 8, {"engine": "fsdp2", "shard": 16}, precision="fsdp-mixed")
    assert sum(group.ranks for group in found.ranks) == 64
    assert {group.shards[1] for group in found.ranks} == {14, 15}


ENGINES = st.sampled_from(["ddp", "zero-redundancy", "fsdp1", "fsdp2", "deepspeed", "megatron"])


@settings(max_examples=60, deadline=None)
@given(
    ENGINES,
    st.sampled_from(["gpt2", "mixtral-8x7b", "qwen2.5-0.5b"]),
    st.integers(1, 8),
    st.integers(1, 40),
    st.sampled_from(["adamw", "sgd", "sgd-momentum", "adafactor", "adamw-8bit", "muon"]),
    st.sampled_from(["none", "cpu"]),
)
def test_groups_cover_the_world_and_the_fullest_is_the_reports(
    engine: str, model: str, gpus: int, nodes: int, optimizer: str, offload: str
) -> None:
    """Every rank is in one group, none needs more than the report says, and one needs that."""
    layout = {"engine": engine}
    if engine not in ("ddp", "zero-redundancy"):
        layout["offload"] = {"optimizer": offload}  # type: ignore[assignment]
    found = report(model, gpus, nodes, layout, precision="fsdp-mixed", optimizer=optimizer)
    assert sum(group.ranks for group in found.ranks) == gpus * nodes
    assert max(group.peak_bytes for group in found.ranks) == found.peak_bytes
    assert all(size >= 0 for group in found.ranks for size in group.states.values())
    text = binding_sentence(found)
    assert text.endswith(".") and "nan" not in text
