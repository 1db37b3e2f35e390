"""Host memory of one node: what offload puts there and what stays, NVMe's buffers, loading."""

from __future__ import annotations

from shardwise.core.layout import Layout
from shardwise.core.memory.deepspeed import SUB_GROUP
from shardwise.core.memory.stages import Stage
from shardwise.core.memory.states import States, stage_states
from shardwise.core.scenario import Scenario

DEEPSPEED_BUFFER_FACTOR = 1.5
"""`additional_buffer_factor` of deepspeed/runtime/zero/stage3.py's estimator."""

PARAMETER_BUFFERS, PARAMETER_BUFFER_ELEMENTS = 5, 100_000_000
"""`offload_param`'s buffer_count and buffer_size (deepspeed/runtime/zero/offload_config.py)."""

OPTIMIZER_BUFFERS = 4
"""`offload_optimizer`'s buffer_count, each of the largest sub-group in fp32 (same file)."""


def after_offload(states: States, layout: Layout) -> States:
    """What stays on the GPU of a stage's states.

    An offloaded optimizer takes master weights, moments and the reduced gradients to the host
    (ZeRO-Offload, Ren et al. 2021, section 4.1); FSDP's CPUOffloadPolicy takes the parameter shards
    too; Megatron-LM's offload leaves the gradients.
    """
    if layout.offload_optimizer == "none" and layout.offload_parameters == "none":
        return states
    optimizer_stays = layout.offload_optimizer == "none"
    parameters_go = layout.offload_parameters != "none" or (
        not optimizer_stays and layout.engine in ("fsdp1", "fsdp2")
    )
    gradients_stay = optimizer_stays or layout.engine == "megatron"
    return States(
        parameters=0.0 if parameters_go else states.parameters,
        gradients=states.gradients if gradients_stay else 0.0,
        master_weights=states.master_weights if optimizer_stays else 0.0,
        optimizer_state=states.optimizer_state if optimizer_stays else 0.0,
        sharded_elements=states.sharded_elements,
        frozen=0.0 if parameters_go else states.frozen,
    )


def host_bytes_per_node(scenario: Scenario, stages: tuple[Stage, ...]) -> float:
    """Bytes of offloaded states and swap buffers in one node's RAM; 0 without offload.

    To the CPU: each rank's shard of master weights, moments and an fp32 gradient (ZeRO-Offload, Ren
    et al. 2021, section 4.1: 16 bytes a parameter with the 16-bit gradient), and its parameters
    where these are offloaded too, times DeepSpeed's factor for pinned buffers under that engine.
    To NVMe: the pinned buffers that everything passes through, and the gradients.

    >>> from shardwise.core.scenario import Scenario
    >>> from shardwise.core.memory.stages import stages_of
    >>> s = Scenario.from_dict({"model": {"parameters": 7e9}})
    >>> host_bytes_per_node(s, stages_of(s.model, s.layout))
    0.0
    """
    layout, training = scenario.layout, scenario.training
    if layout.offload_optimizer == "none" and layout.offload_parameters == "none":
        return 0.0
    worst = 0.0
    for stage in stages:
        states = stage_states(stage, layout, training.precision, training.optimizer, scenario.shard)
        kept = states.sharded_elements if layout.zero_stage else float(stage.elements)
        worst = max(worst, _on_cpu(scenario, states, kept) + _before_nvme(scenario, states, kept))
    return worst * scenario.cluster.gpus_per_node


def _on_cpu(scenario: Scenario, states: States, kept: float) -> float:
    """One rank's states in host memory."""
    layout, size = scenario.layout, 0.0
    if layout.offload_optimizer == "cpu":
        size += states.master_weights + states.optimizer_state + 4.0 * kept
    moved = layout.offload_parameters == "cpu"
    if moved or (layout.offload_optimizer == "cpu" and layout.engine in ("fsdp1", "fsdp2")):
        size += states.parameters
    return size * (DEEPSPEED_BUFFER_FACTOR if layout.engine == "deepspeed" else 1.0)


def _before_nvme(scenario: Scenario, states: States, kept: float) -> float:
    """One rank's pinned buffers and gradients where states live on NVMe.

    Parameters: five buffers of 1e8 elements (deepspeed/runtime/swap_tensor/
    partitioned_param_swapper.py). Optimizer: four fp32 buffers as large as the largest sub-group
    (swap_tensor/optimizer_utils.py, `SwapBufferManager(num_elems=largest_numel)`), which is what
    ran out in deepspeedai/DeepSpeed#3000; its gradients wait in host memory in the compute type
    (stage3.py, `grad_partitions_flat_buffer`).
    """
    layout, precision = scenario.layout, scenario.training.precision
    size = 0.0
    if layout.offload_parameters == "nvme":
        size += PARAMETER_BUFFERS * PARAMETER_BUFFER_ELEMENTS * precision.compute_bytes
    if layout.offload_optimizer == "nvme":
        size += OPTIMIZER_BUFFERS * 4.0 * min(kept, SUB_GROUP) + precision.gradient_bytes * kept
    return size


def host_bytes_at_load(scenario: Scenario, *, sharded: bool = True) -> float:
    """Bytes of one node's RAM while the weights are loaded.

    `sharded`: each rank makes only its own part (DeepSpeed's `zero.Init`, FSDP2 from the meta
    device, accelerate's cpu_ram_efficient_loading), with one whole copy on the node's first rank;
    otherwise every rank of the node loads the whole model first, as `from_pretrained` does, in the
    type that the weights are stored in. Checkpoints are read tensor by tensor (safetensors).

    >>> from shardwise.core.scenario import Scenario
    >>> s = Scenario.from_dict({"model": {"parameters": 7e9}})
    >>> host_bytes_at_load(s, sharded=False) / 1e9, host_bytes_at_load(s) / 1e9
    (112.0, 14.0)
    """
    whole = float(weight_bytes(scenario))
    return whole if sharded else whole * scenario.cluster.gpus_per_node


def weight_bytes(scenario: Scenario) -> float:
    """Bytes of the whole model as it is loaded: frozen weights in 16 bits before quantization."""
    training = scenario.training
    frozen = {"fp32": 4, "as-trained": training.precision.parameter_bytes}
    return float(scenario.model.parameters * frozen.get(training.trainable.base, 2))


def host_bytes_at_save(scenario: Scenario) -> float:
    """Bytes that rank 0's node needs to write one whole checkpoint of weights.

    A full state dict is gathered tensor by tensor and moved to rank 0's host memory
    (torch.distributed.checkpoint.state_dict, `full_state_dict=True, cpu_offload=True`; DeepSpeed's
    `stage3_gather_16bit_weights_on_model_save`); a sharded one needs none of it. With adapters only
    these are saved.

    >>> from shardwise.core.scenario import Scenario
    >>> host_bytes_at_save(Scenario.from_dict({"model": {"parameters": 7e9}})) / 1e9
    14.0
    """
    from shardwise.core.adapters import trained_parameters

    training = scenario.training
    saved = scenario.model.parameters
    if training.trainable.rank:
        saved = trained_parameters(scenario.model, training.trainable)
    return float(saved * training.precision.parameter_bytes)
