"""The decision: five questions in order, and the least machinery that answers one with yes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from shardwise.core import advice, outlook
from shardwise.core.attempts import Attempt, adjustable, attempt_of, fits, judged
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.scenario import Scenario, the_scenario
from shardwise.core.strategies import STRATEGIES
from shardwise.core.training import Training

QUESTIONS = (
    ("Does a whole replica fit on one GPU, with activations and a reasonable batch?", ("ddp",)),
    ("Does it fit once the optimizer state is sharded?", ("zero-1", "zero-2")),
    ("Does it fit once parameters and gradients are sharded too?", ("zero-3",)),
    (
        "Does every layer fit, with the optimizer offloaded or the layer split inside a node?",
        ("offload", "tensor"),
    ),
    (
        "Does the whole fit when its layers are spread over pipeline stages, or the optimizer is "
        "offloaded from a split model?",
        ("pipeline", "3d", "tensor-offload", "pipeline-offload"),
    ),
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
    "tensor-offload": "whole model",
    "pipeline-offload": "whole model",
    "none": "whole model",
}


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


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        """The decision in one line."""
        return f"Decision({self.strategy}; exhausted: {self.exhausted}; {self.headline})"


def decide(scenario: Scenario) -> Decision:
    """Walk the five questions and stop at the first strategy that fits.

    A strategy fits when the upper end of its band is within what the card can give (and, with
    offload, the host's memory is enough). Before a heavier rung is tried, a smaller micro-batch and
    activation checkpointing are.

    Raises:
        ScenarioError: not a scenario.

    >>> from shardwise.core.scenario import Scenario
    >>> cluster = {"gpu": "a100-sxm-80gb", "nodes": 1}
    >>> decide(Scenario.from_dict({"model": {"parameters": 7e9}, "cluster": cluster})).exhausted
    'optimizer state'
    """
    return _decided(the_scenario(scenario))


@lru_cache(maxsize=128)
def _decided(scenario: Scenario) -> Decision:
    questions: list[Question] = []
    chosen: Attempt | None = None
    for text, strategies in QUESTIONS:
        if chosen is not None:
            available = scenario.cluster.gpu.usable_bytes
            questions.append(Question(text, 0, available, "not asked", "A lighter step works."))
            continue
        attempts = []
        for strategy in strategies:
            attempt = attempt_of(scenario, strategy)
            if attempt is None:
                continue
            attempts.append(attempt)
            if attempt.fits:
                chosen = attempt
                break
        questions.append(_question(scenario, text, strategies, tuple(attempts)))
    if chosen is not None:
        training = chosen.scenario.training
        questions = [_restated(scenario, question, training) for question in questions]
    return _decision(scenario, tuple(questions), chosen)


def _restated(scenario: Scenario, question: Question, training: Training) -> Question:
    """A refused question's figures for the training that was chosen, so that all are comparable."""
    if question.verdict != "no" or not question.attempts:
        return question
    attempts = []
    for attempt in question.attempts:
        try:
            report = estimate(attempt.scenario.with_training(training))
        except ScenarioError:
            return question
        restated = judged(scenario, attempt.strategy, report)
        attempts.append(attempt if restated.fits else restated)
    best = min(attempts, key=lambda attempt: attempt.needed_bytes)
    why = " ".join(attempt.why for attempt in attempts)
    return replace(question, needed_bytes=best.needed_bytes, why=why, attempts=tuple(attempts))


def _question(
    scenario: Scenario, text: str, strategies: tuple[str, ...], attempts: tuple[Attempt, ...]
) -> Question:
    if not attempts:
        available = scenario.cluster.gpu.usable_bytes
        return Question(text, 0, available, "no", advice.impossible(scenario, strategies[-1]))
    best = min(attempts, key=lambda attempt: (not attempt.fits, attempt.needed_bytes))
    verdict = "yes" if best.fits else "no"
    why = " ".join(attempt.why for attempt in attempts)
    return Question(text, best.needed_bytes, best.available_bytes, verdict, why, attempts)


def _decision(
    scenario: Scenario, questions: tuple[Question, ...], chosen: Attempt | None
) -> Decision:
    if chosen is None:
        return _no_decision(scenario, questions)
    strategy = _named(chosen)
    exhausted = EXHAUSTED[strategy]
    if strategy == "ddp" and not fits(estimate(scenario.with_layout(chosen.scenario.layout))):
        exhausted = "activations"
    headline = advice.headline(chosen.scenario, strategy, exhausted, chosen.adjustments)
    return Decision(
        strategy,
        exhausted,
        chosen.scenario,
        questions,
        chosen.adjustments,
        headline + _by_a_chunked_loss(scenario, questions, chosen),
        advice.next_step(scenario, chosen.scenario, strategy),
        outlook.notes(scenario, chosen.scenario, strategy),
    )


def _by_a_chunked_loss(scenario: Scenario, questions: tuple[Question, ...], chosen: Attempt) -> str:
    """A lighter strategy that only the logits kept from fitting, as a sentence; else nothing.

    The loss is the training code's own, not a switch of the engine, so it is offered, not taken.
    """
    if scenario.training.loss != "full" or not scenario.model.vocabulary:
        return ""
    chunked = scenario.with_training(replace(scenario.training, loss="chunked"))
    for attempt in (attempt for question in questions for attempt in question.attempts):
        if attempt.strategy == chosen.strategy:
            return ""
        logits = estimate(attempt.scenario).parts["logits and loss"]
        if attempt.needed_bytes - attempt.available_bytes > logits:
            continue
        found = attempt_of(chunked, attempt.strategy)
        if found is not None and found.fits:
            name = STRATEGIES[found.strategy].name
            others = tuple(c for c in found.adjustments if "loss" not in c)
            return (
                f" Or compute the loss in chunks (Loss: chunked): then {name}"
                f"{advice.with_changes(others)} is enough."
            )
    return ""


def _no_decision(scenario: Scenario, questions: tuple[Question, ...]) -> Decision:
    attempts = [attempt for question in questions for attempt in question.attempts]
    reports = [estimate(attempt.scenario) for attempt in attempts]
    possible = [report for report in reports if not advice.refusal(report)] or reports
    nearest = min(possible, key=lambda report: report.needed_bytes)
    short = [report.host_bytes_per_node for report in reports if fits(report)]
    active = nearest.parts["activations"] + nearest.parts["logits and loss"]
    long = adjustable(nearest) and 2 * active > nearest.peak_bytes
    exhausted = "activations" if long else "whole model"
    return Decision(
        "none",
        exhausted,
        scenario,
        questions,
        (),
        outlook.nothing_fits(scenario, exhausted, min(short, default=0.0)),
        outlook.context_parallel(scenario, lambda laid: fits(estimate(laid)))
        or outlook.more_nodes(scenario, _fitting),
        outlook.notes(scenario, nearest.scenario, "none"),
    )


def _named(attempt: Attempt) -> str:
    layout = attempt.scenario.layout
    if attempt.strategy != "pipeline":
        return attempt.strategy
    axes = (layout.tensor_parallel, layout.pipeline_parallel, attempt.scenario.data_parallel)
    return "3d" if min(axes) > 1 else "pipeline"


def _fitting(scenario: Scenario) -> str:
    """Which of the strategies that profit from more nodes fits; empty if none does."""
    for strategy in ("zero-3", "tensor"):
        attempt = attempt_of(scenario, strategy)
        if attempt is not None and attempt.fits:
            return strategy
    return ""
