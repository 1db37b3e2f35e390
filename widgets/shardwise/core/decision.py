"""The decision: five questions in order, and the least machinery that answers one with yes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from shardwise.core import advice
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.states import bytes_per_parameter
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import (
    STRATEGIES,
    layout_for,
    split_degrees,
    tensor_degrees,
)
from shardwise.core.training import Training

QUESTIONS = (
    ("Does a whole replica fit on one GPU, with activations and a reasonable batch?", ("ddp",)),
    ("Does it fit once the optimizer state is sharded?", ("zero-1", "zero-2")),
    ("Does it fit once parameters and gradients are sharded too?", ("zero-3",)),
    (
        "Does every layer fit, with the optimizer offloaded or the layer split inside a node?",
        ("offload", "tensor"),
    ),
    ("Does the whole fit when its layers are spread over pipeline stages?", ("pipeline", "3d")),
)
"""The five questions, each with the strategies that it tries, in order."""

EXHAUSTED = {
    "ddp": "throughput",
    "zero-1": "optimizer state",
    "zero-2": "optimizer state",
    "zero-3": "parameters",
    "offload": "optimizer state",
    "tensor": "single layer",
    "pipeline": "whole model",
    "3d": "whole model",
    "none": "whole model",
}


@dataclass(frozen=True)
class Attempt:
    """One strategy tried: the scenario laid out so, what it needs, whether it fits and why."""

    strategy: str
    scenario: Scenario
    needed_bytes: float
    available_bytes: float
    fits: bool
    adjustments: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Question:
    """One of the five: `verdict` is yes, no or not asked; bytes are one GPU's.

    `needed_bytes` is the device figure of the best attempt, `available_bytes` what the card has.
    """

    question: str
    needed_bytes: float
    available_bytes: float
    verdict: str
    why: str
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True)
class Decision:
    """The least complicated strategy that fits, and the resource that ran out.

    `strategy` is a key of `STRATEGIES` or `none`; `exhausted` one of throughput, activations,
    optimizer state, parameters, single layer, whole model; `scenario` the question with the
    chosen layout (and the adjusted batch or checkpointing, listed in `adjustments`).
    """

    strategy: str
    exhausted: str
    scenario: Scenario
    questions: tuple[Question, ...]
    adjustments: tuple[str, ...]
    headline: str
    next_step: str
    notes: tuple[str, ...]


@lru_cache(maxsize=128)
def decide(scenario: Scenario) -> Decision:
    """Walk the five questions and stop at the first strategy that fits.

    A strategy fits when the upper end of its band is within what the card can give (and, with
    offload, the host's memory is enough). Before a heavier rung is tried, a smaller micro-batch and
    activation checkpointing are.

    >>> from shardwise.core.scenario import Scenario
    >>> cluster = {"gpu": "a100-sxm-80gb", "nodes": 1}
    >>> decide(Scenario.from_dict({"model": {"parameters": 7e9}, "cluster": cluster})).exhausted
    'optimizer state'
    """
    questions: list[Question] = []
    chosen: Attempt | None = None
    for text, strategies in QUESTIONS:
        if chosen is not None:
            available = scenario.cluster.gpu.usable_bytes
            questions.append(Question(text, 0, available, "not asked", "A lighter step works."))
            continue
        attempts = []
        for strategy in strategies:
            attempt = _attempt(scenario, strategy)
            if attempt is None:
                continue
            attempts.append(attempt)
            if attempt.fits:
                chosen = attempt
                break
        questions.append(_question(scenario, text, strategies, tuple(attempts)))
    return _decision(scenario, tuple(questions), chosen)


def _question(
    scenario: Scenario, text: str, strategies: tuple[str, ...], attempts: tuple[Attempt, ...]
) -> Question:
    if not attempts:
        available = scenario.cluster.gpu.usable_bytes
        return Question(text, 0, available, "no", advice.impossible(scenario, strategies[-1]))
    best = next((a for a in attempts if a.fits), None) or min(
        attempts, key=lambda attempt: attempt.needed_bytes
    )
    verdict = "yes" if best.fits else "no"
    return Question(text, best.needed_bytes, best.available_bytes, verdict, best.why, attempts)


def _decision(
    scenario: Scenario, questions: tuple[Question, ...], chosen: Attempt | None
) -> Decision:
    if chosen is None:
        return Decision(
            "none",
            "whole model",
            scenario,
            questions,
            (),
            advice.nothing_fits(scenario),
            advice.more_nodes(scenario, _fits_on),
            advice.notes(scenario, "none"),
        )
    strategy = _named(chosen)
    exhausted = EXHAUSTED[strategy]
    if strategy == "ddp" and chosen.adjustments:
        exhausted = "activations"
    return Decision(
        strategy,
        exhausted,
        chosen.scenario,
        questions,
        chosen.adjustments,
        advice.headline(chosen.scenario, strategy, exhausted, chosen.adjustments),
        advice.next_step(scenario, chosen.scenario, strategy),
        advice.notes(scenario, strategy),
    )


def _named(attempt: Attempt) -> str:
    layout = attempt.scenario.layout
    if attempt.strategy != "pipeline":
        return attempt.strategy
    axes = (layout.tensor_parallel, layout.pipeline_parallel, attempt.scenario.data_parallel)
    return "3d" if min(axes) > 1 else "pipeline"


def _fits_on(scenario: Scenario) -> bool:
    attempt = _attempt(scenario, "zero-3")
    return attempt is not None and attempt.fits


def _attempt(scenario: Scenario, strategy: str) -> Attempt | None:
    """The strategy at its smallest degree that fits, or the one that comes nearest."""
    if strategy == "3d":
        return None  # the pipeline attempt has tried tensor parallelism along
    nearest: Attempt | None = None
    for tensor, pipeline in _degrees(scenario, strategy):
        for training, adjustments in _variants(scenario):
            try:
                laid = scenario.with_layout(
                    layout_for(scenario, strategy, tensor, pipeline), training
                )
            except ScenarioError:
                continue
            attempt = _judge(strategy, laid, adjustments)
            if attempt.fits:
                return attempt
            if nearest is None or attempt.needed_bytes < nearest.needed_bytes:
                nearest = attempt
            if not adjustments and not _adjustable(estimate(laid)):
                break
    return nearest


def _degrees(scenario: Scenario, strategy: str) -> Iterator[tuple[int, int]]:
    if strategy == "tensor":
        yield from ((degree, 1) for degree in tensor_degrees(scenario))
    elif strategy == "pipeline":
        yield from split_degrees(scenario)
    elif strategy == "ddp" or scenario.cluster.world_size > 1 or strategy == "offload":
        yield 1, 1


def _variants(scenario: Scenario) -> Iterator[tuple[Training, tuple[str, ...]]]:
    """The training set-up as given, then with smaller activations, simplest change first."""
    training = scenario.training
    yield training, ()
    smaller = advice.smaller_batches(training)
    for micro_batch in smaller:
        line = advice.batch_line(training, micro_batch)
        yield _with_batch(scenario, micro_batch), (line,)
    if training.activation_checkpointing in ("full", "every"):
        return
    line = "full activation checkpointing (about a third more compute)"
    for micro_batch in (training.micro_batch, *smaller):
        lines = (line,)
        if micro_batch != training.micro_batch:
            lines = (advice.batch_line(training, micro_batch), line)
        adjusted = _with_batch(scenario, micro_batch)
        yield replace(adjusted, activation_checkpointing="full", checkpoint_every=0), lines


def _with_batch(scenario: Scenario, micro_batch: int) -> Training:
    """A smaller micro-batch at the same global batch: the rest is accumulated."""
    return replace(
        scenario.training, micro_batch=micro_batch, global_batch=scenario.training.global_batch
    )


def _adjustable(report: MemoryReport) -> bool:
    """Whether smaller activations could make room at all: everything else fits by itself."""
    activations = min(
        parts["activations"] + parts["logits and loss"]
        for stage in report.stages
        for parts in stage.phases.values()
    )
    without = max(
        sum(parts.values()) - parts["activations"] - parts["logits and loss"]
        for stage in report.stages
        for parts in stage.phases.values()
    )
    return without + activations < report.usable_bytes


def _judge(strategy: str, laid: Scenario, adjustments: tuple[str, ...]) -> Attempt:
    report = estimate(laid)
    refusal = advice.refusal(laid, report)
    fits = refusal == "" and report.verdict == "fits"
    if refusal == "" and report.verdict == "uncertain":
        fits = report.high_bytes <= report.usable_bytes
    why = refusal or advice.why(laid, report, STRATEGIES[strategy].name, adjustments)
    return Attempt(
        strategy, laid, report.device_bytes, report.usable_bytes, fits, adjustments, why
    )


def rule_of_sixteen(scenario: Scenario) -> float:
    """Bytes of model states before activations and before any sharding: 16 a parameter with Adam.

    >>> from shardwise.core.scenario import Scenario
    >>> rule_of_sixteen(Scenario.from_dict({"model": {"parameters": 7e9}})) / 1e9
    112.0
    """
    training = scenario.training
    each = bytes_per_parameter(scenario.model, training.precision, training.optimizer)
    return scenario.model.parameters * each.total
