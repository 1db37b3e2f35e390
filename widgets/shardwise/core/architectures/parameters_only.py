"""Only a number of parameters is known: a LLaMA-like decoder of exactly that total."""

from __future__ import annotations

from functools import lru_cache

from shardwise.core.architectures.llama_like import LLAMA
from shardwise.core.config_fields import ConfigFields
from shardwise.core.model import Model
from shardwise.core.structure import Module, Tensor
from shardwise.core.units import format_count, parse_whole

SMALLEST, LARGEST = 10**6, 10**14
_VOCABULARY = 32_000
# Above this LLaMA has a head of its own and shares key-value heads from 30 B on (arXiv 2307.09288).
_UNTIED, _GROUPED = 10**9, 30 * 10**9
# Hidden size over layers: 102 for LLaMA-2-70B, 128 for 7B and 13B, 94 for GPT-3 13B.
_ASPECT = 100


def decoder_of(parameters: float | str, name: str = "") -> Model:
    """A decoder whose tensors sum to `parameters`; what no layer takes is one stated tensor.

    Blocks hold about 12 h^2 parameters each (4 h^2 attention, 8 h^2 MLP: Kaplan et al.,
    arXiv 2001.08361, table 1), so hidden size h and layers L follow from the total and from
    h / L = 100; the MLP's width then takes up the rest in steps of 64.

    >>> model = decoder_of(7e9)
    >>> model.hidden, model.layers, model.parameters
    (4096, 32, 7000000000)
    """
    total = parse_whole(parameters, "parameters", minimum=SMALLEST, maximum=LARGEST)
    return _decoder(total, name)


@lru_cache(maxsize=64)
def _decoder(total: int, name: str) -> Model:
    """One object for one size, so that caches find it without comparing its tensors."""
    tied = total < _UNTIED
    config = _shape(total, tied)
    draft = LLAMA.build(ConfigFields(config, {}, "LLaMA"), "lm")
    rest = total - sum(module.parameters for module in draft.modules)
    assert rest >= 0, f"the shape of {total} parameters overshoots by {-rest}"
    other = Tensor("remainder", (rest,), "other", "replicated")
    modules = draft.modules + ((Module("remainder", "other", (other,)),) if rest else ())
    return Model(
        name=name or f"{format_count(total)} parameters",
        architecture="parameters only",
        modules=modules,
        hidden=draft.hidden,
        vocabulary=draft.vocabulary,
        max_positions=0,
        tied=tied,
        torch_dtype="bfloat16",
        fixed_sequence=0,
        assumptions=(_sentence(config, rest),),
        known=False,
    )


def _shape(total: int, tied: bool) -> dict[str, object]:
    """The config of the largest such decoder that does not exceed the total."""
    ideal = (total * _ASPECT / 12) ** (1 / 3)
    step = 1024 if ideal >= 1536 else 128 if ideal >= 256 else 64
    hidden = max(step, round(ideal / step) * step)
    vocabulary = min(_VOCABULARY, total // (4 * hidden) // 64 * 64)
    tables = vocabulary * hidden * (1 if tied else 2)
    layers = max(1, round((total - tables) / (12 * hidden**2)))
    layers = round(layers / 8) * 8 if layers >= 16 else -(-layers // 2) * 2
    heads = hidden // (128 if hidden >= 2048 else 64)
    kv_heads = 8 if total >= _GROUPED and heads % 8 == 0 else heads
    attention = 2 * hidden**2 * (heads + kv_heads) // heads
    free = total - tables - hidden - layers * (attention + 2 * hidden)
    intermediate = free // (3 * hidden * layers) // 64 * 64
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
    }


def _sentence(config: dict[str, object], rest: int) -> str:
    ties = "shared with" if config["tie_word_embeddings"] else "apart from"
    return (
        "Only the number of parameters is known: a LLaMA-like decoder is assumed "
        f"({config['num_hidden_layers']} layers, hidden size {config['hidden_size']}, "
        f"{config['num_attention_heads']} heads, {config['num_key_value_heads']} key-value heads, "
        f"MLP {config['intermediate_size']}, vocabulary {config['vocab_size']}, head {ties} the "
        f"embedding); the {rest:,} parameters that it leaves over are one tensor by themselves."
    )
