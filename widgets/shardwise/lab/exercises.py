"""The exercises of the lessons: what an answer must have, lesson by lesson.

Expected values come from theory in its exact form or from the model's own tensors, never from a
stored solution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shardwise.lab.checks import Property, at_most, exact, exercise


@exercise("L01.ring")
def ring(answer: Sequence[Mapping[str, Any] | None]) -> Iterable[Property]:
    """A ring all-reduce on every rank: the sum, 2(N-1) messages, 2(N-1)/N of the tensor's bytes."""
    world = len(answer)
    numbers, factor = 12_000, sum(range(1, world + 1))
    for rank, each in enumerate(answer):
        if each is None:
            yield exact(f"rank {rank} sends", None, "something", "use dist.isend and dist.recv")
            continue
        right = [float(value) for value in each["sum"]] == [
            float(i * factor) for i in range(numbers)
        ]
        hint = "add in the first world - 1 steps, replace in the others"
        yield exact(f"rank {rank} has the sum", right, True, hint)
        messages = 2 * (world - 1)
        yield exact(f"rank {rank} sends 2(N-1) messages", each["messages"], messages)
        size = messages * numbers * 4 // world
        yield exact(f"rank {rank} sends 2(N-1)/N of the bytes", each["bytes"], size, unit="B")


@exercise("L02.wider")
def wider(answer: Sequence[Mapping[str, int] | None]) -> Iterable[Property]:
    """Byte counts of a GPT-2 of width 128, from the tensors its config.json makes."""
    from shardwise.core.model import Model
    from shardwise.lab.lesson_scenario import CONFIG

    parameters = Model.from_config(dict(CONFIG, n_embd=128)).parameters
    got = answer[0] or {}
    hint = "build TinyGPT(wider) and add up its tensors"
    yield exact("parameters", got.get("parameters"), 4 * parameters, hint, "B")
    yield exact("gradients", got.get("gradients"), 4 * parameters, "one a parameter, in fp32", "B")
    state = got.get("optimizer state") or 0
    off = abs(state - 8 * parameters)
    name = "optimizer state, off from 8 bytes a parameter"
    yield at_most(name, off, 4 * 100, "AdamW keeps two", "B")


@exercise("L04.uneven")
def uneven(answer: Sequence[float]) -> Iterable[Property]:
    """The gradient of unequal shares equals the large batch's."""
    for rank, error in enumerate(answer):
        hint = "multiply by your share of the sequences before the sum, and do not divide after"
        yield at_most(f"rank {rank}: difference to the large batch", error, 1e-5, hint)


@exercise("L05.traffic")
def traffic(answer: Sequence[Callable[[float, int], float | None]]) -> Iterable[Property]:
    """Bytes a rank sends: DDP's all-reduce, and reduce-scatter plus all-gather."""
    names = ("DDP", "ZeRO-2")
    hints = ("a ring all-reduce (lesson 1)", "two halves of a ring all-reduce")
    for name, function, hint in zip(names, answer, hints, strict=True):
        for size, ranks in ((1000, 2), (3 * 10**9, 8), (640, 64)):
            got = function(size, ranks)
            expected = 2 * (ranks - 1) * size / ranks
            off = float("nan") if got is None else abs(got - expected)
            title = f"{name}, {size:,} bytes over {ranks} ranks, off by"
            yield at_most(title, off, 1e-6 * size, hint, "B")


@exercise("L06.wrap")
def wrap(answer: Sequence[Mapping[str, int]]) -> Iterable[Property]:
    """A wrapping of eight layers within a budget of memory and of all-gathers."""
    layer = 256 * 256 * 4
    got = answer[0]
    yield exact(
        "parameters a rank holds", got["parameters"], 8 * 256 * 256 // 4, "shard every layer"
    )
    hint = "smaller units: less is gathered at a time"
    yield at_most("bytes a step adds", got["on_top"], 12 * layer, hint, "B")
    yield at_most("all-gathers", got["gathers"], 10, "larger units: fewer are gathered")


@exercise("L08.plan")
def plan(answer: Sequence[Mapping[str, float] | None]) -> Iterable[Property]:
    """A transformer layer over 2 ranks: half of it each, two all-reduces, one process's result."""
    for rank, each in enumerate(answer):
        got = each or {}
        half = (4 * 64 * 64 + 2 * 64 * 256) // 2
        hint = "query, key and value by columns, out by rows"
        yield exact(f"rank {rank} holds", got.get("parameters"), half, hint, "parameters")
        hint = "one for attention, one for the MLP"
        yield exact(f"rank {rank}: all-reduces forward", got.get("all_reduces"), 2, hint)
        error = got.get("error", float("nan"))
        yield at_most(f"rank {rank}: off from one process", error, 1e-5)


@exercise("L09.micro_batches")
def micro_batches(answer: Mapping[int, int | None]) -> Iterable[Property]:
    """The fewest micro-batches that keep the idle share (p-1)/(m+p-1) below 0.2."""
    for stages in (4, 16):
        # (p-1)/(m+p-1) < 1/5  <=>  m > 4(p-1)
        fewest = 4 * (stages - 1) + 1
        hint = "solve (p-1)/(m+p-1) < 0.2 for m"
        yield exact(f"{stages} stages", answer[stages], fewest, hint)


@exercise("L10.order")
def order(answer: Mapping[int, Sequence[str]]) -> Iterable[Property]:
    """1F1B for 3 stages and 5 micro-batches, played out: complete, in time, few alive."""
    from shardwise.lab.orders import play

    work = sorted(f"{kind}{number}" for kind in "FB" for number in range(5))
    for stage in range(3):
        title = f"stage {stage} has every forward and backward once"
        yield exact(title, sorted(answer[stage]), work)
    played = play([answer[stage] for stage in range(3)])
    hint = "each stage waits for work that comes later in another's order"
    yield exact("it comes to an end", played.stuck, (), hint)
    yield exact("it takes (m+p-1) x 3 units", played.units, (5 + 3 - 1) * 3, "no idle time inside")
    for stage, live in enumerate(played.live):
        hint = "as soon as a backward can run, it goes before the next forward"
        yield exact(f"stage {stage}: micro-batches alive", live, 3 - stage, hint)


@exercise("L11.placement")
def placement(answer: Mapping[str, Any]) -> Iterable[Property]:
    """The axis order with the fewest bytes between nodes, of all six, and its bytes."""
    from itertools import permutations

    from shardwise.lab.placements import crossing_bytes

    sizes = {"pipeline": 4, "data": 4, "tensor": 4}
    sent = {"pipeline": 2 * 10**9, "data": 3 * 10**9, "tensor": 40 * 10**9}
    every = {axes: crossing_bytes(axes, sizes, sent, node=8) for axes in permutations(sizes)}
    axes = tuple(answer["axes"])
    right = axes in every and every[axes] == min(every.values())
    hint = "neighbors in rank are the last axis: who sends the most?"
    yield Property("no order sends less between nodes", right, "the best order", str(axes), hint)
    hint = "a member sends to the next of its group, the last one to the first"
    yield exact("its bytes between nodes", answer["crossing"], every.get(axes), hint, "B")


@exercise("L12.mesh")
def mesh(answer: Sequence[Mapping[str, float] | None]) -> Iterable[Property]:
    """4 x 2 over 4,096 parameters: an eighth each, and the gradients of one process."""
    for rank, each in enumerate(answer):
        got = each or {}
        hint = "FSDP over 4 of the half that tensor parallelism leaves"
        yield exact(f"rank {rank} holds", got.get("parameters"), 4_096 // 8, hint, "parameters")
        error = got.get("error", float("nan"))
        yield at_most(f"rank {rank}: gradient error", error, 1e-5, "a quarter of the batch each")


@exercise("L13.cases")
def cases(answer: Mapping[int, tuple[str, int | None]]) -> Iterable[Property]:
    """The root causes of four failing programs, found by running them."""
    from shardwise.lab.ranks import run

    lines = {
        1: "if rank == 3: x = torch.ones(8)",
        2: "if rank == 1: raise KeyError('labels')",
        3: "if rank == 2: os.kill(os.getpid(), 9)",
        4: "if rank == 0: time.sleep(60)",
    }
    start = "import os, time, torch\nimport torch.distributed as dist\nx = torch.ones(4)\n"
    for number, line in lines.items():
        program = f"{start}{line}\ndist.all_reduce(x)"
        result = run(
            program, 4, collective_timeout=2, allow_failure=True, device="cpu", progress=False
        )
        cause = result.cause
        found = (cause.kind, cause.ranks[0]) if cause is not None else ("none", None)
        right = tuple(answer[number]) == found
        hint = "which rank went wrong by itself, before the others noticed?"
        # The right answer is what the exercise asks for, so it is not given away here.
        yield Property(f"case {number}", right, "the root cause", str(answer[number]), hint)


@exercise("L07.json")
def json_file(answer: Sequence[Mapping[str, float] | None]) -> Iterable[Property]:
    """A DeepSpeed configuration as its engine realized it: shares, batch, one process's weights."""
    from shardwise.core.model import Model
    from shardwise.lab.lesson_scenario import CONFIG

    share = Model.from_config(CONFIG).parameters // 4
    for rank, each in enumerate(answer):
        got = each or {}
        hint = "stage 3 keeps parameters below stage3_param_persistence_threshold whole"
        yield exact(f"rank {rank} holds parameters", got.get("parameters"), share, hint)
        hint = "2 a micro-batch, 4 ranks: how many micro-batches make 16?"
        yield exact(f"rank {rank}: sequences a step", got.get("sequences"), 16, hint)
        yield exact(f"rank {rank}: updates", got.get("updates"), 1, hint)
        error = got.get("error", float("nan"))
        hint = "gradient_clipping has a default of its own"
        yield at_most(f"rank {rank}: difference to one process", error, 1e-5, hint)


@exercise("L03.budget")
def budget(answer: Sequence[Mapping[str, int] | None]) -> Iterable[Property]:
    """Saved activations within two million bytes, with the fewest layers computed twice."""
    got = answer[0] or {}
    hint = "checkpoint one more layer"
    yield at_most("bytes kept for backward", got.get("bytes", float("nan")), 2_000_000, hint, "B")
    # 4.6 MB plain, about 1 MB a layer, whose 65,536-byte input stays: two layers leave 2.6 MB.
    hint = "4 layers forward and each checkpointed one again; is there one too many?"
    yield exact("layers computed", got.get("layers_run"), 4 + 3, hint)
    yield exact("parameters with a gradient", got.get("gradients"), 52, "run the backward pass")
