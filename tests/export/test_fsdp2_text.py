"""The exported programs as text, over the whole catalogue."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardwise.core.catalogue import model_names
from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.scenario import Scenario
from shardwise.core.strategies import scenario_for
from shardwise.core.units import format_gib
from shardwise.export import export
from shardwise.export.realized import OWN_ATTENTION, realized

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

STRATEGIES = ("ddp", "zero-1", "zero-2", "zero-3", "offload")
BASE = Scenario.from_dict({"model": {"parameters": 7e9}, "training": {"sequence_length": 256}})


def of_model(name: str, **training: object) -> Scenario:
    """One catalogue model on eight cards with a sequence that each of them can read."""
    return Scenario.from_dict({"model": name, "training": {"sequence_length": 256, **training}})


def program(scenario: Scenario) -> str:
    """The training program's text."""
    return export(scenario, "fsdp2")["train.py"]


@pytest.mark.parametrize("name", model_names())
def test_every_catalogue_model_compiles_under_every_strategy(name: str) -> None:
    """The text is Python, and the layout that was asked for is the one in it."""
    for strategy in STRATEGIES:
        laid = scenario_for(of_model(name), strategy)
        assert laid is not None
        text = program(laid)
        compile(text, "train.py", "exec")
        assert ("fully_shard(block" in text) == (strategy in ("zero-2", "zero-3", "offload"))
        assert ("DistributedDataParallel(" in text) == (strategy in ("ddp", "zero-1"))
        assert ("ZeroRedundancyOptimizer(" in text) == (strategy == "zero-1")
        assert ("reshard_after_forward=True" in text) == (strategy in ("zero-3", "offload"))
        assert ("CPUOffloadPolicy(" in text) == (strategy == "offload")


@pytest.mark.parametrize("name", model_names())
def test_transformers_builds_the_model_from_the_written_config(name: str) -> None:
    """The class, the blocks that are sharded and the number of parameters are the real ones."""
    plan = realized(of_model(name))
    kind = getattr(transformers, plan.config.architecture)
    attention = "eager" if plan.scenario.training.attention == "eager" else "sdpa"
    config = kind.config_class.from_dict(
        json.loads(plan.config.text), attn_implementation=attention
    )
    with torch.device("meta"):
        built = kind(config)
    assert sum(p.numel() for p in built.parameters()) == plan.scenario.model.parameters
    blocks = [len(built.get_submodule(path)) for path in plan.config.blocks]
    assert sum(blocks) == len(plan.scenario.model.blocks)


def test_what_is_said_of_attention_is_what_transformers_says() -> None:
    """Families without fused or replaceable attention are those of transformers' own flags."""
    for name in model_names():
        architecture = of_model(name).model.architecture
        kind = getattr(transformers, architecture)
        shapes = [shape for shape, _ in of_model(name).model.block_groups]
        attending = [shape for shape in shapes if shape.attention]
        fused = bool(attending) and all(shape.sdpa for shape in attending)
        assert kind._supports_sdpa == fused, name
        assert kind._supports_attention_backend != architecture.startswith(OWN_ATTENTION), name
        assert kind.supports_gradient_checkpointing, name


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"optimizer": "lion", "loss": "chunked"},
        {"optimizer": "muon", "activation_checkpointing": "selective"},
        {"optimizer": "adafactor", "attention": "math", "model_code": "compiled"},
        {"activation_checkpointing": "per-op", "loss": "chunked", "model_code": "torchtitan"},
        {"activation_checkpointing": "per-op", "loss": "compiled"},
        {"optimizer": "adamw-8bit", "precision": "bf16"},
        {"optimizer": "sgd-momentum", "activation_checkpointing": {"every": 3}, "loss": "fused"},
    ],
)
@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "v100-sxm-32gb"])
def test_the_program_is_clean_code(training: dict[str, Any], gpu: str, tmp_path: Path) -> None:
    """Formatted, imports sorted and used, no undefined name: ruff has nothing to say."""
    if gpu.startswith("v100") and training.get("precision") == "bf16":
        training = training | {"precision": "mixed-16"}
    for strategy in STRATEGIES:
        asked = Scenario.from_dict({"training": training, "cluster": {"gpu": gpu, "nodes": 2}})
        laid = scenario_for(asked, strategy)
        if training.get("optimizer") == "adafactor" and gpu.startswith("v100"):
            laid = scenario_for(asked, "ddp")
        (tmp_path / f"{strategy}.py").write_text(program(laid), encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["--isolated", "--line-length=100", "--no-cache", str(tmp_path)]
    for command in (["check", "--select=E,F,I,UP,SIM"], ["format", "--check", "--diff"]):
        done = subprocess.run(
            [*ruff, *command, *rules], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_estimate_stands_at_the_top_with_units() -> None:
    """The peak of the scenario as torch runs it, part by part, in GiB."""
    plan = realized(BASE)
    report = estimate(plan.scenario)
    head = program(BASE).partition('"""\n\nimport')[0]
    assert re.search(rf"allocated at the peak +{re.escape(format_gib(report.peak_bytes))}\n", head)
    assert re.search(r"optimizer state +[\d.]+ GiB\n", head)
    decides = re.escape(format_gib(report.needed_bytes))
    assert re.search(rf"needed on the card: decides +{decides}\n", head)
    assert report.verdict in head
    assert f"ESTIMATED_BYTES = {round(report.peak_bytes)}" in program(BASE)


def test_the_batch_of_the_program_is_the_scenarios() -> None:
    """Micro-batch, accumulation and sequence length are the numbers that were asked for."""
    training = {"micro_batch": 2, "global_batch": 64, "sequence_length": 1024}
    text = program(Scenario.from_dict({"training": training}))
    assert "MICRO_BATCH = 2 " in text
    assert "MICRO_BATCHES = 4 " in text
    assert "SEQUENCE_LENGTH = 1024 " in text


@pytest.mark.parametrize(
    ("precision", "gpu", "policy"),
    [
        ("fsdp-mixed", "h100-sxm-80gb",
         "param_dtype=torch.bfloat16, reduce_dtype=torch.float32"),
        ("mixed-16", "h100-sxm-80gb", "param_dtype=torch.bfloat16"),
        ("mixed-16", "v100-sxm-32gb", "param_dtype=torch.float16"),
        ("bf16", "h100-sxm-80gb", ""),
        ("fp32", "h100-sxm-80gb", ""),
    ],
)  # fmt: skip
def test_precision_becomes_a_mixed_precision_policy(precision: str, gpu: str, policy: str) -> None:
    """Compute and reduce types are passed; what the shards are stored in already is left out."""
    given = {"training": {"precision": precision}, "cluster": {"gpu": gpu}}
    text = program(Scenario.from_dict(given))
    assert f"MixedPrecisionPolicy({policy})" in text
    assert ("GradScaler" in text) == (gpu == "v100-sxm-32gb")


def test_hybrid_sharding_has_a_mesh_of_two_axes() -> None:
    """Sharding over a node of eight and replicating over two is written as such."""
    text = program(Scenario.from_dict({"cluster": {"nodes": 2}, "layout": {"shard": 8}}))
    assert "SHARD = 8 " in text
    assert "torchrun --nnodes=2 --nproc-per-node=8" in text


REFUSED = [
    ({"layout": {"tensor_parallel": 2}}, "layout.tensor_parallel"),
    ({"layout": {"pipeline_parallel": 2}}, "layout.pipeline_parallel"),
    ({"layout": {"offload": {"optimizer": "nvme"}}}, "layout.offload.optimizer"),
    ({"cluster": {"gpu": "gaudi-3"}}, "cluster.gpu"),
    ({"model": "gpt2", "training": {"sequence_length": 2048}}, "training.sequence_length"),
    ({"model": "roberta-base", "training": {"sequence_length": 513}}, "training.sequence_length"),
    ({"training": {"precision": {"compute": "fp8"}}}, "training.precision"),
    (
        {"model": "falcon-7b", "training": {"activation_checkpointing": "selective"}},
        "training.activation_checkpointing",
    ),
]


@pytest.mark.parametrize(("given", "field"), REFUSED)
def test_what_the_program_cannot_do_is_said(given: dict[str, Any], field: str) -> None:
    """One error with the field and what is allowed, never a program for something else."""
    with pytest.raises(ScenarioError) as error:
        program(Scenario.from_dict(given))
    assert error.value.field == field


def test_an_unknown_architecture_is_refused() -> None:
    """No program is invented for a model whose class nobody knows."""
    config = {
        "model_type": "nobody-knows",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 1000,
    }
    with pytest.raises(ScenarioError, match=r"model\.architecture"):
        program(Scenario.from_dict({"model": config}))


def test_a_hostile_name_stays_text() -> None:
    """Quotes, backslashes and newlines in a config's strings cannot end the docstring."""
    config = json.loads(realized(BASE).config.text)
    config["_name_or_path"] = config["name"] = config["note"] = '"""\nraise SystemExit(1)\n\\'
    text = program(Scenario.from_dict({"model": config}))
    statements = ast.parse(text).body
    assert "SystemExit" in ast.get_docstring(ast.parse(text))
    assert not any(isinstance(statement, ast.Raise) for statement in statements)


def test_pictures_are_those_of_the_scenario() -> None:
    """So many a sample; a text batch without any, over the same blocks."""
    seen, text = (program(of_model("gemma-3-4b", images_per_sample=n)) for n in (3, 0))
    assert "IMAGES = 3  # a sample" in seen
    assert "pixel_values" in seen and "pixel_values" not in text
    compile(text, "train.py", "exec")
    blocks = [re.findall(r"^BLOCKS = .*$", each, re.MULTILINE) for each in (seen, text)]
    assert blocks[0] == blocks[1] != []
