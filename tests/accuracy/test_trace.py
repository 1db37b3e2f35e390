"""The tracer against hand counts, real CPU memory, and torch's own memory trackers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from measured import model_of, real_ranks, replicated_bytes, second_step_bytes, sharded_bytes  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from shardwise.core.errors import ScenarioError  # noqa: E402
from shardwise.lab.trace import TraceReport, trace  # noqa: E402

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1021,
    "tie_word_embeddings": False,
}
# The loss, the optimizer's step counters and alike: a few scalars that a profile starts or ends in.
SCALARS_BYTES = 64


def exact(config: object = LLAMA, **settings: Any) -> TraceReport:
    """A trace without allocator rounding."""
    return trace(config, **({"block_bytes": 1} | settings))


def two_layers() -> nn.Module:
    """Linear(8, 32), ReLU, Linear(32, 4), no biases: 384 parameters."""
    return nn.Sequential(nn.Linear(8, 32, False), nn.ReLU(), nn.Linear(32, 4, False))


def small(**settings: Any) -> TraceReport:
    """The two layers on a batch of 16 rows in fp32 without an engine."""
    options: dict[str, Any] = {"engine": "none", "world": 1, "precision": "fp32", "block_bytes": 1}
    return trace(two_layers, batch=lambda: torch.zeros(16, 8), **(options | settings))


def test_hand_counted_module() -> None:
    """Parameters, gradients, AdamW states and saved tensors are those of a count by hand."""
    report = small()
    parameters, input_bytes, steps = 384 * 4, 16 * 8 * 4, 2 * 4
    ends = report.phase_ends
    assert report.parameters == 384
    assert ends["init"]["sharded parameters"] == parameters
    assert ends["gradients"]["gradients"] == parameters
    assert ends["gradients"]["optimizer state"] == 2 * parameters + steps
    assert report.steady_bytes == 3 * parameters + steps + input_bytes
    # ReLU keeps its output, which is also the second layer's input; the first keeps the batch.
    assert report.saved_bytes == 16 * 32 * 4 + input_bytes
    # foreach: one temporary as large as all parameters.
    assert report.phases["optimizer"]["temporaries"] == parameters


def test_optimizer_temporaries_by_implementation() -> None:
    """Fused AdamW needs none, the loop two of the largest parameter, SGD's foreach none."""
    largest = 8 * 32 * 4
    fused = small(optimizer_implementation="fused")
    assert fused.phases["optimizer"]["temporaries"] == 0
    loop = small(optimizer_implementation="for-loop")
    assert largest <= loop.phases["optimizer"]["temporaries"] <= 2 * largest + SCALARS_BYTES
    assert small(optimizer="sgd").phases["optimizer"]["temporaries"] == 0


def test_rounding_to_blocks() -> None:
    """Each storage counts in whole 512 B blocks when asked for."""
    report = small(block_bytes=512)
    assert report.phase_ends["init"]["sharded parameters"] == 1024 + 512
    assert all(value % 512 == 0 for parts in report.phases.values() for value in parts.values())


@pytest.mark.parametrize("implementation", ["foreach", "for-loop", "fused"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_peak_equals_real_memory(implementation: str, precision: str) -> None:
    """One process: the peak of a step is what torch's profiler measures in real CPU memory."""
    report = exact(
        engine="none",
        world=1,
        precision=precision,
        optimizer_implementation=implementation,
        sequence_length=256,
        micro_batch=2,
        attention="eager",
    )
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    measured = second_step_bytes(model_of(LLAMA, dtype), (2, 256), implementation)
    assert abs(report.peak_bytes - report.steady_bytes - measured) <= SCALARS_BYTES


@pytest.mark.parametrize(
    ("world", "rank", "reshard", "sequence"),
    [
        (2, 0, True, 256),
        (2, 1, False, 256),
        (3, 2, False, 64),
        (64, 63, True, 64),
        (200, 199, True, 64),
    ],
)
def test_fsdp2_peak_equals_real_memory(world: int, rank: int, reshard: bool, sequence: int) -> None:
    """FSDP2 on any rank, uneven shards too: the peak is what real CPU memory shows."""
    report = exact(
        world=world,
        rank=rank,
        reshard_after_forward=reshard,
        sequence_length=sequence,
        micro_batch=2,
        attention="eager",
    )
    measured = sharded_bytes(LLAMA, (2, sequence), world, rank, reshard)
    assert abs(report.peak_bytes - report.steady_bytes - measured) <= SCALARS_BYTES


@pytest.mark.parametrize("sequence", [16, 256])
def test_ddp_peak_equals_real_memory(tmp_path: Path, sequence: int) -> None:
    """DDP with its buckets: the peak is what real CPU memory shows."""
    report = exact(
        engine="ddp", precision="fp32", sequence_length=sequence, micro_batch=2, attention="eager"
    )
    measured = replicated_bytes(tmp_path, LLAMA, (2, sequence))
    assert abs(report.peak_bytes - report.steady_bytes - measured) <= SCALARS_BYTES


def test_peak_equals_torch_mem_tracker() -> None:
    """On one process torch's MemTracker finds the same peak, to its counting of scalars."""
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        model = model_of(LLAMA, torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tokens = torch.zeros(2, 128, dtype=torch.int64)
        labels = torch.zeros_like(tokens)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, tokens, labels)
        with tracker:
            for _ in range(2):
                model(input_ids=tokens, labels=labels).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                tracker.reset_mod_stats()
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    ours = exact(
        engine="none", world=1, precision="fp32", attention="eager",
        sequence_length=128, micro_batch=2,
    )  # fmt: skip
    assert ours.peak_bytes == pytest.approx(theirs, rel=2e-4)


def test_peak_equals_torch_fsdp_mem_tracker() -> None:
    """With FSDP2 torch's FSDPMemTracker agrees where it is right: AdamW as a loop."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with real_ranks(8, 0):
        mesh = init_device_mesh("cpu", (8,))
        with FakeTensorMode():
            model = model_of(LLAMA, torch.float32)
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh, mp_policy=policy)
            fully_shard(model, mesh=mesh, mp_policy=policy)
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            tokens = torch.zeros(2, 128, dtype=torch.int64)
            tracker = FSDPMemTracker(model, optimizer)
            labels = torch.zeros_like(tokens)
            tracker.track_inputs((tokens, labels))
            with tracker:
                for _ in range(2):
                    model(input_ids=tokens, labels=labels).loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    tracker.reset_mod_stats()
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    ours = exact(
        world=8, attention="eager", sequence_length=128, micro_batch=2,
        optimizer_implementation="for-loop",
    )  # fmt: skip
    assert ours.peak_bytes == pytest.approx(theirs, rel=2e-3)


def _bytes_after(report: TraceReport, part: str) -> int:
    return report.phase_ends["gradients"][part]


def test_whole_experts_on_some_ranks() -> None:
    """8 experts over 64 ranks: rank 0 keeps states of a whole expert, rank 63 of none."""
    config = {
        "model_type": "mixtral",
        **{k: v for k, v in LLAMA.items() if k != "model_type"},
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    first = exact(config, world=64, rank=0, sequence_length=64)
    last = exact(config, world=64, rank=63, sequence_length=64)
    expert_rows = 3 * (3 * 352 * 128) * 4  # layers, gate and up and down of one expert, fp32
    difference = _bytes_after(first, "optimizer state") - _bytes_after(last, "optimizer state")
    assert difference >= 2 * expert_rows
    # Parameters are padded to one row on every rank.
    assert _bytes_after(first, "sharded parameters") == _bytes_after(last, "sharded parameters")


def test_optimizer_state_is_sharded_with_foreach() -> None:
    """States of DTensors count at their local size (torch's own tracker counts the global one)."""
    report = exact(world=8, sequence_length=64)
    assert report.phase_ends["gradients"]["optimizer state"] < 2.1 * 4 * report.parameters / 8


def test_gathered_parameters_come_and_go() -> None:
    """FSDP2 frees a layer after its forward by resizing its storage, and keeps the root."""
    report = exact(world=8, sequence_length=64)
    kept = exact(world=8, sequence_length=64, reshard_after_forward=False)
    root = (2 * 1021 + 1) * 128 * 2  # embedding and head and final norm in bf16
    padded_root = (2 * 1024 + 8) * 128 * 2
    at_end = report.phase_ends["loss"]["gathered parameters"]
    assert root <= at_end <= padded_root
    assert kept.phase_ends["loss"]["gathered parameters"] > at_end + 3 * 2 * 100_000
    assert report.phase_ends["backward"]["gathered parameters"] == 0


def test_ddp_buckets_hold_one_more_copy_of_gradients() -> None:
    """DDP's buckets take as many bytes as the gradients and live from wrapping on."""
    report = exact(engine="ddp", precision="fp32", sequence_length=64)
    assert report.phase_ends["init"]["collective buffers"] == 4 * report.parameters
    assert report.phase_ends["gradients"]["gradients"] == 4 * report.parameters


def test_second_micro_batch_carries_gradients() -> None:
    """Under accumulation the second forward runs with the first one's sharded gradients alive."""
    report = exact(world=8, sequence_length=64, micro_batches=2)
    assert report.phases["forward"]["gradients"] == 0
    assert report.phases["forward 2"]["gradients"] > 4 * report.parameters // 8


def test_full_checkpointing_keeps_layer_inputs() -> None:
    """With all layers checkpointed, forward leaves a hidden state a layer and the head's part."""
    report = exact(world=8, sequence_length=256, activation_checkpointing="full")
    tokens, hidden, vocabulary, head = 256, 128, 1021, 32
    outside = tokens * (20 + 8 * hidden + 4 * vocabulary) + 2 * 2 * tokens * head
    inputs = 3 * tokens * hidden * 2
    kept = report.phase_ends["loss"]["activations"]
    assert kept == pytest.approx(outside + inputs, rel=0.03)


@pytest.mark.parametrize("kind", ["full", "selective", {"every": 2}])
def test_checkpointing_saves_memory(kind: object) -> None:
    """Each kind ends forward with fewer activation bytes than none."""
    none = exact(world=8, sequence_length=512)
    some = exact(world=8, sequence_length=512, activation_checkpointing=kind)
    assert some.phase_ends["loss"]["activations"] < none.phase_ends["loss"]["activations"]


@pytest.mark.parametrize(("batch", "sequence"), [(1, 128), (2, 96), (3, 256)])
def test_llama_layer_formula(batch: int, sequence: int) -> None:
    """The table's formula for a llama-like model gives the saved bytes exactly."""
    report = exact(world=8, sequence_length=sequence, micro_batch=batch)
    h, f, a, kv, d, vocabulary = 128, 352, 4, 2, 32, 1021
    tokens = batch * sequence
    layer = tokens * (16 * h + 8 + 4 * kv * d + 4 * a * d + 4 * a + 8 * f) + 24
    # One label more than tokens: the storage of the padded labels.
    outside = tokens * (8 * h + 4 + 4 * vocabulary + 16) + sequence * 4 * d + 4
    labels = report.saved_bytes - 3 * layer - outside
    assert 0 <= labels <= 8 * batch


def test_attention_kernels_are_named() -> None:
    """The report says which kernel ran; eager attention has its scores saved."""
    assert set(exact(sequence_length=64).attention_ran) == {"sdpa flash"}
    assert set(exact(sequence_length=64, attention="math").attention_ran) == {"sdpa math"}
    eager = exact(sequence_length=64, attention="eager")
    assert set(eager.attention_ran) == set()
    assert any(row.shape[-2:] == (64, 64) for row in eager.saved_by_module)


def test_tensor_parallel_splits_linear_layers() -> None:
    """Two ranks of the tensor axis hold half of every planned weight, all of the others."""
    whole = exact(engine="none", world=1, precision="bf16", sequence_length=64)
    halved = exact(engine="none", world=2, tensor_parallel=2, precision="bf16", sequence_length=64)
    split = 3 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 352 * 128)
    head = 1021 * 128
    rest = whole.parameters - split - head
    expected = 2 * (split // 2 + rest) + 2 * 511 * 128
    assert halved.phase_ends["init"]["sharded parameters"] == expected


def test_autocast_caches_cast_weights_through_forward() -> None:
    """Under autocast the bf16 copies of the weights are activations until backward drops them."""
    report = exact(engine="ddp", precision="autocast", sequence_length=48)
    weights = 3 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 352 * 128) + 1021 * 128
    rows = [row for row in report.saved_by_module if row.operator == "aten._to_copy.default"]
    cast = sum(row.total_bytes for row in rows if 48 not in row.shape and row.dtype == "bfloat16")
    assert cast == 2 * weights


def test_tied_embeddings_count_once() -> None:
    """A model that ties head and embedding has one matrix of them, sharded and gathered."""
    tied = exact(LLAMA | {"tie_word_embeddings": True}, sequence_length=64)
    untied = exact(sequence_length=64)
    assert untied.parameters - tied.parameters == 1021 * 128
    shards = [r.phase_ends["init"]["sharded parameters"] for r in (untied, tied)]
    assert shards[0] - shards[1] == 4 * 128 * 128  # 1021 rows over 8 ranks: 128 each, fp32


def test_dropout_saves_a_mask_of_one_byte() -> None:
    """GPT-2's residual dropout saves a bool mask, as CUDA's native_dropout does."""
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 512}
    rows = exact(config, sequence_length=32).saved_by_module
    masks = [row for row in rows if row.dtype == "bool"]
    assert masks
    assert all(row.each_bytes == 32 * 64 for row in masks)


def test_peak_is_the_sum_of_what_was_alive() -> None:
    """The list of storages at the peak adds up to the peak, and phases never exceed it."""
    report = exact(world=8, sequence_length=128)
    assert sum(row.total_bytes for row in report.alive_at_peak) == report.peak_bytes
    assert sum(report.peak_parts.values()) == report.peak_bytes
    assert max(sum(parts.values()) for parts in report.phases.values()) == report.peak_bytes


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("engine", {"engine": "zero"}),
        ("precision", {"engine": "ddp", "precision": "fsdp-mixed"}),
        ("world", {"world": 0}),
        ("rank", {"rank": 8}),
        ("tensor_parallel", {"tensor_parallel": 3}),
        ("tensor_parallel", {"tensor_parallel": 8}),
        ("activation_checkpointing", {"activation_checkpointing": {"every": 0}}),
        ("attention", {"attention": "flash-4"}),
    ],
)
def test_settings_that_cannot_run_are_named(field: str, settings: dict[str, Any]) -> None:
    """Bad settings raise one sentence that names the field and what is allowed."""
    with pytest.raises(ScenarioError) as error:
        exact(**settings)
    assert error.value.field == field


def test_nothing_is_left_behind() -> None:
    """After a trace no process group lives and torch's functions are its own again."""
    before = (torch.UntypedStorage.resize_, nn.functional.dropout, nn.functional.layer_norm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact(sequence_length=64)
    assert not torch.distributed.is_initialized()
    assert before == (torch.UntypedStorage.resize_, nn.functional.dropout, nn.functional.layer_norm)


UNTIED: dict[str, Any] = {**LLAMA, "vocab_size": 1024}


@pytest.mark.parametrize("by_sequence", [False, True])
def test_a_split_vocabulary_leaves_a_part_of_everything(by_sequence: bool) -> None:
    """torchtitan's plan: each of two ranks holds half of all matrices and all of the norms."""
    report = exact(
        UNTIED,
        engine="none",
        world=2,
        tensor_parallel=2,
        precision="bf16",
        sequence_length=64,
        vocabulary_parallel=True,
        sequence_parallel=by_sequence,
    )
    norms = (2 * 3 + 1) * 128
    held = (report.parameters - norms) / 2 + norms
    assert report.phase_ends["init"]["sharded parameters"] == 2 * held


def test_sequence_parallelism_saves_less_than_the_plan_without() -> None:
    """Norms and what stands between the products are parts of the sequence."""
    options: dict[str, Any] = {
        "engine": "none", "world": 2, "tensor_parallel": 2, "precision": "bf16",
        "sequence_length": 64, "vocabulary_parallel": True,
    }  # fmt: skip
    split = exact(UNTIED, **options, sequence_parallel=True)
    assert split.saved_bytes < exact(UNTIED, **options).saved_bytes


def test_replicas_hold_the_shards_of_their_group() -> None:
    """Hybrid sharding over 2 x 4 ranks holds what 4 ranks hold."""
    hybrid, plain = exact(world=8, replicate=2), exact(world=4)
    part = "sharded parameters"
    assert hybrid.phase_ends["init"][part] == plain.phase_ends["init"][part]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"sequence_parallel": True, "tensor_parallel": 2}, "sequence_parallel"),
        ({"vocabulary_parallel": True}, "vocabulary_parallel"),
        ({"replicate": 3}, "replicate"),
        ({"replicate": 2, "engine": "ddp", "precision": "bf16"}, "replicate"),
    ],
)
def test_axes_that_cannot_be_are_refused(settings: dict[str, Any], field: str) -> None:
    """A plan without a tensor axis, or replicas that do not divide the ranks."""
    with pytest.raises(ScenarioError) as refused:
        exact(**settings)
    assert refused.value.field == field
