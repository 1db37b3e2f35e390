"""Which controls there are: the cluster's, the training's and the layout's, with their ranges."""

from __future__ import annotations

from shardwise.core import catalogue
from shardwise.core.engines import ENGINES, OFFLOADS, SCHEDULES
from shardwise.core.optimizers import OPTIMIZERS
from shardwise.core.precision import POLICIES
from shardwise.core.training import ATTENTIONS, IMPLEMENTATIONS, LOSSES, MODEL_CODES
from shardwise.panels.controls import Choice, Control, Flag, Group, Number, Options, choices
from shardwise.panels.trainable_field import TrainableField

POWERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]
CHECKPOINTING: Options = [
    ("none", "none"),
    ("core attention (selective)", "selective"),
    ("per operator (torchtitan)", "per-op"),
    ("full", "full"),
    ("every 2nd block", {"every": 2}),
    ("every 4th block", {"every": 4}),
]


def same(names: tuple[str, ...]) -> Options:
    """Options that are called what they are."""
    return [(name, name) for name in names]


def cluster_group() -> Group:
    """Cards, nodes, links, host memory."""
    links = catalogue.links()
    intra = {key: link for key, link in links.items() if link.scope == "intra"}
    inter = {key: link for key, link in links.items() if link.scope == "inter"}
    controls: dict[str, Control] = {
        "cluster.gpu": Choice("GPU", choices(catalogue.gpus()), "h100-sxm-80gb"),
        "cluster.gpus_per_node": Number(
            "GPUs per node", 8, 1, 1024, steps=[1, 2, 4, 8, 16, 32, 64, 72]
        ),
        "cluster.nodes": Number("Nodes", 1, 1, 100_000, steps=POWERS),
        "cluster.host_memory_gib": Number(
            "Host memory a node", 1280, 1, 2**20, whole=False, unit="GiB",
            steps=[32, 64, 128, 256, 512, 1024, 2048, 4096],
        ),
        "cluster.intra_node": Choice("Link in a node", choices(intra), "nvlink-4"),
        "cluster.inter_node": Choice("Link between nodes", choices(inter), "infiniband-ndr"),
    }  # fmt: skip
    return Group("GPUs", controls)


def training_group() -> Group:
    """Sequence, batch, precision, optimizer, checkpointing, attention, loss, code."""
    controls: dict[str, Control] = {
        "training.sequence_length": Number(
            "Sequence length", 4096, 1, 10**8, steps=LENGTHS, unit="tokens"
        ),
        "training.micro_batch": Number(
            "Micro-batch", 1, 1, 10**6, steps=POWERS[:9], unit="samples a GPU"
        ),
        "training.global_batch": Number(
            "Global batch", 0, 0, 10**9, steps=[0, *POWERS, 2048, 4096], unit="samples a step",
            help="0: one micro-batch a replica, or four a stage with a pipeline",
        ),
        "training.precision": Choice(
            "Precision", [(policy.name, key) for key, policy in POLICIES.items()], "mixed-16"
        ),
        "training.optimizer": Choice("Optimizer", choices(OPTIMIZERS), "adamw"),
        "training.optimizer_implementation": Choice(
            "Optimizer code", same(IMPLEMENTATIONS), "foreach"
        ),
        "training.activation_checkpointing": Choice(
            "Activation checkpointing", CHECKPOINTING, "none"
        ),
        "training.attention": Choice("Attention", same(ATTENTIONS), "flash"),
        "training.loss": Choice("Loss", same(LOSSES), "full"),
        "training.trainable": TrainableField(),
        "training.model_code": Choice("Model code", same(MODEL_CODES), "transformers"),
        "training.images_per_sample": Number(
            "Pictures a sample", 1, 0, 10_000, steps=[0, 1, 2, 4, 8, 16],
            help="what the vision tower sees; 0: text alone",
        ),
        "training.mtp_layers": Number(
            "Multi-token prediction", 0, 0, 64, steps=[0, 1, 2, 3], unit="layers",
            help="with Megatron-LM's model code: layers that predict tokens further on",
        ),
    }  # fmt: skip
    return Group("Training", controls)


def layout_group() -> Group:
    """The layout as it is or is planned: it gets a bar of its own beside the strategies."""
    degree = POWERS[:7]
    controls: dict[str, Control] = {
        "layout.engine": Choice("Engine", same(ENGINES), "fsdp2"),
        "layout.zero_stage": Choice("ZeRO stage", [(str(s), s) for s in range(4)], 3),
        "layout.tensor_parallel": Number("Tensor parallel", 1, 1, 10**6, steps=degree),
        "layout.sequence_parallel": Flag("sequence parallel (with tensor parallel)", False),
        "layout.vocabulary_parallel": Flag("split the vocabulary (with tensor parallel)", True),
        "layout.pipeline_parallel": Number("Pipeline parallel", 1, 1, 10**6, steps=degree),
        "layout.schedule": Choice("Schedule", same(SCHEDULES), "1f1b"),
        "layout.virtual_stages": Number("Virtual stages", 1, 1, 10**6, steps=[1, 2, 3, 4, 6, 8]),
        "layout.context_parallel": Number("Context parallel", 1, 1, 10**6, steps=degree),
        "layout.expert_parallel": Number("Expert parallel", 1, 1, 10**6, steps=degree),
        "training.expert_imbalance": Number(
            "Expert imbalance", 1, 1, 100_000, whole=False, steps=[1, 1.25, 1.5, 2, 3, 4, 8],
            unit="x the even share", help="Routed tokens of the fullest expert-parallel rank",
        ),
        "layout.offload_optimizer": Choice("Offload optimizer", same(OFFLOADS), "none"),
        "layout.offload_parameters": Choice("Offload parameters", same(OFFLOADS), "none"),
        "layout.float8_all_gather": Flag("FSDP2: all-gather linear layers in fp8", False),
        "layout.gradient_as_bucket_view": Flag("DDP: gradient_as_bucket_view", False),
    }  # fmt: skip
    return Group("Your layout", controls)
