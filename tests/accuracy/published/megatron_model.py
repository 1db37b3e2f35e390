"""Models as Megatron-LM builds them: GPT, mixtures of experts, BERT and T5, tensor by tensor.

transformers has no class for most of what Megatron-LM's tests train (LayerNorm with SwiGLU, learned
positions with grouped queries), so these are put together here as megatron/core/models does:
megatron/core/models/gpt/gpt_model.py, bert/bert_model.py, T5/t5_model.py,
megatron/core/transformer/transformer_layer.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.core.model import BlockShape, Model, Module, Tensor


@dataclass(frozen=True)
class Sizes:
    """What Megatron-LM's arguments say of a model; `positions` 0 means rotary embeddings.

    `sparse` says for each layer whether it has experts; `latent` is the width in which experts work
    where that is not the hidden size.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    positions: int = 0
    tied: bool = True
    bias: bool = True
    gated: bool = False
    norm: str = "layernorm"
    dropout: float = 0.1
    qk_norm: bool = False
    causal: bool = True
    experts: int = 0
    experts_per_token: int = 1
    expert_ffn: int = 0
    shared_ffn: int = 0
    latent: int = 0
    channels: int = 0
    sparse: tuple[bool, ...] = ()
    latents: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.channels or self.hidden // self.heads


def norm(sizes: Sizes, name: str, width: int = 0) -> tuple[Tensor, ...]:
    """A norm's weight, and with LayerNorm its bias."""
    shape, both = (width or sizes.hidden,), sizes.norm == "layernorm"
    names = ("weight", "bias") if both else ("weight",)
    return tuple(Tensor(f"{name}.{each}", shape, "norm", "replicated") for each in names)


def linear(
    sizes: Sizes, name: str, outputs: int, inputs: int, part: str, cut: str
) -> tuple[Tensor, ...]:
    """A linear layer's weight (out, in), and with biases its bias."""
    weight = Tensor(f"{name}.weight", (outputs, inputs), part, cut)
    along = cut if cut == "column" else "replicated"
    return (weight, *((Tensor(f"{name}.bias", (outputs,), part, along),) if sizes.bias else ()))


def latent_attention(sizes: Sizes) -> tuple[Tensor, ...]:
    """Queries, and keys with values, through a normed latent each.

    megatron/core/transformer/multi_latent_attention.py: the projections down are whole on every
    tensor rank.
    """
    query, latent, plain, rotary, value = sizes.latents
    whole = sizes.heads * (plain + rotary)
    found: tuple[Tensor, ...] = ()
    if query:
        found += linear(sizes, "linear_q_down_proj", query, sizes.hidden, "attention", "replicated")
        found += norm(sizes, "q_layernorm", query)
    found += linear(sizes, "linear_q_up_proj", whole, query or sizes.hidden, "attention", "column")
    down, up = latent + rotary, sizes.heads * (plain + value)
    found += linear(sizes, "linear_kv_down_proj", down, sizes.hidden, "attention", "replicated")
    found += norm(sizes, "kv_layernorm", latent)
    found += linear(sizes, "linear_kv_up_proj", up, latent, "attention", "column")
    return found + linear(
        sizes, "linear_proj", sizes.hidden, sizes.heads * value, "attention", "row"
    )


def attention(sizes: Sizes) -> tuple[Tensor, ...]:
    """Fused queries, keys and values, the output projection, and norms of queries and keys."""
    if sizes.latents[1]:
        return latent_attention(sizes)
    query, key = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    found = linear(sizes, "linear_qkv", query + 2 * key, sizes.hidden, "attention", "column")
    found += linear(sizes, "linear_proj", sizes.hidden, query, "attention", "row")
    if sizes.qk_norm:
        found += norm(sizes, "q_layernorm", sizes.head_dim)
        found += norm(sizes, "k_layernorm", sizes.head_dim)
    return found


def mlp(sizes: Sizes, width: int, name: str = "mlp") -> tuple[Tensor, ...]:
    """A dense MLP; gate and up are one matrix."""
    gate = 2 if sizes.gated else 1
    return (
        *linear(sizes, f"{name}.linear_fc1", gate * width, sizes.hidden, "mlp", "column"),
        *linear(sizes, f"{name}.linear_fc2", sizes.hidden, width, "mlp", "row"),
    )


def experts(sizes: Sizes) -> tuple[Tensor, ...]:
    """Router, routed experts as two stacks, the latent projections and a shared expert."""
    gate, width = (2 if sizes.gated else 1), sizes.latent or sizes.hidden
    first = (sizes.experts, gate * sizes.expert_ffn, width)
    second = (sizes.experts, width, sizes.expert_ffn)
    found = [
        Tensor("router.weight", (sizes.experts, sizes.hidden), "router", "replicated"),
        Tensor("experts.linear_fc1", first, "experts", "expert"),
        Tensor("experts.linear_fc2", second, "experts", "expert"),
    ]
    if sizes.latent:
        down, up = (sizes.latent, sizes.hidden), (sizes.hidden, sizes.latent)
        found.append(Tensor("fc1_latent_proj.weight", down, "router", "replicated"))
        found.append(Tensor("fc2_latent_proj.weight", up, "router", "replicated"))
    if sizes.shared_ffn:
        found += mlp(sizes, sizes.shared_ffn, "shared_experts")
    return tuple(found)


def block(sizes: Sizes, index: int) -> Module:
    """One transformer layer."""
    sparse = bool(sizes.sparse) and sizes.sparse[index]
    query, latent, plain, rotary, value = sizes.latents
    shape = BlockShape(
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=plain + rotary if latent else sizes.head_dim,
        value_head_dim=value if latent else sizes.head_dim,
        q_lora_rank=query,
        kv_lora_rank=latent,
        rope_head_dim=rotary,
        intermediate=0 if sparse else sizes.ffn,
        gated=sizes.gated,
        activation="silu" if sizes.gated else "gelu",
        norm=sizes.norm,
        experts=sizes.experts if sparse else 0,
        experts_per_token=sizes.experts_per_token if sparse else 0,
        expert_intermediate=sizes.expert_ffn if sparse else 0,
        shared_intermediate=sizes.shared_ffn if sparse else 0,
        causal=sizes.causal,
        rotary=not sizes.positions,
        dropout=sizes.dropout,
        attention_dropout=sizes.dropout,
        qk_norm=sizes.qk_norm and not latent,
    )
    tensors = norm(sizes, "input_layernorm") + attention(sizes) + norm(sizes, "pre_mlp_layernorm")
    tensors += experts(sizes) if sparse else mlp(sizes, sizes.ffn)
    return Module(f"decoder.layers.{index}", "block", tensors, shape)


def _table(name: str, rows: int, sizes: Sizes, part: str, cut: str) -> Module:
    weight = Tensor(f"{name}.weight", (rows, sizes.hidden), part, cut)
    return Module(name, "embedding", (weight,))


def _model(sizes: Sizes, name: str, before: list[Module], after: list[Module]) -> Model:
    blocks = [block(sizes, index) for index in range(sizes.layers)]
    return Model(
        name=name,
        architecture="megatron",
        modules=(*before, *blocks, *after),
        hidden=sizes.hidden,
        vocabulary=sizes.vocabulary,
        max_positions=sizes.positions,
        tied=sizes.tied,
        torch_dtype="bfloat16",
        fixed_sequence=0,
        assumptions=(),
        known=True,
    )


def gpt(sizes: Sizes, name: str) -> Model:
    """megatron/core/models/gpt/gpt_model.py."""
    before = [_table("word_embeddings", sizes.vocabulary, sizes, "embedding", "vocabulary")]
    if sizes.positions:
        table = _table("position_embeddings", sizes.positions, sizes, "position", "replicated")
        before.append(table)
    after = [Module("final_layernorm", "norm", norm(sizes, "final_layernorm"))]
    if not sizes.tied:
        weight = Tensor("weight", (sizes.vocabulary, sizes.hidden), "head", "vocabulary")
        after.append(Module("output_layer", "head", (weight,)))
    return _model(sizes, name, before, after)


def bert(sizes: Sizes, name: str) -> Model:
    """megatron/core/models/bert/bert_model.py with the binary head: two token types, a pooler."""
    before = [
        _table("word_embeddings", sizes.vocabulary, sizes, "embedding", "vocabulary"),
        _table("position_embeddings", sizes.positions, sizes, "position", "replicated"),
        _table("tokentype_embeddings", 2, sizes, "position", "replicated"),
    ]
    head = linear(sizes, "lm_head.dense", sizes.hidden, sizes.hidden, "head", "replicated")
    head += norm(sizes, "lm_head.layer_norm")
    head += (Tensor("output_layer.bias", (sizes.vocabulary,), "head", "vocabulary"),)
    pooler = linear(sizes, "pooler.dense", sizes.hidden, sizes.hidden, "head", "replicated")
    pooler += linear(sizes, "binary_head", 2, sizes.hidden, "head", "replicated")
    after = [
        Module("final_layernorm", "norm", norm(sizes, "final_layernorm")),
        Module("lm_head", "other", head),
        Module("pooler", "other", pooler),
    ]
    return _model(sizes, name, before, after)


def _cross_attention(sizes: Sizes) -> tuple[Tensor, ...]:
    """Queries of the decoder, keys and values of the encoder's result, and the output."""
    width = sizes.heads * sizes.head_dim
    return (
        *norm(sizes, "pre_cross_attn_layernorm"),
        *linear(sizes, "linear_q", width, sizes.hidden, "attention", "column"),
        *linear(sizes, "linear_kv", 2 * width, sizes.hidden, "attention", "column"),
        *linear(sizes, "cross_proj", sizes.hidden, width, "attention", "row"),
    )


def t5(sizes: Sizes, name: str, encoder_tokens: int) -> Model:
    """megatron/core/models/T5/t5_model.py: equally many encoder and decoder layers, one table."""
    before = [_table("word_embeddings", sizes.vocabulary, sizes, "embedding", "vocabulary")]
    before.append(_table("position_embeddings", sizes.positions, sizes, "position", "replicated"))
    encoder, decoder = [], []
    for index in range(sizes.layers):
        own = block(sizes, index)
        assert own.block is not None
        side = replace(own.block, causal=False, tokens="encoder")
        encoder.append(Module(f"encoder.layers.{index}", "block", own.tensors, side))
        side, tensors = replace(own.block, cross_attention=True), own.tensors
        tensors += _cross_attention(sizes)
        decoder.append(Module(own.name, "block", tensors, side))
    between = [Module("encoder.final_layernorm", "norm", norm(sizes, "final_layernorm"))]
    bias = (Tensor("lm_head.bias", (sizes.vocabulary,), "head", "vocabulary"),)
    after = [
        Module("decoder.final_layernorm", "norm", norm(sizes, "final_layernorm")),
        Module("lm_head", "other", bias),
    ]
    model = _model(sizes, name, before, after)
    modules = (*before, *encoder, *between, *decoder, *after)
    return replace(model, modules=modules, fixed_sequence=encoder_tokens)
