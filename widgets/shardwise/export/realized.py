"""What torch really keeps for a scenario: the nearest scenario that a torch program can be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.core.errors import ScenarioError
from shardwise.core.layout import Layout
from shardwise.core.precision import POLICIES, Precision, precision_from
from shardwise.core.scenario import Scenario
from shardwise.core.training import Training
from shardwise.export.axes import data_parallel_only
from shardwise.export.model_config import ModelConfig, model_config

# transformers 5: `_supports_attention_backend` is False, so no attention function can be put in.
OWN_ATTENTION = (
    "Bamba", "Bloom", "Falcon", "Jamba", "Mamba", "NemotronH", "Qwen3Next", "T5", "Whisper",
)  # fmt: skip


@dataclass(frozen=True)
class Realized:
    """The scenario as the program runs it, the model's config, and what differs, in sentences."""

    scenario: Scenario
    config: ModelConfig
    notes: tuple[str, ...]

    @property
    def sharded(self) -> bool:
        """Whether FSDP2 shards the model (else DDP replicates it)."""
        return self.scenario.layout.engine == "fsdp2"

    @property
    def sixteen_bit(self) -> str:
        """torch's name of what the card computes in: bfloat16, float16, or nothing for fp32."""
        compute = self.scenario.training.precision.compute
        if compute == "16-bit":
            return "bfloat16" if self.scenario.cluster.gpu.bf16 else "float16"
        return {"bf16": "bfloat16", "fp16": "float16", "fp32": ""}[compute]


def realized(scenario: Scenario) -> Realized:
    """The scenario that torch and transformers can run, nearest to the one given.

    Raises:
        ScenarioError: an axis, an offload, a dtype or a model that the program does not have.
    """
    _check(scenario)
    notes: list[str] = []
    config = model_config(scenario)
    notes += config.notes
    layout = _layout(scenario.layout, notes)
    training = _training(scenario, config, layout.engine == "fsdp2", notes)
    nearest = Scenario.of(config.model, scenario.cluster, training, layout, config.source)
    return Realized(nearest, config, tuple(notes))


def _check(scenario: Scenario) -> None:
    layout = scenario.layout
    data_parallel_only(layout, ", which writes data parallelism: DDP, ZeRO and FSDP2")
    for part in ("optimizer", "parameters"):
        if getattr(layout, f"offload_{part}") == "nvme":
            raise ScenarioError(
                f"layout.offload.{part}", "nvme", "none or cpu: torch offloads to host memory only"
            )
    if scenario.cluster.gpu.vendor not in ("NVIDIA", "AMD"):
        raise ScenarioError(
            "cluster.gpu",
            scenario.cluster.gpu.key,
            "an NVIDIA or AMD card, which torch drives as a cuda device",
        )


def _layout(layout: Layout, notes: list[str]) -> Layout:
    """The same ZeRO stage in torch's own engines."""
    offload = "cpu" if "cpu" in (layout.offload_optimizer, layout.offload_parameters) else "none"
    if offload == "cpu" and layout.zero_stage < 2:
        raise ScenarioError(
            "layout.offload.optimizer", "cpu", f"none with ZeRO stage {layout.zero_stage} in torch"
        )
    engine = {0: "ddp", 1: "zero-redundancy", 2: "fsdp2", 3: "fsdp2"}[layout.zero_stage]
    if layout.float8_all_gather:
        notes.append("Weights are gathered in 16 bits: fp8 needs torchao's linear layers.")
    if engine != layout.engine:
        notes.append(f"The layout's engine is {layout.engine}; torch's own is {engine}.")
    return Layout(
        engine=engine,
        zero_stage=layout.zero_stage,
        shard=layout.shard,
        offload_optimizer=offload,
        offload_parameters=offload if layout.zero_stage == 3 else "none",
        gradient_as_bucket_view=layout.gradient_as_bucket_view and engine != "fsdp2",
    )


def _training(scenario: Scenario, config: ModelConfig, sharded: bool, notes: list[str]) -> Training:
    training = scenario.training
    changes: dict[str, object] = {"precision": _precision(scenario, sharded, notes)}
    if training.model_code not in ("transformers", "compiled"):
        notes.append(f"The modules are transformers', not {training.model_code}'s.")
        changes["model_code"] = "transformers"
        if training.mtp_layers:
            notes.append("transformers has no layers of multi-token prediction: left out.")
            changes["mtp_layers"] = 0
    shapes = [shape for shape, _ in config.model.block_groups]
    attending = [shape for shape in shapes if shape.attention]
    eager_only = not attending or not all(shape.sdpa for shape in attending)
    if training.attention != "eager" and eager_only:
        notes.append(f"transformers has no fused attention for {config.architecture}: eager.")
        changes["attention"] = "eager"
    selective = training.activation_checkpointing == "selective"
    if selective and config.architecture.startswith(OWN_ATTENTION):
        raise ScenarioError(
            "training.activation_checkpointing",
            "selective",
            f"none, full or every k: {config.architecture} has an attention of its own",
        )
    if training.loss == "compiled":
        changes["loss"] = "full"
        notes.append("The loss is transformers' own and not compiled.")
    elif training.loss != "full":
        chunked = config.task == "causal"
        changes["loss"] = "chunked" if chunked else "full"
        if not chunked:
            notes.append("The loss is transformers' own, over all logits at once.")
        elif training.loss == "fused":
            notes.append("The fused loss is written as a chunked one, eight chunks in plain torch.")
    return replace(training, **changes)


def _precision(scenario: Scenario, sharded: bool, notes: list[str]) -> Precision:
    """Torch's optimizers update the module's own weights: there is no second master copy."""
    asked = scenario.training.precision
    stored = "fp32" if asked.master_bytes else asked.parameters
    if "fp8" in (stored, asked.compute, asked.reduce):
        raise ScenarioError("training.precision", asked.key, "no fp8: this export has none")
    half = "fp16" if not scenario.cluster.gpu.bf16 else "bf16"
    if (half if stored == "16-bit" else stored) == "fp16":
        raise ScenarioError(
            "training.precision", asked.key, "fp32 (master) weights: fp16 has no range for updates"
        )
    kept = precision_from(
        {
            "parameters": stored,
            "gradients": stored,
            "master_weights": "none",
            "optimizer_state": stored,
            "compute": asked.compute,
            "reduce": asked.reduce if sharded else stored,
        }
    )
    names = ("fsdp-mixed" if sharded else "autocast", "bf16", "fp32")
    kept = next(
        (POLICIES[name] for name in names if _dtypes(POLICIES[name]) == _dtypes(kept)), kept
    )
    if _dtypes(kept) != _dtypes(asked):
        notes.append(
            f"Precision {asked.key}: torch keeps {stored} weights, gradients and optimizer state "
            f"and computes in {asked.compute}, without a second copy of the weights."
        )
    return kept


def _dtypes(precision: Precision) -> tuple[str, ...]:
    fields = ("parameters", "gradients", "master_weights", "optimizer_state", "compute", "reduce")
    return tuple(getattr(precision, field) for field in fields)
