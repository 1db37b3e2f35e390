"""Logits and loss of the stage that has the head, by the code that computes them."""

from __future__ import annotations

from shardwise.core.memory import nanotron
from shardwise.core.memory.autocast import autocasts
from shardwise.core.memory.kernel import micro_batch_tokens
from shardwise.core.memory.loss import LossBytes, loss_bytes
from shardwise.core.memory.megatron import head_loss
from shardwise.core.memory.stages import Stage
from shardwise.core.scenario import Scenario

# Code that runs torch's `loss_parallel` over logits split by vocabulary.
_LOSS_PARALLEL = ("transformers", "torchtitan", "compiled")


def stage_loss(scenario: Scenario, stage: Stage) -> LossBytes:
    """Logits and loss on the stage that has the head; nothing elsewhere or without a vocabulary."""
    model, training, layout = scenario.model, scenario.training, scenario.layout
    if not stage.has_head or not model.vocabulary:
        return LossBytes(0.0, 0.0, 0.0)
    if training.model_code == "megatron" and training.loss in ("full", "fused"):
        return head_loss(scenario, stage)
    if training.model_code == "nanotron":
        return nanotron.head_loss(scenario)
    tokens = micro_batch_tokens(scenario)
    last = stage.blocks[-1][0] if stage.blocks else None
    return loss_bytes(
        tokens,
        model.vocabulary / layout.vocabulary_ranks,
        training.precision.compute_bytes,
        training.loss,
        model.hidden,
        upcast=upcasts(scenario, stage),
        soft_cap=last is not None and last.logit_cap,
        split=layout.vocabulary_ranks > 1 and training.model_code in _LOSS_PARALLEL,
    )


def upcasts(scenario: Scenario, stage: Stage) -> bool:
    """Whether the loss is fp32: causal language models upcast, and autocast does for all."""
    if not stage.blocks or scenario.training.model_code != "transformers":
        return True
    last = stage.blocks[-1][0]
    causal = last.causal and not last.cross_attention
    return causal or last.upcast_loss or autocasts(scenario.layout, scenario.training.precision)
