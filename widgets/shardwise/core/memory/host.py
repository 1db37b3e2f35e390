"""Host memory of one node: what offloading puts there."""

from __future__ import annotations

from shardwise.core.memory.stages import Stage
from shardwise.core.memory.states import stage_states
from shardwise.core.scenario import Scenario

DEEPSPEED_BUFFER_FACTOR = 1.5
"""`additional_buffer_factor` of deepspeed/runtime/zero/stage3.py's estimator."""


def host_bytes_per_node(scenario: Scenario, stages: tuple[Stage, ...]) -> float:
    """Bytes of offloaded states in one node's RAM; 0 without offload to the CPU.

    Each rank's shard of master weights, moments and an fp32 gradient (ZeRO-Offload, Ren et al.
    2021, section 4.1: 16 bytes a parameter with the 16-bit gradient), and its parameters where
    these are offloaded too; times the GPUs of a node, times DeepSpeed's factor for pinned buffers
    under that engine.

    >>> from shardwise.core.scenario import Scenario
    >>> from shardwise.core.memory.stages import stages_of
    >>> s = Scenario.from_dict({"model": {"parameters": 7e9}})
    >>> host_bytes_per_node(s, stages_of(s.model, s.layout))
    0.0
    """
    layout, precision = scenario.layout, scenario.training.precision
    if layout.offload_optimizer != "cpu" and layout.offload_parameters != "cpu":
        return 0.0
    worst = 0.0
    for stage in stages:
        states = stage_states(stage, layout, precision, scenario.training.optimizer, scenario.shard)
        size = 0.0
        if layout.offload_optimizer == "cpu":
            size += states.master_weights + states.optimizer_state
            size += 4.0 * (states.sharded_elements if layout.zero_stage else stage.elements)
        if layout.offload_parameters == "cpu" or layout.engine in ("fsdp1", "fsdp2"):
            size += states.parameters
        worst = max(worst, size)
    factor = DEEPSPEED_BUFFER_FACTOR if layout.engine == "deepspeed" else 1.0
    return worst * scenario.cluster.gpus_per_node * factor
