"""Changes of the training set-up: checkpointing, kernels, batch, precision, optimizer.

Each gives the changed scenario, or None where there is nothing to change.
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.core.memory.proposal import Changed
from shardwise.core.precision import POLICIES, Precision, precision_from, precision_to
from shardwise.core.routing import routing_matters
from shardwise.core.scenario import Scenario
from shardwise.core.training import Training

_DTYPES = ("parameters", "gradients", "master_weights", "optimizer_state", "compute", "reduce")


def _train(scenario: Scenario, before: str, after: str, **fields: object) -> Changed:
    training: Training = replace(scenario.training, **fields)  # type: ignore[arg-type]
    return Changed(scenario.with_training(training), before, after)


def _checkpointing(training: Training) -> str:
    every = training.checkpoint_every
    return f"every {every}" if every else training.activation_checkpointing


def full_checkpointing(scenario: Scenario) -> Changed | None:
    """Keep block inputs only."""
    now = _checkpointing(scenario.training)
    if now == "full":
        return None
    return _train(scenario, now, "full", activation_checkpointing="full", checkpoint_every=0)


def selective_checkpointing(scenario: Scenario) -> Changed | None:
    """Recompute attention scores only."""
    if scenario.training.activation_checkpointing != "none":
        return None
    return _train(scenario, "none", "selective", activation_checkpointing="selective")


def per_op_checkpointing(scenario: Scenario) -> Changed | None:
    """torchtitan's selection by operator."""
    if scenario.training.activation_checkpointing not in ("none", "selective"):
        return None
    now = scenario.training.activation_checkpointing
    return _train(scenario, now, "per-op", activation_checkpointing="per-op")


def balanced_routing(scenario: Scenario) -> Changed | None:
    """As many routed tokens on every expert-parallel rank."""
    imbalance = scenario.training.expert_imbalance
    if imbalance == 1 or not routing_matters(scenario):
        return None
    return _train(scenario, f"{imbalance:g}", "1", expert_imbalance=1.0)


def flash_attention(scenario: Scenario) -> Changed | None:
    """FlashAttention where the card has it, else torch's memory-efficient kernel."""
    now = scenario.training.attention
    if now in ("flash", "efficient"):
        return None
    kernel = "flash" if scenario.cluster.gpu.flash_attention else "efficient"
    changed = _train(scenario, now, kernel, attention=kernel)
    return changed if kernel == "flash" else replace(changed, label="memory-efficient attention")


def half_micro_batch(scenario: Scenario) -> Changed | None:
    """Half the micro-batch and as many samples a step, so that more of them are accumulated."""
    now = scenario.training.micro_batch
    if now == 1:
        return None
    return _train(
        scenario, str(now), str(now // 2),
        micro_batch=now // 2, global_batch=scenario.global_batch,
    )  # fmt: skip


def fused_optimizer(scenario: Scenario) -> Changed | None:
    """One kernel instead of lists of tensors."""
    training = scenario.training
    if training.optimizer != "adamw" or training.optimizer_implementation != "foreach":
        return None
    return _train(scenario, "foreach", "fused", optimizer_implementation="fused")


def eight_bit_adamw(scenario: Scenario) -> Changed | None:
    """Moments in 8 bits."""
    if scenario.training.optimizer != "adamw":
        return None
    return _train(scenario, "adamw", "adamw-8bit", optimizer="adamw-8bit")


def chunked_loss(scenario: Scenario) -> Changed | None:
    """Head and loss over chunks of tokens."""
    if scenario.training.loss != "full" or not scenario.model.vocabulary:
        return None
    return _train(scenario, "full", "chunked", loss="chunked")


def compiled_code(scenario: Scenario) -> Changed | None:
    """The same modules through torch.compile."""
    now = scenario.training.model_code
    if now != "transformers":
        return None
    return _train(scenario, now, "compiled", model_code="compiled")


def sixteen_bit_gradients(scenario: Scenario) -> Changed | None:
    """Gradients (or, where they follow the weights' type, their reduction) in 16 bits."""
    precision = scenario.training.precision
    if precision.compute_bytes > 2:
        return None
    if precision.gradient_bytes > 2 and precision.parameter_bytes == 2:
        return _with_precision(scenario, precision, "gradients", precision.compute)
    if precision.reduce_bytes > 2 and scenario.layout.engine in ("fsdp1", "fsdp2"):
        return _with_precision(scenario, precision, "reduce", precision.compute)
    return None


def _with_precision(scenario: Scenario, precision: Precision, name: str, dtype: str) -> Changed:
    fields = {key: getattr(precision, key) for key in _DTYPES} | {name: dtype}
    if name == "gradients":
        fields["reduce"] = dtype
    same = (p for p in POLICIES.values() if all(getattr(p, k) == v for k, v in fields.items()))
    changed = next(same, None) or precision_from(fields)
    now = precision.key if precision_to(precision) == precision.key else "custom"
    after = changed.key if changed.key in POLICIES else f"{now} with {name} in {dtype}"
    sixteen = "bf16" if scenario.cluster.gpu.bf16 else "fp16"
    label = f"{sixteen} gradients" if name == "gradients" else f"gradients reduced in {sixteen}"
    made = _train(scenario, now, after, precision=changed)
    return replace(made, label=label)
