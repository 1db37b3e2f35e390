"""Recorded layers against what torch's autograd really saves, at sizes that were not recorded."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.core.memory.activations import block_saved
from shardwise.core.memory.operators.recorded import recorded_layer
from shardwise.core.memory.operators.run import Kernel, Tokens
from shardwise.core.model import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

BASE = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SCAN = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_chunk_size": 16}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 56, "num_hidden_layers": 2, "state_size": 8},
    "falcon_mamba": {"hidden_size": 40, "num_hidden_layers": 2, "state_size": 6},
    "mamba2": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "n_groups": 2,
        "state_size": 12, "chunk_size": 16,
    },
    "jamba": HEADS | {
        "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_experts": 1,
        "num_experts_per_tok": 1,
    },
    "bamba": HEADS | SCAN | {
        "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2,
    },
    "granitemoehybrid": HEADS | SCAN | {
        "hidden_size": 64, "shared_intermediate_size": 80, "num_hidden_layers": 2,
        "num_local_experts": 0, "residual_multiplier": 0.5,
    },
    "nemotron_h": HEADS | {
        "hidden_size": 64, "intermediate_size": 80, "head_dim": 16, "mamba_num_heads": 8,
        "mamba_head_dim": 10, "n_groups": 2, "ssm_state_size": 12, "chunk_size": 16,
        "layers_block_type": ["mlp", "mamba"],
    },
    "lfm2": HEADS | {
        "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2,
        "block_auto_adjust_ff_dim": False, "layer_types": ["conv", "conv"],
    },
    "qwen3_next": HEADS | {
        "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "head_dim": 16,
        "linear_num_key_heads": 2, "linear_key_head_dim": 10, "linear_num_value_heads": 6,
        "linear_value_head_dim": 14, "mlp_only_layers": [0, 1],
    },
}  # fmt: skip


def saved_for_real(config: dict[str, Any], dtype: Any, samples: int, length: int) -> int:
    """Bytes of the storages that the second layer's autograd graph saves on the CPU."""
    torch.manual_seed(0)
    values = {key: value for key, value in config.items() if key != "model_type"}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **values, use_cache=False)
    )
    model = model.to(dtype).train()
    layer = model.base_model.layers[1]
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage
        return tensor

    stream = (
        torch.float32 if model.config.model_type in ("mamba", "mamba2", "falcon_mamba") else dtype
    )
    hidden = torch.zeros(samples, length, config["hidden_size"], dtype=stream, requires_grad=True)
    hidden = hidden + 0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(hidden, **({"position_embeddings": None} if "linear_num_key_heads" in config else {}))
    sizes = {p.numel() for p in layer.parameters()}
    return sum(s.nbytes() for s in held.values() if not _of_weights(s, sizes))


def _of_weights(storage: Any, sizes: set[int]) -> bool:
    """A weight's copy in another type, which is counted with the weights."""
    return storage.nbytes() // 4 in sizes or storage.nbytes() // 2 in sizes or storage.nbytes() <= 8


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("bits", [16, 32])
def test_saved_bytes_are_those_that_autograd_saves(kind: str, bits: int) -> None:
    """Sizes, lengths and batches other than the recorded ones: within 1 % of the real graph."""
    config = BASE | CONFIGS[kind] | {"model_type": kind}
    dtype = torch.bfloat16 if bits == 16 else torch.float32
    shape = Model.from_config(config).blocks[1].block
    assert shape is not None
    kernel = Kernel(bits // 8, 1, False, "flash", "transformers")
    length = 300 if kind == "qwen3_next" else 53  # several chunks of 64
    saved = block_saved(shape, Tokens(3, length, length), kernel)
    assert recorded_layer(shape, kernel) is not None
    assert saved.total == pytest.approx(saved_for_real(config, dtype, 3, length), rel=0.01)


def test_layers_that_were_not_recorded_have_no_record() -> None:
    """Other code, tensor parallelism or a latent of experts: no figure is made up."""
    config = BASE | CONFIGS["mamba2"] | {"model_type": "mamba2"}
    shape = Model.from_config(config).blocks[0].block
    assert shape is not None
    assert recorded_layer(shape, Kernel(2, 1, False, "flash", "transformers")) is not None
    assert recorded_layer(shape, Kernel(2, 2, False, "flash", "transformers")) is None
    assert recorded_layer(shape, Kernel(2, 1, False, "flash", "torchtitan")) is None
