"""The functions of the torch program, each written only as far as the scenario needs it."""

from __future__ import annotations

from shardwise.export import torch_batches, torch_loss, torch_optimizers
from shardwise.export.realized import Realized

batch = torch_batches.batch
optimizer = torch_optimizers.optimizer
attention = torch_loss.attention
kept_results = torch_loss.kept_results
loss = torch_loss.loss

_SCALER = "\n    scaler = torch.amp.GradScaler(device.type)"
_UPDATE = "\n        scaler.update()\n        for optimizer in optimizers:"
_MATH = """
    for kernel in ("flash", "mem_efficient", "cudnn"):  # the math kernel alone is left
        getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(False)"""

REPORT = '''
def report(step, loss, seconds, device):
    """Print one line from rank 0: speed, and the peak of the rank that needs most."""
    if device.type == "cuda":
        peak, what = torch.cuda.max_memory_allocated(device), "allocated"
    else:
        peak, what = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "of the process"
    most = torch.tensor(peak, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        tokens = dist.get_world_size() * MICRO_BATCHES * MICRO_BATCH * SEQUENCE_LENGTH
        print(
            f"step {step}: loss {loss:.4f}, {tokens / seconds:,.0f} tokens/s, peak "
            f"{most.item() / 2**30:.3f} GiB {what}, estimated {ESTIMATED_BYTES / 2**30:.3f} GiB",
            flush=True,
        )
'''


def imports(plan: Realized) -> str:
    """The program's imports, in order, none unused."""
    training = plan.scenario.training
    plain = ("argparse", "json", "os", "resource", "time")
    lines = [*(f"import {name}" for name in plain), ""]
    lines += ["import torch", "import torch.distributed as dist"]
    if training.loss == "chunked":
        lines.append("import torch.nn.functional as F")
    lines.append("import transformers")
    more = list(torch_optimizers.imports(plan))
    if plan.sharded:
        names = ["MixedPrecisionPolicy", "fully_shard"]
        if plan.scenario.layout.offload_optimizer == "cpu":
            names.insert(0, "CPUOffloadPolicy")
        more.append("from torch.distributed.device_mesh import init_device_mesh")
        more.append(f"from torch.distributed.fsdp import {', '.join(names)}")
        more.append("from torch.distributed.tensor.experimental import implicit_replication")
    else:
        more.append("from torch.nn.parallel import DistributedDataParallel")
    if training.loss == "chunked" or training.activation_checkpointing == "selective":
        more.append("from torch.utils.checkpoint import checkpoint")
    if training.activation_checkpointing == "per-op":
        names = "CheckpointPolicy, create_selective_checkpoint_contexts"
        if training.loss == "chunked":
            more.pop()
            parts = ("CheckpointPolicy", "checkpoint", "create_selective_checkpoint_contexts")
            names = "(\n" + "".join(f"    {part},\n" for part in parts) + ")"
        more.append(f"from torch.utils.checkpoint import {names}")
    if training.activation_checkpointing == "selective":
        more += [
            "from transformers import AttentionInterface, AttentionMaskInterface",
            "from transformers.integrations.sdpa_attention import sdpa_attention_forward",
            "from transformers.masking_utils import sdpa_mask",
        ]
    return "\n".join([*lines, *sorted(more, key=lambda line: line.split()[1])])


def model(plan: Realized) -> str:
    """Build the model, on the meta device where it is sharded before it exists."""
    training = plan.scenario.training
    place = 'torch.device("meta")' if plan.sharded else "device"
    lines = ["def build(device):", '    """The model in training mode, with its loss."""']
    half = training.precision.parameters != "fp32"
    lines += ["    torch.set_default_dtype(torch.bfloat16)"] if half else []
    lines += [f"    with {place}:", "        model = MODEL(CONFIG)"]
    lines += ["    torch.set_default_dtype(torch.float32)"] if half else []
    lines += [
        "    built = sum(parameter.numel() for parameter in model.parameters())",
        '    assert built == PARAMETERS, f"the config gives {built} parameters, not {PARAMETERS}"',
    ]
    if training.activation_checkpointing in ("full", "every"):
        lines.append('    model.gradient_checkpointing_enable({"use_reentrant": False})')
    if training.activation_checkpointing == "per-op":
        options = '{"use_reentrant": False, "context_fn": kept_results}'
        lines.append(f"    model.gradient_checkpointing_enable({options})")
    if training.checkpoint_every:
        lines += [
            "    for name in BLOCKS:",
            "        for index, block in enumerate(model.get_submodule(name), start=1):",
            f"            block.gradient_checkpointing = index % {training.checkpoint_every} == 0",
        ]
    if training.model_code == "compiled":
        lines += [
            "    for name in BLOCKS:",
            "        for block in model.get_submodule(name):",
            "            block.compile()",
        ]
    return "\n".join([*lines, "    return Loss(model.train())"])


def wrapped(plan: Realized) -> str:
    """The model made parallel."""
    return _sharded(plan) if plan.sharded else _replicated(plan)


def _replicated(plan: Realized) -> str:
    options = ['device_ids=[device.index] if device.type == "cuda" else None']
    if plan.scenario.layout.gradient_as_bucket_view:
        options.append("gradient_as_bucket_view=True")
    if plan.config.task == "image-text":  # a vision tower may have a pooling head that is not used
        options.append("find_unused_parameters=True")
    listed = "".join(f"        {option},\n" for option in options)
    return f'''
def parallel(device):
    """The model with a whole copy on each rank; gradients are averaged during backward."""
    return DistributedDataParallel(
        build(device),
{listed}    )
'''


def _sharded(plan: Realized) -> str:
    layout, precision = plan.scenario.layout, plan.scenario.training.precision
    dtypes = []
    if precision.compute != precision.parameters:
        dtypes.append(f"param_dtype=torch.{plan.sixteen_bit or 'float32'}")
    reduce = "float32" if precision.reduce == "fp32" else plan.sixteen_bit or "bfloat16"
    if precision.reduce != precision.compute:
        dtypes.append(f"reduce_dtype=torch.{reduce}")
    offload = layout.offload_optimizer == "cpu"
    return f'''
def parallel(device):
    """The model with all its states sharded: one unit a block, then the rest.

    It is built without memory, sharded, and only then allocated: no rank ever holds it whole.
    """
    model = build(device)
    replicas = dist.get_world_size() // SHARD
    mesh = init_device_mesh(device.type, (replicas, SHARD), mesh_dim_names=("replicate", "shard"))
    options = {{
        "mesh": mesh if replicas > 1 else mesh["shard"],
        "mp_policy": MixedPrecisionPolicy({", ".join(dtypes)}),{_offload_line(offload)}
    }}
    for name in BLOCKS:
        for block in model.model.get_submodule(name):
            fully_shard(block, reshard_after_forward={layout.zero_stage == 3}, **options)
    fully_shard(model, **options)  # embedding, last norm and head; gathered until backward ends
    model.to_empty(device={'"cpu"' if offload else "device"})
    with implicit_replication():  # some weights start from a formula: a whole tensor on each rank
        model.model.init_weights(){_buffers_lines(offload)}
    return model
'''


def _offload_line(offload: bool) -> str:
    return (
        '\n        "offload_policy": CPUOffloadPolicy(pin_memory=torch.cuda.is_available()),'
        if offload
        else ""
    )


def _buffers_lines(offload: bool) -> str:
    if not offload:
        return ""
    return """
    for module in model.modules():  # buffers are no parameters: they stay on the GPU
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)"""


def main(plan: Realized) -> str:
    """The training loop: micro-batches, optimizer step, tokens a second and peak memory."""
    scaled = plan.sixteen_bit == "float16"
    offload = plan.scenario.layout.offload_optimizer == "cpu"
    backend = "cpu:gloo,cuda:nccl" if offload else "nccl"
    math = plan.scenario.training.attention == "math"
    # Where random numbers are drawn shard by shard, replicas must draw alike and shards must not.
    seed = "dist.get_rank() % SHARD" if plan.sharded else "0"
    update = "scaler.step(optimizer)" if scaled else "optimizer.step()"
    return f'''
def main():
    """Train for a few steps and print what they took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    steps = parser.parse_args().steps
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("{backend}" if device.type == "cuda" else "gloo")
    torch.manual_seed({seed}){_MATH if math else ""}
    model = parallel(device)
    optimizers = make_optimizers(model){_SCALER if scaled else ""}
    generator = torch.Generator(device)
    for step in range(1, steps + 1):
        generator.manual_seed(dist.get_rank())  # the same batches again: the loss must fall
        start = time.perf_counter()
        total = 0.0
        for {"_" if plan.sharded else "index"} in range(MICRO_BATCHES):
{_micro_batch(plan, scaled)}
            total += loss.detach()
        for optimizer in optimizers:
            {update}{_UPDATE if scaled else ""}
            optimizer.zero_grad()
        report(step, total.item(), time.perf_counter() - start, device)
    dist.barrier()  # no rank leaves while another still listens
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''


def _micro_batch(plan: Realized, scaled: bool) -> str:
    """Forward and backward of one micro-batch.

    DDP averages after the last one only. FSDP reduces after each: keeping unsharded gradients
    instead would take the memory that sharding saves.
    """
    call = "loss = model(**batch(device, generator)) / MICRO_BATCHES"
    backward = "scaler.scale(loss).backward()" if scaled else "loss.backward()"
    lines = [call, backward]
    if not plan.sharded:
        lines.insert(0, "model.require_backward_grad_sync = index == MICRO_BATCHES - 1")
        if plan.scenario.training.precision.compute != plan.scenario.training.precision.parameters:
            cast = f"with torch.autocast(device.type, torch.{plan.sixteen_bit}):"
            lines[1:2] = [cast, f"    {call}"]
    return "\n".join(f"            {line}" for line in lines)
