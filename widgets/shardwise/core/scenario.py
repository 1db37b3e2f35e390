"""The one value that every question is asked of: model, cluster, training set-up, layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from shardwise.core.catalogue import load_model
from shardwise.core.cluster import Cluster
from shardwise.core.errors import ScenarioError
from shardwise.core.fields import section
from shardwise.core.hashed import hashed_once, once
from shardwise.core.layout import Layout
from shardwise.core.model import Model
from shardwise.core.pictures import with_pictures
from shardwise.core.prediction import with_prediction
from shardwise.core.scenario_checks import check_scenario
from shardwise.core.training import Training

_SECTIONS = ("model", "cluster", "training", "layout")
DEFAULT_MODEL = "llama-3-8b"


@hashed_once
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
        model = with_prediction(model, training.mtp_layers) if model.blocks else model
        model = with_pictures(model, training.images_per_sample)
        scenario = cls(model, cluster, training, layout.resolved(cluster.world_size), source)
        check_scenario(scenario)
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

    @property
    def data_parallel(self) -> int:
        """Replicas that each see other samples."""
        assert self.layout.data_parallel is not None
        return self.layout.data_parallel

    @property
    def shard(self) -> int:
        """Ranks that states are sharded over; 1 when nothing is sharded."""
        assert self.layout.shard is not None
        return self.layout.shard

    @once
    def micro_batches(self) -> int:
        """Micro-batches a replica and optimizer step, rounded up."""
        if self.training.global_batch is None:
            pipeline = self.layout.pipeline_parallel
            return 4 * pipeline if pipeline > 1 else 1
        per_step = self.training.micro_batch * self.data_parallel
        return -(-self.training.global_batch // per_step)

    @once
    def global_batch(self) -> int:
        """Samples an optimizer step over all ranks, as it really comes out."""
        return self.micro_batches * self.training.micro_batch * self.data_parallel

    def __repr__(self) -> str:
        """What makes an equal one, at most a screen long."""
        return f"Scenario.from_dict({self.to_dict()!r})"

    def __hash__(self) -> int:
        """Of the frozen parts; a config given as a dict is covered by the model."""
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
        try:
            text = json.dumps(source)
        except (TypeError, ValueError, RecursionError):
            return Model.from_config(dict(source))  # its own error names what it cannot read
        return _remembered(text)
    raise ScenarioError(
        "model", source, "a catalogue name, a config.json as a dict, or {'parameters': 7e9}"
    )


@lru_cache(maxsize=64)
def _remembered(text: str) -> Model:
    """One object for one config, so that caches find a model without comparing its tensors."""
    return Model.from_config(json.loads(text))


def the_scenario(value: object) -> Scenario:
    """The value itself, if it is a scenario: questions are asked of nothing else.

    Raises:
        ScenarioError: a dict, a name or anything else.
    """
    if isinstance(value, Scenario):
        return value
    raise ScenarioError("scenario", value, "a Scenario", "make one: Scenario.from_dict({...})")
