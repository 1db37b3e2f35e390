"""Which scenarios cannot be: precision without hardware, degrees that do not divide, pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwise.core.adapters import check_trainable
from shardwise.core.errors import ScenarioError
from shardwise.core.model import Model
from shardwise.core.pictures import check_pictures
from shardwise.core.routing import check_routing

if TYPE_CHECKING:
    from shardwise.core.scenario import Scenario


def check_scenario(scenario: Scenario) -> None:
    """Refuse parts that do not go together.

    Raises:
        ScenarioError: names the field that would have to change.
    """
    check_precision(scenario)
    check_float8(scenario)
    check_divisors(scenario)
    check_routing(scenario)
    check_prediction(scenario)
    check_pictures(scenario.model, scenario.training)
    check_pipeline(scenario)
    check_frozen(scenario)


def check_precision(scenario: Scenario) -> None:
    """Refuse bf16 on cards without it; `16-bit` policies quietly mean fp16 there.

    Raises:
        ScenarioError: a policy names bf16 and the card's compute units have none.
    """
    precision, gpu = scenario.training.precision, scenario.cluster.gpu
    named = (precision.parameters, precision.compute, precision.gradients)
    if "bf16" in named and not gpu.bf16:
        raise ScenarioError(
            "training.precision",
            precision.key,
            f"a policy without bf16: {gpu.name} has none (it needs compute capability 8.0)",
            "choose mixed-16, which is fp16 with loss scaling on this card",
        )


def check_float8(scenario: Scenario) -> None:
    """Refuse fp8 all-gathers on cards without fp8.

    Raises:
        ScenarioError: torchtitan asks for compute capability 8.9 (components/quantization).
    """
    gpu = scenario.cluster.gpu
    if scenario.layout.float8_all_gather and not gpu.peak("fp8"):
        raise ScenarioError(
            "layout.float8_all_gather",
            True,
            f"False: {gpu.name} has no fp8 (it needs compute capability 8.9)",
        )


def check_divisors(scenario: Scenario) -> None:
    """Refuse degrees that do not divide what they split.

    Raises:
        ScenarioError: tensor parallelism that does not divide the heads, expert parallelism that
            does not divide the experts, context parallelism that does not divide the sequence.
    """
    model, layout = scenario.model, scenario.layout
    tensor = layout.tensor_parallel
    if tensor > 1 and not divides_heads(model, tensor):
        allowed = "1: the model has no attention heads to split"
        if model.heads:
            allowed = f"a divisor of the {model.heads} heads that fits the {model.kv_heads} "
            allowed += "key-value heads"
        raise ScenarioError("layout.tensor_parallel", tensor, allowed)
    experts = max((shape.experts for shape, _ in model.block_groups), default=0)
    expert = layout.expert_parallel
    if expert > 1 and (experts == 0 or experts % expert):
        allowed = f"a divisor of the {experts} experts" if experts else "1"
        hint = "" if experts else "the model has no experts"
        raise ScenarioError("layout.expert_parallel", expert, allowed, hint)
    cross = layout.context_parallel
    if scenario.training.sequence_length % cross:
        raise ScenarioError(
            "layout.context_parallel",
            cross,
            f"a divisor of the sequence length {scenario.training.sequence_length}",
        )


def divides_heads(model: Model, degree: int) -> bool:
    """Whether a tensor-parallel degree splits the heads evenly.

    Key-value heads are split evenly, or each is held by the same number of ranks.
    """
    shapes = [shape for shape, _ in model.block_groups if shape.attention]
    return bool(shapes) and all(
        shape.heads % degree == 0
        and (shape.kv_heads % degree == 0 or degree % max(1, shape.kv_heads) == 0)
        for shape in shapes
    )


def check_frozen(scenario: Scenario) -> None:
    """Refuse adapters that the model has no place for and sharding that cannot cut a base.

    DeepSpeed's ZeRO-3 partitions parameters itself and takes no bitsandbytes tensors
    (transformers/modeling_utils.py refuses the pair); FSDP cuts 4-bit weights through a storage
    type (`bnb_4bit_quant_storage`), which LLM.int8 does not have.

    Raises:
        ScenarioError: unknown targets, nothing left to train, or such a pair.
    """
    trainable, layout = scenario.training.trainable, scenario.layout
    if trainable.everything:
        return
    check_trainable(scenario.model, trainable)
    shards = layout.engine in ("fsdp1", "fsdp2") or layout.zero_stage == 3
    if not trainable.quantized or not shards or scenario.shard == 1:
        return
    if layout.engine == "deepspeed" or trainable.base == "int8":
        raise ScenarioError(
            "training.trainable.lora.base",
            trainable.base,
            f"a base that {'ZeRO-3' if layout.engine == 'deepspeed' else 'FSDP'} can cut: "
            "16-bit, fp32" + ("" if layout.engine == "deepspeed" else ", nf4"),
            "replicate the quantized base (DDP, ZeRO-1, ZeRO-2), or shard NF4 with fsdp2",
        )


def check_prediction(scenario: Scenario) -> None:
    """Refuse multi-token prediction where no code runs it.

    Raises:
        ScenarioError: other code than Megatron-LM's, or a model that predicts no next token.
    """
    depth, model = scenario.training.mtp_layers, scenario.model
    if not depth:
        return
    if scenario.training.model_code != "megatron":
        raise ScenarioError(
            "training.mtp_layers",
            depth,
            "0 unless model_code is megatron",
            "transformers' modules ignore the weights of multi-token prediction",
        )
    last = model.blocks[-1].block if model.blocks else None
    if not model.vocabulary or last is None or not last.causal or last.cross_attention:
        raise ScenarioError("training.mtp_layers", depth, "0 for a model that is no causal decoder")


def check_pipeline(scenario: Scenario) -> None:
    """Refuse pipelines with fewer layers or micro-batches than stages.

    Raises:
        ScenarioError: too few blocks, a layers_per_stage that does not add up, or a number of
            micro-batches that the schedule cannot run (torchtitan and Megatron-LM refuse it too).
    """
    layout, layers = scenario.layout, scenario.model.layers
    pipeline, chunks = layout.pipeline_parallel, layout.virtual_stages
    if layout.layers_per_stage is not None and sum(layout.layers_per_stage) != layers:
        raise ScenarioError(
            "layout.layers_per_stage",
            list(layout.layers_per_stage),
            f"numbers that add up to the {layers} layers",
        )
    if pipeline == 1:
        return
    if pipeline > layers:
        raise ScenarioError("layout.pipeline_parallel", pipeline, f"at most the {layers} layers")
    if pipeline * chunks > layers and len(layout.layers_per_stage or ()) != pipeline * chunks:
        raise ScenarioError(
            "layout.virtual_stages",
            chunks,
            f"at most {layers // pipeline}: {pipeline} stages share {layers} layers",
        )
    step = pipeline * scenario.training.micro_batch * scenario.data_parallel
    if scenario.micro_batches < pipeline:
        raise ScenarioError(
            "training.global_batch",
            scenario.training.global_batch,
            f"at least {step}, so that {pipeline} stages get as many micro-batches",
            "raise the global batch or lower the pipeline degree",
        )
    if layout.schedule == "interleaved" and scenario.micro_batches % pipeline:
        raise ScenarioError(
            "training.global_batch",
            scenario.training.global_batch,
            f"a multiple of {step}: the interleaved schedule takes micro-batches in groups of "
            f"{pipeline}, one a stage",
        )
