"""The torch program's loss and its recomputed attention, as functions of the scenario."""

from __future__ import annotations

from shardwise.export.realized import Realized


def attention(plan: Realized) -> str:
    """The attention that is recomputed in backward, for selective checkpointing."""
    if plan.scenario.training.activation_checkpointing != "selective":
        return ""
    return '''
def recomputed_attention(*arguments, **options):
    """The core attention, whose scores are computed again in backward instead of being kept."""
    return checkpoint(sdpa_attention_forward, *arguments, use_reentrant=False, **options)


AttentionInterface.register("recomputed", recomputed_attention)
AttentionMaskInterface.register("recomputed", sdpa_mask)
'''


def kept_results(plan: Realized) -> str:
    """Which results are kept in forward, for checkpointing by operator."""
    if plan.scenario.training.activation_checkpointing != "per-op":
        return ""
    return '''
KEPT = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def kept_results():
    """Keep attention's results and every first of two matrix products; compute the rest again."""
    products = {False: 0, True: 0}

    def policy(ctx, operator, *arguments, **options):
        kept = operator in KEPT
        if operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            products[ctx.is_recompute] += 1
            kept = products[ctx.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
'''


def loss(plan: Realized) -> str:
    """The module that is called: its forward gives the loss."""
    if plan.scenario.training.loss == "full":
        return '''
class Loss(torch.nn.Module):
    """The model with its own loss, so that one call is one forward pass."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model(**batch).loss
'''
    return '''
def chunk_loss(head, hidden, targets, softcap):
    """Summed cross-entropy of a slice of the sequence; only its input is kept for backward."""
    logits = head(hidden).float()
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


class Loss(torch.nn.Module):
    """The model with a loss over eight slices of the sequence: never all logits at once."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        hidden = self.model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        hidden, targets = hidden[:, :-1], labels[:, 1:]
        head = self.model.get_output_embeddings()
        softcap = getattr(self.model.config, "final_logit_softcapping", None)
        total = 0.0
        for states, tokens in zip(hidden.chunk(8, dim=1), targets.chunk(8, dim=1)):
            total += checkpoint(chunk_loss, head, states, tokens, softcap, use_reentrant=False)
        return total / targets.numel()
'''
