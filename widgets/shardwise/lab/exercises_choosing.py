"""The exercises of lessons 0 and 14: what runs out, which strategy, and how wrong one was.

What is right is what Shardwise decides when the check runs; no answer is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwise.lab.checks import Property, at_most, exercise


@exercise("L00.requests")
def requests(answer: Mapping[str, str]) -> Iterable[Property]:
    """What ran out in four requests, as Shardwise decides them on eight such cards."""
    from shardwise.core.decision import decide
    from shardwise.core.scenario import Scenario

    asked = {
        "1.1B on A100 80 GB": ("tinyllama-1.1b", "a100-sxm-80gb"),
        "7B on A100 80 GB": ("llama-2-7b", "a100-sxm-80gb"),
        "0.3B on V100 16 GB": ("bert-large", "v100-sxm-16gb"),
        "3B on RTX 3090 24 GB": ("qwen2.5-3b", "rtx-3090"),
    }
    for name, (model, gpu) in asked.items():
        cluster = {"gpu": gpu, "gpus_per_node": 8, "nodes": 1}
        scenario = {"model": model, "cluster": cluster, "training": {"sequence_length": 512}}
        helped = decide(Scenario.from_dict(scenario)).exhausted == "throughput"
        right = answer.get(name) == ("throughput" if helped else "capacity")
        hint = "16 bytes times the parameters: is that more than the card has?"
        # The right answer is what the exercise asks for, so it is not given away here.
        yield Property(name, right, "what runs out", str(answer.get(name)), hint)


@exercise("L14.choose")
def choose(answer: Mapping[str, str]) -> Iterable[Property]:
    """Eight of the ten cases as Shardwise decides them; the wrong ones are named, not solved."""
    from shardwise.core.decision import decide
    from shardwise.core.scenario import Scenario
    from shardwise.lab.lesson_cases import CASES

    wrong = [
        name
        for name, case in CASES.items()
        if answer.get(name) != decide(Scenario.from_dict(case.scenario)).strategy
    ]
    right = len(CASES) - len(wrong)
    hint = f"think again about: {', '.join(wrong)}" if wrong else ""
    yield Property("least complicated strategy", right >= 8, "8 of 10", f"{right} of 10", hint)


@exercise("L14.error")
def own_error(answer: Mapping[str, float | None]) -> Iterable[Property]:
    """Both errors of the peak, as the notebook's table has them."""
    from shardwise.lab.predictions import book

    row = book.rows.get("peak of the step")
    errors = {"yours": None, "Shardwise's": None}
    if row is not None:
        errors = {"yours": row.predicted_error, "Shardwise's": row.estimate_error}
    for name, error in errors.items():
        got = answer.get(name)
        off = float("nan") if got is None or error is None else abs(got - error)
        hint = "(predicted - measured) / measured, of the row of the peak"
        yield at_most(f"{name}: off from the table by", off, 0.01, hint)
