"""How the ranks split the work: mesh axes, sharding engine, pipeline schedule, offload.

*Axis* is a mesh axis (data, tensor, context, expert, pipeline); their degrees multiply to the
world size, except the expert axis, which is folded into data parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.core.errors import ScenarioError
from shardwise.core.fields import choice, flag, section, whole

ENGINES = ("ddp", "zero-redundancy", "fsdp1", "fsdp2", "deepspeed", "megatron", "nanotron")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
OFFLOADS = ("none", "cpu", "nvme")
CONTEXT_EXCHANGES = ("p2p", "a2a")
ZERO_STAGES: Mapping[str, tuple[int, ...]] = {
    "ddp": (0,),
    "zero-redundancy": (1,),
    "fsdp1": (2, 3),
    "fsdp2": (2, 3),
    "deepspeed": (0, 1, 2, 3),
    "megatron": (0, 1),
    "nanotron": (0, 1),
}
_MOST = 1_000_000


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

    @property
    def process_groups(self) -> int:
        """Process groups that one rank of a resolved layout communicates in: one an axis.

        Gradients are reduced over data x context; hybrid sharding splits that into two.
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
        return sum(degree > 1 for degree in degrees) + hybrid

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
        self._check_experts(group)
        return replace(self, data_parallel=data_parallel, shard=shard)

    def _check_experts(self, group: int) -> None:
        """Refuse expert degrees that do not fold into data x context (x tensor) ranks."""
        if self.expert_tensor_parallel is None:
            if group % self.expert_parallel:
                raise ScenarioError(
                    "layout.expert_parallel",
                    self.expert_parallel,
                    f"a divisor of data x context = {group}: expert parallelism is folded into it",
                )
            return
        ranks = group * self.tensor_parallel
        if ranks % (self.expert_parallel * self.expert_tensor_parallel):
            raise ScenarioError(
                "layout.expert_tensor_parallel",
                self.expert_tensor_parallel,
                f"a degree that divides data x context x tensor = {ranks} together with "
                f"expert_parallel {self.expert_parallel}",
            )

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
            zero_stage=_zero_stage(given, engine),
            tensor_parallel=_degree(given, "tensor_parallel"),
            sequence_parallel=_flag(given, "sequence_parallel"),
            context_parallel=_degree(given, "context_parallel"),
            expert_parallel=_degree(given, "expert_parallel"),
            pipeline_parallel=pipeline,
            virtual_stages=_degree(given, "virtual_stages"),
            schedule=choice(given.get("schedule", "1f1b"), "layout.schedule", SCHEDULES),
            layers_per_stage=_layers(given.get("layers_per_stage"), pipeline),
            offload_optimizer=_offload(offload, "optimizer"),
            offload_parameters=_offload(offload, "parameters"),
            gradient_as_bucket_view=_flag(given, "gradient_as_bucket_view"),
            reduce_bucket_elements=whole(
                given.get("reduce_bucket_elements", 500_000_000),
                "layout.reduce_bucket_elements",
                1,
                10**12,
            ),
            overlap_comm=None
            if given.get("overlap_comm") is None
            else flag(given["overlap_comm"], "layout.overlap_comm"),
            vocabulary_parallel=flag(
                given.get("vocabulary_parallel", True), "layout.vocabulary_parallel"
            ),
            expert_tensor_parallel=_optional(given, "expert_tensor_parallel"),
            gradient_accumulation_fusion=flag(
                given.get("gradient_accumulation_fusion", True),
                "layout.gradient_accumulation_fusion",
            ),
            regather_inputs=None
            if given.get("regather_inputs") is None
            else _flag(given, "regather_inputs"),
            context_exchange=choice(
                given.get("context_exchange", "p2p"), "layout.context_exchange", CONTEXT_EXCHANGES
            ),
        )
        layout._check()
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

    def _check(self) -> None:
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ScenarioError("layout.sequence_parallel", True, "False when tensor_parallel is 1")
        if self.schedule == "interleaved" and self.virtual_stages < 2:
            raise ScenarioError(
                "layout.virtual_stages",
                self.virtual_stages,
                "2 or more with the interleaved schedule",
            )
        if self.virtual_stages > 1 and self.schedule != "interleaved":
            raise ScenarioError(
                "layout.schedule", self.schedule, "interleaved when virtual_stages is over 1"
            )
        if self.virtual_stages > 1 and self.pipeline_parallel == 1:
            raise ScenarioError(
                "layout.virtual_stages", self.virtual_stages, "1 without pipeline parallelism"
            )
        if self.offload_parameters != "none" and self.zero_stage != 3:
            raise ScenarioError(
                "layout.offload.parameters",
                self.offload_parameters,
                "none unless zero_stage is 3",
                "only sharded parameters can be offloaded",
            )
        if self.offload_optimizer != "none" and (self.engine, self.zero_stage) == ("deepspeed", 0):
            raise ScenarioError(
                "layout.offload.optimizer",
                self.offload_optimizer,
                "none with zero_stage 0",
                "offloading is part of ZeRO: take stage 1, 2 or 3",
            )
        if self.offload_optimizer != "none" and self.engine in ("ddp", "zero-redundancy"):
            raise ScenarioError(
                "layout.offload.optimizer",
                self.offload_optimizer,
                f"none with engine {self.engine}",
                "choose deepspeed, fsdp2, fsdp1 or megatron",
            )


_KEYS = (
    *(k for k in Layout.__dataclass_fields__ if not k.startswith("offload_")),
    "reshard_after_forward",
    "offload",
)


def _degree(given: Mapping[str, object], key: str) -> int:
    return whole(given.get(key, 1), f"layout.{key}", 1, _MOST)


def _optional(given: Mapping[str, object], key: str) -> int | None:
    return None if given.get(key) is None else whole(given[key], f"layout.{key}", 1, _MOST)


def _flag(given: Mapping[str, object], key: str) -> bool:
    return flag(given.get(key, False), f"layout.{key}")


def _offload(given: Mapping[str, object], key: str) -> str:
    return choice(given.get(key, "none"), f"layout.offload.{key}", OFFLOADS)


def _zero_stage(given: Mapping[str, object], engine: str) -> int:
    """The stage asked for; for FSDP, `reshard_after_forward` says 3 (True) or 2 (False)."""
    allowed = ZERO_STAGES[engine]
    reshard = given.get("reshard_after_forward")
    if reshard is not None and engine in ("fsdp1", "fsdp2"):
        from_reshard = 3 if flag(reshard, "layout.reshard_after_forward") else 2
        if given.get("zero_stage") not in (None, from_reshard):
            raise ScenarioError(
                "layout.reshard_after_forward",
                reshard,
                f"{given['zero_stage'] == 3} with zero_stage {given['zero_stage']}",
                "give one of the two",
            )
        return from_reshard
    stage = whole(given.get("zero_stage", allowed[-1]), "layout.zero_stage", 0, 3)
    if stage not in allowed:
        listed = " or ".join(str(s) for s in allowed)
        raise ScenarioError("layout.zero_stage", stage, f"{listed} with engine {engine}")
    if reshard is not None and flag(reshard, "layout.reshard_after_forward") != (stage == 3):
        raise ScenarioError(
            "layout.reshard_after_forward", reshard, f"{stage == 3} with zero_stage {stage}"
        )
    return stage


def _layers(value: object, pipeline: int) -> tuple[int, ...] | None:
    field = "layout.layers_per_stage"
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or len(value) != pipeline:
        raise ScenarioError(field, value, f"a list of {pipeline} whole numbers, one a stage")
    return tuple(whole(v, f"{field}[{i}]", 0, 100_000) for i, v in enumerate(value))
