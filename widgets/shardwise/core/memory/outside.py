"""What is saved outside the blocks: inputs, position tables, final norm, the head's input."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from shardwise.core.memory.operators.norms import norm_backward, norm_bytes
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.memory.stages import Stage
from shardwise.core.scenario import Scenario
from shardwise.core.structure import BlockShape


class Outside(NamedTuple):
    """Bytes saved for one micro-batch before the blocks (kept to the end) and after them.

    `shared` of `early` is what all blocks read (T5's position bias): it goes with the first block;
    `decoder` of it with the decoder's first.
    """

    early: float
    late: float
    shared: float = 0.0
    decoder: float = 0.0


def table_bytes(scenario: Scenario, stage: Stage) -> float:
    """Tables that modules keep as buffers: rotations, as long as the sequence is, and masks.

    torchtitan: d/2 complex numbers a position on every stage (models/llama3/model/model.py,
    `freqs_cis`). nanotron: in each layer that table in fp32 and flash-attn's 16-bit cos and sin
    (src/nanotron/models/llama.py). GPT-BigCode's causal mask is one, a byte for
    each pair of positions.
    """
    training = scenario.training
    if training.model_code == "transformers":
        return float(stage.blocks[0][0].mask_table ** 2) if stage.blocks else 0.0
    rotary = [(shape, count) for shape, count in stage.blocks if shape.rotary and shape.attention]
    if training.model_code not in ("torchtitan", "nanotron") or not rotary:
        return 0.0
    if training.model_code == "torchtitan":
        first = rotary[0][0]
        return 4.0 * training.sequence_length * (first.rope_head_dim or first.head_dim)
    each = 4 + training.precision.compute_bytes
    return each * training.sequence_length * sum(s.head_dim * count for s, count in rotary)


def _rotary_bytes(stage: Stage, tokens: Tokens, kernel: Kernel) -> float:
    """Rotation tables: cos and sin of 2d each made in every forward pass (transformers).

    Tables that are buffers of the modules are counted once for all micro-batches (`table_bytes`).
    """
    first = stage.blocks[0][0]
    width = first.rope_head_dim or first.head_dim
    return 0.0 if kernel.separate else 2 * kernel.residual * tokens.length * width


def outside_saved(
    stage: Stage, tokens: Tokens, kernel: Kernel, vocabulary: int, seen: Tokens | None = None
) -> Outside:
    """Bytes outside the blocks; nothing is counted for Megatron-LM.

    `seen` are the tokens of the first block, a vision tower's patches: the same where left out.
    Token ids 8 each, a picture's pixels, rotary cos and sin 2d each once, dropout after the
    embedding (mask and result), BLOOM's norm there, T5's bucket indices 8s² and bias; the final
    norm (8h + 4 in RMSNorm), its result as the head's input, the labels:
    `data/traces/ACTIVATIONS.md`, outside the layers.
    Sequence parallelism splits the final norm and what it hands to the head.
    """
    if stage.blocks and kernel.model_code == "megatron":
        return _megatron(stage, tokens, kernel)
    if not kernel.followed or not stage.blocks:
        return Outside(0.0, 0.0)
    first, last = stage.blocks[0][0], stage.blocks[-1][0]
    stream = stream_kernel(last, kernel)
    count, early, late, shared, decoder = tokens.count, 0.0, 0.0, 0.0, 0.0
    if kernel.frozen is not None and not kernel.frozen.flows:
        return Outside(0.0, _head_alone(stage, tokens, kernel, vocabulary))
    if stage.has_embedding:
        early = 8.0 * count if vocabulary else 0.0
        if first.tokens == "image":
            early += _pixel_bytes(stage, seen or tokens, kernel, alone=not vocabulary)
        if any(shape.rotary and shape.attention for shape, _ in stage.blocks):
            early += _rotary_bytes(stage, tokens, kernel)
        if first.dropout and first.embedding_dropout:
            # Its result is the first LayerNorm's input, which the blocks count.
            result = 0 if first.norm == "layernorm" and first.causal else kernel.residual
            early += (1 + result) * count * first.hidden
        elif _norms_words(first) and vocabulary:
            early += kernel.residual * count * first.hidden
        trained = kernel.frozen is None or {"embedding", "norm"} & set(kernel.frozen.trained)
        if kernel.eager_modules and norms_embedding(stage) and trained:
            early += norm_bytes(first, count, first.hidden, kernel)
        shared, decoder = _position_bias(stage, tokens, kernel)
        if first.tokens == "image" and last.tokens != "image":
            shared = decoder = _feature_bytes(stage, seen or tokens, kernel)
    if stage.has_head:
        late = norm_bytes(last, count, last.hidden, stream)
        trains_head = kernel.frozen is None or "head" in kernel.frozen.trained
        reads = kernel.element_bytes * last.hidden if vocabulary and trains_head else 0
        late += count * (reads + 8)
        if (
            not last.causal and vocabulary and last.norm == "layernorm"
        ):  # BERT's transform: dense, GELU, norm
            late += 2 * kernel.element_bytes * count * last.hidden
    split = kernel.tensor if kernel.sequence_parallel else 1
    by_torch = kernel.sequence_parallel and kernel.model_code in ("torchtitan", "compiled")
    if (kernel.gathers_inputs or by_torch) and stage.has_head and vocabulary:
        head_input = kernel.element_bytes * count * last.hidden
        return Outside(early + shared, (late - head_input) / split + head_input, shared, decoder)
    return Outside(early + shared, late / split, shared, decoder)


def _pixel_bytes(stage: Stage, seen: Tokens, kernel: Kernel, alone: bool) -> float:
    """The pictures, and their copy in the compute type; a patch a token.

    An encoder alone has a class token more (ViT).
    """
    patch = sum(t.elements for t in stage.root_tensors if len(t.shape) == 4)
    patches = seen.count - seen.samples if alone else seen.count
    return (4 + kernel.element_bytes) * patch / stage.blocks[0][0].hidden * patches


def _feature_bytes(stage: Stage, seen: Tokens, kernel: Kernel) -> float:
    """What lies between a vision tower and its decoder: a norm, then a projection reads features.

    transformers' gemma3 (`Gemma3MultiModalProjector`) and llama4 (`Llama4VisionMLP2`).
    """
    tower = stage.blocks[0][0]
    features = kernel.element_bytes * seen.count * tower.hidden
    return norm_bytes(tower, seen.count, tower.hidden, kernel) + features


def stream_kernel(shape: BlockShape, kernel: Kernel) -> Kernel:
    """The kernel of a norm outside the blocks: over an fp32 stream where blocks keep one."""
    if shape.fp32_stream and kernel.residual < 4:
        return replace(kernel, residual_bytes=4)
    return kernel


def final_norm_backward(stage: Stage, tokens: Tokens, kernel: Kernel) -> float:
    """Bytes of the final norm and of its backward, which has no residual gradient beside it.

    It is the peak where logits are small: few entries, or a split vocabulary (traced).
    """
    flows = kernel.frozen is None or kernel.frozen.flows
    if not (flows and kernel.followed and stage.has_head and stage.blocks):
        return 0.0
    last = stage.blocks[-1][0]
    if not last.causal:
        return 0.0
    split = kernel.tensor if kernel.sequence_parallel else 1
    kernel = stream_kernel(last, kernel)
    inside = (
        norm_backward(last, tokens.count, kernel) - kernel.residual * tokens.count * last.hidden
    )
    return (norm_bytes(last, tokens.count, last.hidden, kernel) + inside) / split


def _head_alone(stage: Stage, tokens: Tokens, kernel: Kernel, vocabulary: int) -> float:
    """Bytes of the head's input and the labels, where nothing before the head is trained."""
    if not stage.has_head:
        return 0.0
    reads = kernel.element_bytes * stage.blocks[-1][0].hidden if vocabulary else 0
    return tokens.count * (reads + 8.0)


def _position_bias(stage: Stage, tokens: Tokens, kernel: Kernel) -> tuple[float, float]:
    """T5: bucket indices of both stacks, and before the decoder a bias of zeros and two dropouts.

    (bytes of both stacks, the decoder's among them).
    """
    shared = decoder = 0.0
    cells = tokens.length * tokens.attended
    for shape in {shape for shape, _ in stage.blocks if shape.position_bias}:
        own = 8.0 * cells
        if shape.cross_attention:
            own += kernel.element_bytes * shape.heads / kernel.tensor * cells
            own += (10 + 2 * kernel.residual) * tokens.count * shape.hidden
            decoder = decoder + own
        shared = shared + own
    return shared, decoder


def _megatron(stage: Stage, tokens: Tokens, kernel: Kernel) -> Outside:
    """Megatron-LM: the mask of the dropout after the embedding; the final norm's input and result.

    Sequence parallelism splits all three (Korthikanti et al. 2022, section 4.3). BLOOM's embedding
    has a norm, which keeps its input (Megatron-DeepSpeed, `--embed-layernorm`).
    """
    outside = kernel.tensor if kernel.sequence_parallel else 1
    width = tokens.count * stage.blocks[-1][0].hidden / outside
    early = width if stage.has_embedding and stage.blocks[0][0].dropout else 0.0
    if norms_embedding(stage):
        early += kernel.element_bytes * width
    return Outside(early, 2 * kernel.element_bytes * width if stage.has_head else 0.0)


def _norms_words(first: BlockShape) -> bool:
    """Whether an encoder's embedding has a norm, whose input counts above where dropout follows."""
    return not first.causal and first.norm == "layernorm" and first.tokens == "sequence"


def norms_embedding(stage: Stage) -> bool:
    """Whether a causal model has a norm between embedding and blocks, over the final one."""
    norms = sum(t.count for t in stage.root_tensors if t.part == "norm" and len(t.shape) == 1)
    return stage.has_embedding and stage.blocks[0][0].causal and norms > 2 * stage.has_head
