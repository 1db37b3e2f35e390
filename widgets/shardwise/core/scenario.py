"""The one value that every question is asked of: model, cluster, training set-up, layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from shardwise.core.adapters import check_trainable
from shardwise.core.catalogue import load_model
from shardwise.core.cluster import Cluster
from shardwise.core.errors import ScenarioError
from shardwise.core.fields import section
from shardwise.core.layout import Layout
from shardwise.core.model import Model
from shardwise.core.training import Training

_SECTIONS = ("model", "cluster", "training", "layout")
DEFAULT_MODEL = "llama-3-8b"


@dataclass(frozen=True)
class Scenario:
    """A model to train, the GPUs at hand, how it is trained and how it is laid over them.

    `layout` is always resolved: its degrees multiply to the cluster's world size.
    `model_source` is what `to_dict` gives back for the model: a catalogue name, a config or a
    parameter count.
    """

    model: Model
    cluster: Cluster
    training: Training
    layout: Layout
    model_source: object

    @classmethod
    def from_dict(cls, value: Mapping[str, object]) -> Scenario:
        """A scenario from plain values; missing keys take stated defaults.

        Raises:
            ScenarioError: an unknown key (the nearest is named), a value that is not allowed, or
                a combination that cannot be (degrees that do not divide heads, layers or GPUs).

        >>> Scenario.from_dict({"model": {"parameters": 7e9}}).model.parameters
        7000000000
        """
        given = section(value, "scenario", _SECTIONS)
        source = _copied(given.get("model", DEFAULT_MODEL))
        cluster = given.get("cluster", {})
        if not isinstance(cluster, Mapping):
            raise ScenarioError("cluster", cluster, "a dict of gpu, gpus_per_node, nodes, ...")
        model = model_from(source)
        if not model.known and isinstance(source, Mapping) and set(source) == {"parameters"}:
            source = {"parameters": model.parameters}  # one spelling of 7e9, "7B" and 7000000000
        return cls.of(
            model,
            Cluster.from_dict(cluster),
            Training.from_dict(given.get("training", {})),
            Layout.from_dict(given.get("layout", {})),
            source,
        )

    @classmethod
    def of(
        cls, model: Model, cluster: Cluster, training: Training, layout: Layout, source: object
    ) -> Scenario:
        """A scenario of parts already made: the layout is resolved and the whole is checked."""
        scenario = cls(model, cluster, training, layout.resolved(cluster.world_size), source)
        check_precision(scenario)
        check_divisors(scenario)
        check_pipeline(scenario)
        check_frozen(scenario)
        return scenario

    def with_layout(self, layout: Layout, training: Training | None = None) -> Scenario:
        """The same question with another layout (and training set-up)."""
        training = training or self.training
        return Scenario.of(self.model, self.cluster, training, layout, self.model_source)

    def with_training(self, training: Training) -> Scenario:
        """The same layout with another training set-up."""
        return self.with_layout(self.layout, training)

    def to_dict(self) -> dict[str, object]:
        """Plain values that `from_dict` reads back to an equal scenario."""
        return {
            "model": _copied(self.model_source),
            "cluster": self.cluster.to_dict(),
            "training": self.training.to_dict(),
            "layout": self.layout.to_dict(),
        }

    @cached_property
    def data_parallel(self) -> int:
        """Replicas that each see other samples."""
        assert self.layout.data_parallel is not None
        return self.layout.data_parallel

    @cached_property
    def shard(self) -> int:
        """Ranks that states are sharded over; 1 when nothing is sharded."""
        assert self.layout.shard is not None
        return self.layout.shard

    @cached_property
    def micro_batches(self) -> int:
        """Micro-batches a replica and optimizer step, rounded up."""
        if self.training.global_batch is None:
            pipeline = self.layout.pipeline_parallel
            return 4 * pipeline if pipeline > 1 else 1
        per_step = self.training.micro_batch * self.data_parallel
        return -(-self.training.global_batch // per_step)

    @cached_property
    def global_batch(self) -> int:
        """Samples an optimizer step over all ranks, as it really comes out."""
        return self.micro_batches * self.training.micro_batch * self.data_parallel

    def __repr__(self) -> str:
        """What makes an equal one, at most a screen long."""
        return f"Scenario.from_dict({self.to_dict()!r})"

    def __hash__(self) -> int:
        """Hashes the frozen parts once; a config given as a dict is covered by the model."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.model, self.cluster, self.training, self.layout))


def _copied(source: object) -> object:
    """A config's own copy, so that nobody changes a scenario from outside; it must be JSON."""
    if not isinstance(source, Mapping) or set(source) == {"parameters"}:
        return source
    try:
        return json.loads(json.dumps(source, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise ScenarioError(
            "model", source, "a config of what JSON can hold: no NaN, no bytes, no objects"
        ) from None


def model_from(source: object) -> Model:
    """A model from a catalogue name, a config.json as a dict, or {"parameters": 7e9}.

    Raises:
        ScenarioError: none of these, or a config that cannot be read.
    """
    if isinstance(source, str):
        return load_model(source)
    if isinstance(source, Mapping):
        if set(source) == {"parameters"}:
            return Model.from_parameters(source["parameters"])
        return Model.from_config(dict(source))
    raise ScenarioError(
        "model", source, "a catalogue name, a config.json as a dict, or {'parameters': 7e9}"
    )


def check_precision(scenario: Scenario) -> None:
    """Refuse bf16 on cards without it; `16-bit` policies quietly mean fp16 there.

    Raises:
        ScenarioError: a policy names bf16 and the card's compute units have none.
    """
    precision, gpu = scenario.training.precision, scenario.cluster.gpu
    named = (precision.parameters, precision.compute, precision.gradients)
    if "bf16" in named and not gpu.bf16:
        raise ScenarioError(
            "training.precision",
            precision.key,
            f"a policy without bf16: {gpu.name} has none (it needs compute capability 8.0)",
            "choose mixed-16, which is fp16 with loss scaling on this card",
        )


def check_divisors(scenario: Scenario) -> None:
    """Refuse degrees that do not divide what they split.

    Raises:
        ScenarioError: tensor parallelism that does not divide the heads, expert parallelism that
            does not divide the experts, context parallelism that does not divide the sequence.
    """
    model, layout = scenario.model, scenario.layout
    tensor = layout.tensor_parallel
    if tensor > 1 and not divides_heads(model, tensor):
        allowed = "1: the model has no attention heads to split"
        if model.heads:
            allowed = f"a divisor of the {model.heads} heads that fits the {model.kv_heads} "
            allowed += "key-value heads"
        raise ScenarioError("layout.tensor_parallel", tensor, allowed)
    experts = max((shape.experts for shape, _ in model.block_groups), default=0)
    expert = layout.expert_parallel
    if expert > 1 and (experts == 0 or experts % expert):
        allowed = f"a divisor of the {experts} experts" if experts else "1: the model has none"
        raise ScenarioError("layout.expert_parallel", expert, allowed)
    cross = layout.context_parallel
    if scenario.training.sequence_length % cross:
        raise ScenarioError(
            "layout.context_parallel",
            cross,
            f"a divisor of the sequence length {scenario.training.sequence_length}",
        )


def divides_heads(model: Model, degree: int) -> bool:
    """Whether a tensor-parallel degree splits the heads evenly.

    Key-value heads are split evenly, or each is held by the same number of ranks.
    """
    shapes = [shape for shape, _ in model.block_groups if shape.attention]
    return bool(shapes) and all(
        shape.heads % degree == 0
        and (shape.kv_heads % degree == 0 or degree % max(1, shape.kv_heads) == 0)
        for shape in shapes
    )


def check_frozen(scenario: Scenario) -> None:
    """Refuse adapters that the model has no place for and sharding that cannot cut a base.

    DeepSpeed's ZeRO-3 partitions parameters itself and takes no bitsandbytes tensors
    (transformers/modeling_utils.py refuses the pair); FSDP cuts 4-bit weights through a storage
    type (`bnb_4bit_quant_storage`), which LLM.int8 does not have.

    Raises:
        ScenarioError: unknown targets, nothing left to train, or such a pair.
    """
    trainable, layout = scenario.training.trainable, scenario.layout
    if trainable.everything:
        return
    check_trainable(scenario.model, trainable)
    shards = layout.engine in ("fsdp1", "fsdp2") or layout.zero_stage == 3
    if not trainable.quantized or not shards or scenario.shard == 1:
        return
    if layout.engine == "deepspeed" or trainable.base == "int8":
        raise ScenarioError(
            "training.trainable.lora.base",
            trainable.base,
            f"a base that {'ZeRO-3' if layout.engine == 'deepspeed' else 'FSDP'} can cut: "
            "16-bit, fp32" + ("" if layout.engine == "deepspeed" else ", nf4"),
            "replicate the quantized base (DDP, ZeRO-1, ZeRO-2), or shard NF4 with fsdp2",
        )


def check_pipeline(scenario: Scenario) -> None:
    """Refuse pipelines with fewer layers or micro-batches than stages.

    Raises:
        ScenarioError: too few blocks, a layers_per_stage that does not add up, or a number of
            micro-batches that the schedule cannot run (torchtitan and Megatron-LM refuse it too).
    """
    layout, layers = scenario.layout, scenario.model.layers
    pipeline, chunks = layout.pipeline_parallel, layout.virtual_stages
    if layout.layers_per_stage is not None and sum(layout.layers_per_stage) != layers:
        raise ScenarioError(
            "layout.layers_per_stage",
            list(layout.layers_per_stage),
            f"numbers that add up to the {layers} layers",
        )
    if pipeline == 1:
        return
    if pipeline > layers:
        raise ScenarioError("layout.pipeline_parallel", pipeline, f"at most the {layers} layers")
    if pipeline * chunks > layers:
        raise ScenarioError(
            "layout.virtual_stages",
            chunks,
            f"at most {layers // pipeline}: {pipeline} stages share {layers} layers",
        )
    step = pipeline * scenario.training.micro_batch * scenario.data_parallel
    if scenario.micro_batches < pipeline:
        raise ScenarioError(
            "training.global_batch",
            scenario.training.global_batch,
            f"at least {step}, so that {pipeline} stages get as many micro-batches",
            "raise the global batch or lower the pipeline degree",
        )
    if layout.schedule == "interleaved" and scenario.micro_batches % pipeline:
        raise ScenarioError(
            "training.global_batch",
            scenario.training.global_batch,
            f"a multiple of {step}: the interleaved schedule takes micro-batches in groups of "
            f"{pipeline}, one a stage",
        )
