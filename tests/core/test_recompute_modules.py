"""Megatron-LM's selective recomputation by module: what each name drops."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.core.errors import ScenarioError
from shardwise.core.memory import estimate
from shardwise.core.memory.activations import block_saved
from shardwise.core.memory.kept import block_memory, tokens_of
from shardwise.core.memory.kernel import kernel_of
from shardwise.core.memory.operators.recompute import module_bytes, recomputed_modules
from shardwise.core.permalink import from_query, to_query
from shardwise.core.scenario import Scenario
from shardwise.core.training import RECOMPUTE_MODULES


def scenario(modules: object, **training: Any) -> Scenario:
    """DeepSeek-V2-Lite with unfused attention: latent attention, experts, one dense layer."""
    given = {
        "model_code": "megatron",
        "attention": "math",
        "activation_checkpointing": "selective",
        "recompute_modules": modules,
    }
    return Scenario.from_dict(
        {
            "model": "deepseek-v2-lite",
            "training": {**given, **training},
            "layout": {"engine": "megatron"},
        }
    )


def test_each_module_drops_the_operators_that_it_is() -> None:
    """Scores, latent queries and keys, norms' results, MLP and experts; not in other layers."""
    laid = scenario(["core_attn"])
    dense, sparse = laid.model.blocks[0].block, laid.model.blocks[-1].block
    assert dense is not None and sparse is not None
    saved = {
        shape: dict(block_saved(shape, tokens_of(laid, shape), kernel_of(laid)).operators)
        for shape in (dense, sparse)
    }
    for shape, sizes in saved.items():
        assert module_bytes(shape, sizes, "core_attn") == sizes["attention scores"]
        assert module_bytes(shape, sizes, "mla_up_proj") == sizes["queries, keys, values"]
    assert module_bytes(dense, saved[dense], "mlp") == saved[dense]["MLP"]
    assert module_bytes(dense, saved[dense], "moe_act") == 0
    assert module_bytes(sparse, saved[sparse], "mlp") == 0
    assert module_bytes(sparse, saved[sparse], "moe_act") == saved[sparse]["experts"] / 3
    norms = saved[sparse]["attention input"] + saved[sparse]["MLP input"]
    assert module_bytes(sparse, saved[sparse], "layernorm") == norms


def test_a_block_keeps_the_rest_and_makes_one_module_again_at_a_time() -> None:
    """What all named modules drop is not kept; the largest of them is there in backward."""
    laid = scenario(["layernorm", "mla_up_proj", "moe_act"])
    shape = laid.model.blocks[-1].block
    assert shape is not None
    tokens, kernel = tokens_of(laid, shape), kernel_of(laid)
    saved = block_saved(shape, tokens, kernel)
    dropped, largest = recomputed_modules(shape, dict(saved.operators), kernel.recomputed)
    memory = block_memory(shape, tokens, kernel, "selective")
    assert (memory.kept, memory.recomputed) == (saved.total - dropped, largest)
    assert 0 < largest < dropped


@pytest.mark.parametrize("module", RECOMPUTE_MODULES)
def test_more_modules_never_need_more_before_the_loss(module: str) -> None:
    """At forward's end; names come back in one order, through dict and link."""
    one, more = scenario(["core_attn"]), scenario([module, "core_attn"])
    ends = [estimate(each).phases["forward"]["activations"] for each in (more, one)]
    assert ends[0] <= ends[1]
    assert Scenario.from_dict(more.to_dict()) == more
    assert from_query(to_query(more)).scenario == more
    assert scenario(["core_attn", module]) == more


@pytest.mark.parametrize(
    "change", [{"activation_checkpointing": "full"}, {"model_code": "torchtitan"}]
)
def test_other_code_and_kinds_do_not_read_them(change: dict[str, Any]) -> None:
    """The same bytes as without, and a sentence that says so."""
    named, usual = scenario(["mlp"], **change), scenario(["core_attn"], **change)
    assert estimate(named).peak_bytes == estimate(usual).peak_bytes
    assert any("selective checkpointing alone" in line for line in estimate(named).assumptions)


@pytest.mark.parametrize("modules", [["softmax"], [], "mlp", [1]])
def test_names_that_nobody_knows_are_refused(modules: object) -> None:
    """An unknown name, none, or no list."""
    with pytest.raises(ScenarioError) as caught:
        scenario(modules)
    assert caught.value.field == "training.recompute_modules"
