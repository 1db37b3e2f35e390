"""DeepSpeed's `estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs`.

deepspeed/runtime/zero/stage_1_and_2.py and stage3.py of release 0.19.8.
"""

from __future__ import annotations

from collections import Counter

from shardwise.core.model import Model
from shardwise.core.peers.row import PeerRow
from shardwise.core.scenario import Scenario

PEER, VERSION = "DeepSpeed estimator", "0.19.8"
_SOURCE = "deepspeed/runtime/zero/stage_1_and_2.py, stage3.py: estimate_zero{2,3}_model_states_*"
_LEAVES_OUT = (
    "Activations, logits and the loss are not counted: it gives model states only.",
    "Buckets (5e8 elements), prefetch and the 1e9 live parameters of stage 3 are not counted.",
    "16-bit weights and Adam with fp32 states are taken for granted.",
)


def zero2(
    parameters: int, gpus: int, nodes: int, *, offload: bool, factor: float = 1.5
) -> tuple[int, int]:
    """(CPU bytes a node, GPU bytes) of stage 2: 2P + 18P/N on the GPU, 2P with offload.

    >>> round(zero2(2851_000_000, 8, 1, offload=False)[1] / 2**30, 2)
    11.28
    """
    total = gpus * nodes
    if offload:
        return int(parameters * max(4 * total, 16) * factor), 2 * parameters
    return int(parameters * 4 * gpus * factor), 2 * parameters + int(18 * parameters / total)


def zero3(
    parameters: int,
    largest: int,
    gpus: int,
    nodes: int,
    *,
    offload: bool,
    offload_parameters: bool,
    zero_init: bool = True,
    factor: float = 1.5,
) -> tuple[int, int]:
    """(CPU bytes a node, GPU bytes) of stage 3: 4 * largest layer + 18P/N on the GPU.

    >>> zero3(2851_000_000, 32_000_000, 8, 1, offload=False, offload_parameters=False)[1]
    6542750000
    """
    layer, share = 4 * largest, 1 / nodes
    if not offload:
        held = largest if zero_init else parameters
        return int(held * 4 * gpus * factor), layer + int(18 * parameters / (gpus * nodes))
    each = 18 if offload_parameters else 16
    host = parameters * each * share  # in its order: 18P / 7 nodes rounds otherwise
    if not zero_init:
        host = parameters * max(4 * gpus, each * share)
    on_gpu = layer if offload_parameters else layer + int(2 * parameters / (gpus * nodes))
    return int(host * factor), on_gpu


def largest_layer(model: Model) -> int:
    """The most parameters that one module holds itself: stage3.py's `model_to_params`."""
    own: Counter[str] = Counter()
    for tensor in model.tensors:
        own[tensor.name.rpartition(".")[0]] += tensor.elements
    return max(own.values())


def row(scenario: Scenario) -> PeerRow:
    """What the estimator of the scenario's stage prints."""
    layout, model = scenario.layout, scenario.model
    stage, gpus, nodes = layout.zero_stage, scenario.cluster.gpus_per_node, scenario.cluster.nodes
    if stage < 2:
        reason = f"It knows ZeRO stages 2 and 3; this layout is stage {stage}."
        return PeerRow(PEER, VERSION, "", None, not_applicable=reason, source=_SOURCE)
    offload = layout.offload_optimizer != "none"
    largest = largest_layer(model)
    if stage == 2:
        host, gpu = zero2(model.parameters, gpus, nodes, offload=offload)
        parts = {"16-bit weights": 2.0 * model.parameters}
    else:
        both = offload and layout.offload_parameters != "none"
        host, gpu = zero3(
            model.parameters, largest, gpus, nodes, offload=offload, offload_parameters=both
        )
        parts = {"largest layer": 4.0 * largest}
    rest = gpu - sum(parts.values())
    if rest:
        parts["sharded states"] = rest
    there = f"{_several(gpus, 'GPU')} x {_several(nodes, 'node')}"
    setting = f"stage {stage}, {there}, offload_optimizer="
    setting += f"{layout.offload_optimizer}" + (", zero_init" if stage == 3 else "")
    return PeerRow(
        PEER, VERSION, setting, float(gpu), parts, float(host), _LEAVES_OUT + _degrees(scenario),
        _defects(stage, offload, nodes), source=_SOURCE,
    )  # fmt: skip


def _degrees(scenario: Scenario) -> tuple[str, ...]:
    layout = scenario.layout
    if layout.tensor_parallel * layout.pipeline_parallel == 1:
        return ()
    return ("Tensor and pipeline parallelism are unknown to it: it shards over all GPUs.",)


def _defects(stage: int, offload: bool, nodes: int) -> tuple[str, ...]:
    if stage == 2 and offload and nodes > 1:
        return ("Host memory a node is multiplied by all GPUs, not by the node's own.",)
    if stage == 2 and not offload:
        return ("The documentation prints 4P + 16P/N; the code computes 2P + 18P/N.",)
    return ()


def _several(count: int, name: str) -> str:
    """A count with its noun.

    >>> _several(1, "node"), _several(8, "GPU")
    ('1 node', '8 GPUs')
    """
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
