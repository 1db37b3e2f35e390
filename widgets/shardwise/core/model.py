"""A model as a table of parameter tensors by module, with the totals that everything else reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from shardwise.core.hashed import hashed_once
from shardwise.core.structure import BlockShape, Module, Tensor

__all__ = ["BlockShape", "Model", "Module", "Tensor"]


@hashed_once
@dataclass(frozen=True)
class Model:
    """One model: its modules in forward order and what is known or assumed about it.

    Equal by value. `tied` says that the output head reuses the input embedding, which is counted
    once, as `named_parameters()` does. `fixed_sequence` is the number of tokens that the
    architecture fixes (ViT's patches, Whisper's encoder frames), 0 where the length is free.
    `assumptions` holds one sentence for everything that was defaulted or guessed; `known` is False
    when the architecture is not one whose tensors this package reproduces exactly.

    >>> Model.from_parameters(7e9).parameters
    7000000000
    """

    name: str
    architecture: str
    modules: tuple[Module, ...]
    hidden: int
    vocabulary: int
    max_positions: int
    tied: bool
    torch_dtype: str
    fixed_sequence: int
    assumptions: tuple[str, ...]
    known: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str = "") -> Model:
        """The model that transformers builds from this config.json.

        Raises:
            ScenarioError: the config is no model's, or a field is missing or cannot be.
        """
        from shardwise.core.architectures import build

        return build(config, name)

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "") -> Model:
        """As `from_config`, from the text or the bytes of a config.json.

        Raises:
            ScenarioError: also for text that is not one JSON object, or too long or too deep.
        """
        from shardwise.core.config_text import read_config

        return cls.from_config(read_config(text), name)

    @classmethod
    def from_parameters(cls, parameters: float | str, name: str = "") -> Model:
        """A LLaMA-like decoder of exactly this many parameters, for when only the size is known.

        Raises:
            ScenarioError: not a whole number from 1e6 to 1e14.
        """
        from shardwise.core.architectures.parameters_only import decoder_of

        return decoder_of(parameters, name)

    @cached_property
    def parameters(self) -> int:
        """All parameters; tied weights count once."""
        return sum(module.parameters for module in self.modules)

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all but the routed experts it is not sent to."""
        return sum(module.active_parameters for module in self.modules)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter tensor, in the order of `named_parameters()` within each module."""
        return tuple(tensor for module in self.modules for tensor in module.tensors)

    @cached_property
    def blocks(self) -> tuple[Module, ...]:
        """The blocks that run, in forward order, those of multi-token prediction apart."""
        running = (m for m in self.modules if m.block is not None and not m.idle)
        return tuple(m for m in running if m.block is not None and not m.block.prediction)

    @cached_property
    def idle(self) -> tuple[Module, ...]:
        """The modules that do not run (`core/pictures.py`)."""
        return tuple(module for module in self.modules if module.idle)

    @cached_property
    def prediction(self) -> tuple[Module, ...]:
        """Blocks that predict tokens further on; they stand after the last stage's others."""
        return tuple(m for m in self.modules if m.block is not None and m.block.prediction)

    @cached_property
    def layers(self) -> int:
        """How many blocks there are; encoder, decoder and vision blocks together."""
        return len(self.blocks)

    @cached_property
    def _attention_shape(self) -> BlockShape | None:
        shapes = (module.block for module in self.blocks)
        return next((shape for shape in shapes if shape is not None and shape.attention), None)

    @cached_property
    def heads(self) -> int:
        """Attention heads of the first attention block; 0 for a model without attention."""
        return self._attention_shape.heads if self._attention_shape else 0

    @cached_property
    def kv_heads(self) -> int:
        """Key-value heads of the first attention block; 0 for a model without attention."""
        return self._attention_shape.kv_heads if self._attention_shape else 0

    @cached_property
    def largest_layer(self) -> Module:
        """The largest single unit: what one rank must hold whole while FSDP gathers it."""
        return max(self.modules, key=lambda module: module.parameters)

    @cached_property
    def parameters_by_part(self) -> dict[str, int]:
        """Parameters of each part (attention, mlp, experts ...), largest first."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors:
            counts[tensor.part] += tensor.elements
        return dict(counts.most_common())

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """Lengths of its blocks' sliding windows, the shortest first."""
        return tuple(sorted({shape.sliding_window for shape, _ in self.block_groups} - {0}))

    @cached_property
    def block_groups(self) -> tuple[tuple[BlockShape, int], ...]:
        """Neighbouring blocks of one shape, run-length encoded in forward order."""
        shapes = (module.block for module in self.blocks if module.block is not None)
        return tuple((shape, sum(1 for _ in run)) for shape, run in groupby(shapes))
