"""Pipeline stages: which modules a stage holds, and its tensors as one rank of it sees them.

A model has a thousand tensors but a dozen different shapes, so each stage keeps (shape, part, cut)
with a count, and everything below sums over those.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby

from shardwise.core.adapters import split
from shardwise.core.hashed import hashed_once
from shardwise.core.layout import Layout
from shardwise.core.memory.idle import counted, frozen_classes, with_idle
from shardwise.core.memory.tensor_classes import Degrees, TensorClass, degrees_of, local_shape
from shardwise.core.model import BlockShape, Model, Module
from shardwise.core.trainable import ALL, Trainable


@hashed_once
@dataclass(frozen=True)
class Stage:
    """One pipeline stage: its blocks in runs of one shape, its tensors, and its two ends.

    `units` are the blocks' parameters, `root` those of embedding, final norm and head together;
    `late` of them get their gradients before any block does: norm and head after the blocks, and an
    embedding that is the head too (`tied` elements). All of these count trained tensors only: what
    has no gradients is in `frozen`, and by unit in `frozen_units` and `frozen_root`. `idle` tensors
    are in no unit that runs; `frozen` has them too, or `tensors` for optimizers with flat states.
    """

    index: int
    blocks: tuple[tuple[BlockShape, int], ...]
    tensors: tuple[TensorClass, ...]
    units: tuple[int, ...]
    root: int
    has_embedding: bool
    has_head: bool
    unit_tensors: tuple[tuple[TensorClass, ...], ...] = ()
    root_tensors: tuple[TensorClass, ...] = ()
    late: int = 0
    tied: int = 0
    frozen: tuple[TensorClass, ...] = ()
    frozen_units: tuple[tuple[TensorClass, ...], ...] = ()
    frozen_root: tuple[TensorClass, ...] = ()
    idle: tuple[TensorClass, ...] = ()

    def __hash__(self) -> int:
        """Of what tells stages apart; the caches of states are keyed by them."""
        return hash((self.index, self.blocks, self.tensors, self.units, self.root))

    @property
    def layers(self) -> int:
        """Blocks on this stage."""
        return sum(count for _, count in self.blocks)

    @property
    def elements(self) -> int:
        """Trained parameters that one rank of this stage holds when nothing is sharded."""
        return sum(tensor.elements for tensor in self.tensors)

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """Trained and frozen elements of each block, the root's last."""
        frozen = [sum(t.elements for t in unit) for unit in (*self.frozen_units, self.frozen_root)]
        trained = (*self.units, self.root)
        return tuple(map(sum, zip(trained, frozen, strict=True))) if frozen[:-1] else trained


def even_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers a stage, as even as it goes; the first stages take the remainder.

    >>> even_layers(10, 4)
    (3, 3, 2, 2)
    """
    each, rest = divmod(layers, stages)
    return tuple(each + (1 if index < rest else 0) for index in range(stages))


def stages_of(model: Model, layout: Layout, trainable: Trainable = ALL) -> tuple[Stage, ...]:
    """The stages of a model under a layout's pipeline, tensor and expert degrees.

    Embedding on the first, head and final norm on the last. With tied weights and more than one
    stage the last one holds a copy of the embedding, as in Megatron-LM
    (megatron/core/models/gpt/gpt_model.py, `share_embeddings_and_output_weights`).
    """
    return _stages(
        model,
        layout.pipeline_parallel,
        layout.layers_per_stage,
        degrees_of(layout),
        trainable,
        layout.engine,
    )


@lru_cache(maxsize=512)
def _stages(
    model: Model,
    pipeline: int,
    layers_per_stage: tuple[int, ...] | None,
    degrees: Degrees,
    trainable: Trainable,
    engine: str,
) -> tuple[Stage, ...]:
    counts = layers_per_stage or even_layers(model.layers, pipeline)
    before, after = _ends(model)
    stages = []
    for index, own in enumerate(_parted(_alike(model), counts, pipeline)):
        first, last = index == 0, index == pipeline - 1
        ends = (before if first else ()) + (after if last else ())
        own += model.prediction if last else ()
        tables = tuple(m for m in before if m.kind == "embedding") if last and not first else ()
        behind = len(after) if last else 0
        if model.prediction:  # it embeds the next tokens itself
            ends = tables + ends
        elif model.tied:
            # A copy that is the head alone: its gradient is one product's, before all blocks'.
            ends += tables[:1]
            behind += len(tables[:1])
        trains = "embedding" not in trainable.frozen and not trainable.rank
        shared = last and (first or bool(model.prediction)) and model.tied and trains
        tied = _table(model, before) // degrees[3] if shared else 0
        stage = _stage(index, own, ends, (first, last), behind, tied, degrees)
        if not trainable.everything or not all(t.read for module in ends for t in module.tensors):
            stage = _with_frozen(stage, own, ends, behind, model, trainable, degrees)
        stages.append(with_idle(stage, model, trainable, degrees, engine) if first else stage)
    return tuple(stages)


def _table(model: Model, before: tuple[Module, ...]) -> int:
    """Elements of the words' table, which may be narrower than the blocks (OPT-350m, ELECTRA)."""
    tables = (t for module in before for t in module.tensors if t.part == "embedding")
    return next((t.elements for t in tables if t.shape[0] == model.vocabulary), 0)


@lru_cache(maxsize=64)
def _alike(model: Model) -> tuple[Module, ...]:
    """The blocks, each replaced by the first one with the same tensors: 80 layers, few objects."""
    first: dict[object, Module] = {}
    return tuple(
        first.setdefault(
            (block.block, tuple((t.shape, t.part, t.tensor_parallel) for t in block.tensors)), block
        )
        for block in model.blocks
    )


def _parted(
    blocks: tuple[Module, ...], counts: tuple[int, ...], pipeline: int
) -> list[tuple[Module, ...]]:
    """The blocks of each stage; with a count a virtual stage, of every p-th of those."""
    found: list[tuple[Module, ...]] = [()] * pipeline
    start = 0
    for chunk, count in enumerate(counts):
        found[chunk % pipeline] += blocks[start : start + count]
        start += count
    return found


def _ends(model: Model) -> tuple[tuple[Module, ...], tuple[Module, ...]]:
    """Modules before and after the last block; what stands between blocks counts as before."""
    own = {id(module) for module in model.blocks}
    last = max((i for i, m in enumerate(model.modules) if id(m) in own), default=-1)
    before = tuple(m for m in model.modules[: last + 1] if m.block is None and not m.idle)
    return before, tuple(m for m in model.modules[last + 1 :] if m.block is None)


def _stage(
    index: int,
    own: tuple[Module, ...],
    ends: tuple[Module, ...],
    position: tuple[bool, bool],
    after: int,
    tied: int,
    degrees: Degrees,
) -> Stage:
    first, last = position
    counted: Counter[tuple[tuple[int, ...], str, bool]] = Counter()
    units: list[int] = []
    inside: list[tuple[TensorClass, ...]] = []
    for module, count in [*_runs(own), *((module, 1) for module in ends)]:
        locals_ = tuple(local_shape(parameter, *degrees) for parameter in module.tensors)
        for local in locals_:
            counted[local] += count
        units += [sum(math.prod(local[0]) for local in locals_)] * count
        inside += [tuple(TensorClass(*local, 1) for local in locals_)] * count
    shapes = [module.block for module in own if module.block is not None]
    return Stage(
        index=index,
        blocks=tuple((shape, sum(1 for _ in run)) for shape, run in groupby(shapes)),
        tensors=tuple(TensorClass(*key, count) for key, count in counted.items()),
        units=tuple(units[: len(own)]),
        root=sum(units[len(own) :]),
        has_embedding=first,
        has_head=last,
        unit_tensors=tuple(inside[: len(own)]),
        root_tensors=sum(inside[len(own) :], ()),
        late=sum(units[len(units) - after :]) + tied,
        tied=tied,
    )


def _with_frozen(
    whole: Stage,
    own: tuple[Module, ...],
    ends: tuple[Module, ...],
    after: int,
    model: Model,
    trainable: Trainable,
    degrees: Degrees,
) -> Stage:
    """The stage with its tensors parted into trained and frozen ones."""
    parted = {id(module): split(module, model, trainable) for module in (*own, *ends)}
    trained, blocks = {}, {}
    for key, parts in parted.items():
        trained[key], blocks[key] = parts.trained, parts.frozen
    stage = _stage(
        whole.index,
        tuple(trained[id(module)] for module in own),
        tuple(trained[id(module)] for module in ends),
        (whole.has_embedding, whole.has_head),
        after,
        whole.tied,
        degrees,
    )
    stored = {key: frozen_classes(block, trainable, degrees) for key, block in blocks.items()}
    units = tuple(stored[id(module)] for module in own)
    root = sum((stored[id(module)] for module in ends), ())
    frozen = counted(sum((*units, root), ()))
    return replace(stage, frozen=frozen, frozen_units=units, frozen_root=root)


def _runs(modules: tuple[Module, ...]) -> list[tuple[Module, int]]:
    """Neighbouring blocks that are the same object, with how many they are."""
    runs: list[tuple[Module, int]] = []
    for module in modules:
        if runs and runs[-1][0] is module:
            runs[-1] = (module, runs[-1][1] + 1)
        else:
            runs.append((module, 1))
    return runs
