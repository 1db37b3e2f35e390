"""What the first block does not save over a frozen embedding."""

from __future__ import annotations

from shardwise.core.memory.activations import block_saved
from shardwise.core.memory.operators.frozen import down_inputs
from shardwise.core.memory.operators.norms import norm_bytes
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.memory.stages import Stage
from shardwise.core.scenario import Scenario

ATTENTION = (
    "attention input",
    "latent projections",
    "queries, keys, values",
    "attention output",
    "query and key norms",
    "attention scores",
)
"""The operators of a block's attention."""


def unneeded_at_the_start(
    scenario: Scenario, stage: Stage, tokens: Tokens, kernel: Kernel
) -> float:
    """Bytes that the first block does not save before its first adapter, over a frozen embedding.

    Nothing there has a gradient: the first norm; with adapters on attention's output or in the MLP
    only, all that comes before them; the MLP beside an adapted attention. Checkpointing makes the
    embedding's result require one (`enable_input_require_grads`), and then all is saved.
    """
    frozen, training = kernel.frozen, scenario.training
    before = frozen is not None and not {"embedding", "position"} & set(frozen.trained)
    if frozen is None or not before or not frozen.flows or not stage.has_embedding:
        return 0.0
    if training.activation_checkpointing != "none":
        return 0.0
    first = stage.blocks[0][0] if stage.blocks else None
    if first is None or not kernel.eager_modules:
        return 0.0
    if "norm" in frozen.trained:  # its weight's gradient reads the product, not the fp32 copy
        return 4.0 * tokens.count * first.hidden if first.norm == "rmsnorm" else 0.0
    masks = frozen.attention_input if frozen.dropout else 0
    norm = norm_bytes(first, tokens.count, first.hidden, kernel)
    if not frozen.rank:
        return norm
    saved = dict(block_saved(first, tokens, kernel).operators)
    in_mlp = frozen.mlp_input or frozen.mlp_result
    if frozen.attention_input:
        beside = saved.get("MLP", 0.0) if first.parallel and not in_mlp else 0.0
        return norm + beside + masks * tokens.count * first.hidden
    if frozen.attention_result:  # it reads attention's output
        return norm + sum(saved.get(name, 0.0) for name in ATTENTION if name != "attention output")
    unread = sum(saved.get(name, 0.0) for name in (*ATTENTION, "norms"))
    if frozen.mlp_input or not first.intermediate:
        return unread
    # The down projection alone: the activation has no gradient either.
    return unread + saved.get("MLP", 0.0) - down_inputs(first, tokens, kernel)
