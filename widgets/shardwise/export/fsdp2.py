"""A training program for torchrun: FSDP2 or DDP, as the scenario's layout says, as plain torch."""

from __future__ import annotations

import re
from textwrap import fill

from shardwise import __version__
from shardwise.core.memory import estimate
from shardwise.core.memory.report import PARTS
from shardwise.core.memory.reserve import EXPANDABLE_SEGMENTS
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import STRATEGIES
from shardwise.core.units import format_count, format_gib
from shardwise.export import torch_batches, torch_code
from shardwise.export.realized import Realized, realized


def files(scenario: Scenario) -> dict[str, str]:
    """`train.py`, to be launched by torchrun; the model's config.json stands in it.

    Raises:
        ScenarioError: an axis, an offload, a dtype or a model that the program does not have.
    """
    plan = realized(scenario)
    head = (_header(plan), torch_code.imports(plan), _constants(plan))
    functions = (
        torch_code.attention(plan),
        torch_code.kept_results(plan),
        torch_code.loss(plan),
        torch_code.batch(plan),
        torch_code.model(plan),
        torch_code.wrapped(plan),
        torch_code.optimizer(plan),
        torch_code.REPORT,
        torch_code.main(plan),
    )
    parts = ["\n\n".join(head), *(text.strip("\n") for text in functions if text)]
    return {"train.py": "\n\n\n".join(parts) + "\n"}


def _header(plan: Realized) -> str:
    scenario, cluster = plan.scenario, plan.scenario.cluster
    name = _plain(scenario.model.name or scenario.model.architecture)
    needs = "torch 2.6 or newer and transformers 5"
    if scenario.training.optimizer == "adamw-8bit":
        needs = "torch 2.6 or newer, transformers 5 and torchao"
    if scenario.training.optimizer == "muon":
        needs = "torch 2.9 or newer and transformers 5"
    nodes = f"{cluster.nodes} x " if cluster.nodes > 1 else ""
    lines = [
        f'"""Train {name} ({format_count(scenario.model.parameters)} parameters) with torch.',
        "",
        f"{_strategy(plan)} on {nodes}{cluster.gpus_per_node} x {_plain(cluster.gpu.name)}:",
        "",
        _launch(scenario),
        "",
        f"Needs {needs}. The data is random.",
        "Without a GPU it runs on CPU with gloo, which suits a tiny model only.",
        "",
        *_estimate(plan),
    ]
    if plan.notes:
        lines += ["", "Other than in the scenario:"]
        lines += [
            fill(note, 98, initial_indent="- ", subsequent_indent="  ") for note in plan.notes
        ]
    lines += ["", f"Written by Shardwise {__version__}.", '"""']
    return "\n".join(lines)


def _plain(name: str) -> str:
    """A name that cannot end the docstring it stands in: one short line without quotes."""
    return re.sub(r"[^\w .:+/()-]+", " ", name)[:60].strip()


def _strategy(plan: Realized) -> str:
    layout = plan.scenario.layout
    key = {0: "ddp", 1: "zero-1", 2: "zero-2", 3: "zero-3"}[layout.zero_stage]
    name = STRATEGIES["offload" if layout.offload_optimizer == "cpu" else key].name
    return f"{name} with FSDP2" if plan.sharded else name


def _launch(scenario: Scenario) -> str:
    cluster = scenario.cluster
    expandable = f"    export {EXPANDABLE_SEGMENTS}\n"
    if cluster.nodes == 1:
        ranks = f"--standalone --nproc-per-node={cluster.gpus_per_node}"
        return f"{expandable}    torchrun {ranks} train.py"
    ranks = f"--nnodes={cluster.nodes} --nproc-per-node={cluster.gpus_per_node}"
    return (
        f"{expandable}    torchrun {ranks} --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 train.py"
    )


def _estimate(plan: Realized) -> list[str]:
    report = estimate(plan.scenario)
    rows = [(PARTS[part], format_gib(size)) for part, size in report.parts.items() if round(size)]
    rows += [
        ("allocated at the peak", format_gib(report.peak_bytes)),
        ("reserved by the allocator", format_gib(report.reserved_bytes)),
        ("on the device, by nvidia-smi", format_gib(report.device_bytes)),
        ("needed on the card: decides", format_gib(report.needed_bytes)),
        ("the card has", format_gib(report.usable_bytes)),
    ]
    lines = [f"Estimate for one GPU at its peak ({report.binding_phase}): {report.verdict}"]
    lines += [f"    {label:<28}{size:>14}" for label, size in rows]
    if plan.scenario.layout.offload_optimizer == "cpu":
        lines.append(f"    {'host memory a node':<28}{format_gib(report.host_bytes_per_node):>14}")
    return lines


def _constants(plan: Realized) -> str:
    scenario, training = plan.scenario, plan.scenario.training
    attention = "eager" if training.attention == "eager" else "sdpa"
    if training.activation_checkpointing == "selective":
        attention = "recomputed"
    image = plan.config.task == "image"
    length = scenario.model.fixed_sequence if image else training.sequence_length
    lines = [
        f"MODEL = transformers.{plan.config.architecture}",
        f'CONFIG_JSON = r"""\n{plan.config.text}"""',
        "CONFIG = MODEL.config_class.from_dict("
        f'json.loads(CONFIG_JSON), attn_implementation="{attention}")',
        "CONFIG.get_text_config().use_cache = False",
        f"PARAMETERS = {scenario.model.parameters}",
        f"SEQUENCE_LENGTH = {length}  # tokens a sample",
        *torch_batches.constants(plan),
        f"MICRO_BATCH = {training.micro_batch}  # samples a rank and forward pass",
        f"MICRO_BATCHES = {scenario.micro_batches}  # a rank and optimizer step",
        "LEARNING_RATE = 1e-4",
        f"ESTIMATED_BYTES = {round(estimate(scenario).peak_bytes)}  # allocated, at the peak",
    ]
    if plan.sharded:
        lines.append(f"SHARD = {scenario.shard}  # ranks that share one copy of the states")
    if (
        plan.sharded
        or training.checkpoint_every
        or training.model_code == "compiled"
        or (training.optimizer == "muon")
    ):
        lines.append(f"BLOCKS = {_tuple(plan.config.blocks)}")
    return "\n".join(lines)


def _tuple(names: tuple[str, ...]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"({quoted},)" if len(names) == 1 else f"({quoted})"
