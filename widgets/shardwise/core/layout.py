"""How the ranks split the work: mesh axes, sharding engine, pipeline schedule, offload.

*Axis* is a mesh axis (data, tensor, context, expert, pipeline); their degrees multiply to the
world size, except the expert axis, which is folded into data parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.core.engines import CONTEXT_EXCHANGES, ENGINES, OFFLOADS, SCHEDULES, zero_stage
from shardwise.core.errors import ScenarioError
from shardwise.core.fields import choice, flag, section, whole
from shardwise.core.hashed import hashed_once, once
from shardwise.core.layout_checks import check_experts, check_layout

_MOST = 1_000_000


@hashed_once
@dataclass(frozen=True)
class Layout:
    """One way to lay a model over ranks.

    `data_parallel` None means: the rest of the world. `shard` is the number of ranks that states
    are sharded over (the data-parallel times the context-parallel axis unless given; smaller is
    hybrid sharding). `zero_stage`: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters.
    `reduce_bucket_elements` and `overlap_comm` are DeepSpeed's (None: its default for the stage).
    `vocabulary_parallel`: the tensor axis splits the embedding too and leaves logits split, as
    torchtitan and Megatron-LM do; without it embedding and logits are whole on every rank
    (transformers' plan; its head is split and its logits gathered).
    `expert_tensor_parallel` None means: as the tensor axis (Megatron-LM may cut experts otherwise).
    `gradient_accumulation_fusion` adds weight gradients to Megatron-LM's fp32 buffers as they are
    made; `context_exchange` is how context ranks meet: keys and values in a ring (p2p) or heads for
    sequence by all-to-all (a2a). `regather_inputs`: sequence parallelism gathers a linear layer's
    input again in backward instead of keeping it whole (None: as the model code does it).
    `float8_all_gather`: FSDP2 gathers the blocks' linear layers in fp8, half of 16 bits
    (torchtitan's `enable_fsdp_float8_all_gather`).
    `layers_per_stage` has one number a stage, or one a virtual stage in the model's order: stage i
    of p has the i-th, the (p + i)-th and so on (Megatron-LM's `--pipeline-model-parallel-layout`).
    """

    engine: str = "fsdp2"
    data_parallel: int | None = None
    shard: int | None = None
    zero_stage: int = 3
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    context_parallel: int = 1
    expert_parallel: int = 1
    pipeline_parallel: int = 1
    virtual_stages: int = 1
    schedule: str = "1f1b"
    layers_per_stage: tuple[int, ...] | None = None
    offload_optimizer: str = "none"
    offload_parameters: str = "none"
    gradient_as_bucket_view: bool = False
    reduce_bucket_elements: int = 500_000_000
    overlap_comm: bool | None = None
    vocabulary_parallel: bool = True
    expert_tensor_parallel: int | None = None
    gradient_accumulation_fusion: bool = True
    context_exchange: str = "p2p"
    regather_inputs: bool | None = None
    float8_all_gather: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether DeepSpeed reduces gradients during backward: by default in stage 3 alone."""
        return self.zero_stage == 3 if self.overlap_comm is None else self.overlap_comm

    @property
    def model_parallel(self) -> int:
        """Ranks that one replica's samples pass through: tensor x context x pipeline."""
        return self.tensor_parallel * self.context_parallel * self.pipeline_parallel

    @property
    def expert_tensor(self) -> int:
        """Ranks that one routed expert's matrices are cut over."""
        return self.expert_tensor_parallel or self.tensor_parallel

    @property
    def vocabulary_ranks(self) -> int:
        """Ranks that the embedding's rows are cut over."""
        return self.tensor_parallel if self.vocabulary_parallel else 1

    @once
    def process_groups(self) -> int:
        """Process groups that one rank of a resolved layout communicates in: one an axis.

        Gradients are reduced over data x context; hybrid sharding splits that into two. DeepSpeed's
        pipelines add the world (barriers) and all ranks of a replica, for norms and overflows
        (deepspeed/runtime/pipe/topology.py, `ds_model_proc_group`).
        """
        group = (self.data_parallel or 1) * self.context_parallel
        degrees = (
            group,
            self.tensor_parallel,
            self.context_parallel,
            self.expert_parallel,
            self.pipeline_parallel,
        )
        hybrid = 1 < (self.shard or 1) < group
        pipelines = 2 if self.engine == "deepspeed" and self.pipeline_parallel > 1 else 0
        return sum(degree > 1 for degree in degrees) + hybrid + pipelines

    @property
    def reshard_after_forward(self) -> bool:
        """Whether gathered parameters are freed after forward (ZeRO-3)."""
        return self.zero_stage == 3

    def resolved(self, world_size: int) -> Layout:
        """This layout with `data_parallel` and `shard` filled in for a world.

        Raises:
            ScenarioError: degrees that do not multiply to the world size, or a shard count that
                does not divide its group.
        """
        rest, left_over = divmod(world_size, self.model_parallel)
        product = f"tensor {self.tensor_parallel} x context {self.context_parallel} x pipeline "
        product += f"{self.pipeline_parallel} = {self.model_parallel}"
        if left_over or rest == 0:
            raise ScenarioError(
                "layout", product, f"a product that divides the {world_size} GPUs of the cluster"
            )
        data_parallel = rest if self.data_parallel is None else self.data_parallel
        if data_parallel != rest:
            raise ScenarioError(
                "layout.data_parallel",
                data_parallel,
                f"{rest}: {product}, times data parallel must be the {world_size} GPUs",
                "leave it out to have it filled in",
            )
        group = data_parallel * self.context_parallel
        shard = self.shard if self.shard is not None else (group if self.zero_stage else 1)
        if group % shard:
            raise ScenarioError("layout.shard", shard, f"a divisor of data x context = {group}")
        check_experts(self, group)
        if (data_parallel, shard) == (self.data_parallel, self.shard):
            return self  # caches find the same object at once
        return replace(self, data_parallel=data_parallel, shard=shard)

    @classmethod
    def from_dict(cls, value: object) -> Layout:
        """A layout from its dict; missing keys take the defaults above.

        Raises:
            ScenarioError: an unknown key, a value not allowed, or an engine that has no such
                ZeRO stage.
        """
        given = section(value, "layout", _KEYS)
        engine = choice(given.get("engine", "fsdp2"), "layout.engine", ENGINES)
        offload = section(given.get("offload", {}), "layout.offload", ("optimizer", "parameters"))
        pipeline = _degree(given, "pipeline_parallel")
        layout = cls(
            engine=engine,
            data_parallel=_optional(given, "data_parallel"),
            shard=_optional(given, "shard"),
            zero_stage=zero_stage(given, engine),
            tensor_parallel=_degree(given, "tensor_parallel"),
            sequence_parallel=_flag(given, "sequence_parallel", False),
            context_parallel=_degree(given, "context_parallel"),
            expert_parallel=_degree(given, "expert_parallel"),
            pipeline_parallel=pipeline,
            virtual_stages=_degree(given, "virtual_stages"),
            schedule=_choice(given, "schedule", "1f1b", SCHEDULES),
            layers_per_stage=_layers(given, pipeline),
            offload_optimizer=_offload(offload, "optimizer"),
            offload_parameters=_offload(offload, "parameters"),
            gradient_as_bucket_view=_flag(given, "gradient_as_bucket_view", False),
            reduce_bucket_elements=_whole(given, "reduce_bucket_elements", 500_000_000, 10**12),
            overlap_comm=_undecided(given, "overlap_comm"),
            vocabulary_parallel=_flag(given, "vocabulary_parallel", True),
            expert_tensor_parallel=_optional(given, "expert_tensor_parallel"),
            gradient_accumulation_fusion=_flag(given, "gradient_accumulation_fusion", True),
            regather_inputs=_undecided(given, "regather_inputs"),
            float8_all_gather=_flag(given, "float8_all_gather", False),
            context_exchange=_choice(given, "context_exchange", "p2p", CONTEXT_EXCHANGES),
        )
        check_layout(layout)
        return layout

    def to_dict(self) -> dict[str, object]:
        """The dict that `from_dict` reads back to an equal value."""
        plain = (key for key in _KEYS if key not in ("offload", "layers_per_stage"))
        values: dict[str, object] = {key: getattr(self, key) for key in plain}
        layers = self.layers_per_stage
        values["layers_per_stage"] = None if layers is None else list(layers)
        values["offload"] = {
            "optimizer": self.offload_optimizer,
            "parameters": self.offload_parameters,
        }
        return values


_KEYS = (
    *(k for k in Layout.__dataclass_fields__ if not k.startswith("offload_")),
    "reshard_after_forward",
    "offload",
)


def _whole(given: Mapping[str, object], key: str, default: int, most: int) -> int:
    return whole(given.get(key, default), f"layout.{key}", 1, most)


def _degree(given: Mapping[str, object], key: str) -> int:
    return _whole(given, key, 1, _MOST)


def _optional(given: Mapping[str, object], key: str) -> int | None:
    return None if given.get(key) is None else whole(given[key], f"layout.{key}", 1, _MOST)


def _flag(given: Mapping[str, object], key: str, default: bool) -> bool:
    return flag(given.get(key, default), f"layout.{key}")


def _undecided(given: Mapping[str, object], key: str) -> bool | None:
    return None if given.get(key) is None else flag(given[key], f"layout.{key}")


def _choice(given: Mapping[str, object], key: str, default: str, allowed: tuple[str, ...]) -> str:
    return choice(given.get(key, default), f"layout.{key}", allowed)


def _offload(given: Mapping[str, object], key: str) -> str:
    return choice(given.get(key, "none"), f"layout.offload.{key}", OFFLOADS)


def _layers(given: Mapping[str, object], pipeline: int) -> tuple[int, ...] | None:
    field, value = "layout.layers_per_stage", given.get("layers_per_stage")
    if value is None:
        return None
    chunks = pipeline * _degree(given, "virtual_stages")
    if not isinstance(value, (list, tuple)) or len(value) not in (pipeline, chunks):
        allowed = f"a list of {pipeline} whole numbers, one a stage"
        more = f", or of {chunks}, one a virtual stage" if chunks > pipeline else ""
        raise ScenarioError(field, value, allowed + more)
    return tuple(whole(v, f"{field}[{i}]", 0, 100_000) for i, v in enumerate(value))
