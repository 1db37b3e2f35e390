"""The program's optimizer, under FSDP2, DDP or ZeroRedundancyOptimizer."""

from __future__ import annotations

from shardwise.core.errors import ScenarioError
from shardwise.export.realized import Realized

_IMPLEMENTATION = {"foreach": "foreach=True", "fused": "fused=True", "for-loop": "foreach=False"}
_CLASSES = {
    "adamw": "torch.optim.AdamW",
    "adamw-8bit": "AdamW8bit",
    "sgd": "torch.optim.SGD",
    "sgd-momentum": "torch.optim.SGD",
    "adafactor": "Adafactor",
    "lion": "Lion",
    "muon": "torch.optim.Muon",
}

_LION = '''
class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2: the sign of an interpolated momentum."""

    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            now, later = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum, gradient = state["momentum"], parameter.grad
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(momentum.lerp(gradient, 1 - now).sign_(), alpha=-group["lr"])
                momentum.lerp_(gradient, 1 - later)
'''

_ON_SHARDS = '''
class OnShards:
    """An optimizer that knows no DTensor, run on each rank's own rows of every tensor."""

    def __init__(self, parameters, make):
        whole = [p for p in parameters if p.to_local().numel()]
        self.pairs = [(p, torch.nn.Parameter(p.to_local())) for p in whole]  # the same storage
        self.optimizer = make([shard for _, shard in self.pairs])

    def step(self):
        for parameter, shard in self.pairs:
            shard.grad = None if parameter.grad is None else parameter.grad.to_local()
        self.optimizer.step()

    def zero_grad(self):
        for parameter, shard in self.pairs:
            parameter.grad = shard.grad = None
'''

_MATRICES = '''
def is_hidden_matrix(name, parameter):
    """Muon is for the matrices inside the blocks; AdamW updates embeddings, head and vectors."""
    return parameter.ndim == 2 and any(f"{blocks}." in name for blocks in BLOCKS)
'''


def imports(plan: Realized) -> tuple[str, ...]:
    """What the optimizer needs imported."""
    lines = {
        "adafactor": ("from transformers.optimization import Adafactor",),
        "adamw-8bit": ("from torchao.optim import AdamW8bit",),
    }.get(plan.scenario.training.optimizer, ())
    if plan.scenario.layout.engine == "zero-redundancy":
        lines += ("from torch.distributed.optim import ZeroRedundancyOptimizer",)
    return lines


def optimizer(plan: Realized) -> str:
    """`make_optimizers` and what it needs.

    Raises:
        ScenarioError: Adafactor in fp16 under FSDP2: ranks could disagree about a skipped step.
    """
    training = plan.scenario.training
    kind = training.optimizer
    if kind == "adafactor" and plan.sharded and plan.sixteen_bit == "float16":
        raise ScenarioError(
            "training.optimizer",
            kind,
            "adamw, sgd, sgd-momentum, lion or muon with fp16 under FSDP2",
        )
    before = {"lion": _LION, "muon": _MATRICES}.get(kind, "")
    if kind == "adafactor" and plan.sharded:
        before = _ON_SHARDS
    lines = [
        "def make_optimizers(model):",
        '    """The optimizers of one step, made after sharding so that they see shards."""',
    ]
    if kind == "muon":
        lines += [
            "    named = list(model.named_parameters())",
            "    matrices = [p for name, p in named if is_hidden_matrix(name, p)]",
            "    others = [p for name, p in named if not is_hidden_matrix(name, p)]",
            f"    muon = {_made(plan, 'muon', 'matrices')}",
            f"    adamw = {_made(plan, 'adamw', 'others')}",
            "    return [muon, adamw]",
        ]
    elif kind == "adafactor":
        options = '"lr": LEARNING_RATE, "scale_parameter": False, "relative_step": False'
        lines += [f"    options = {{{options}}}"]
        if plan.sharded:
            made = f"lambda shards: {_made(plan, kind, 'shards')}"
            lines += [f"    return [OnShards(model.parameters(), {made})]"]
        else:
            lines += [f"    return [{_made(plan, kind, 'model.parameters()')}]"]
    else:
        lines += [f"    optimizer = {_made(plan, kind, 'model.parameters()')}"]
        lines += ["    return [optimizer]"]
    return (before.strip("\n") + "\n\n\n" + "\n".join(lines)) if before else "\n".join(lines)


def _made(plan: Realized, kind: str, parameters: str) -> str:
    options = "lr=LEARNING_RATE" if kind != "adafactor" else "**options"
    if kind in ("adamw", "sgd", "sgd-momentum"):
        options += f", {_IMPLEMENTATION[plan.scenario.training.optimizer_implementation]}"
    if kind == "sgd-momentum":
        options += ", momentum=0.9"
    if plan.scenario.layout.engine != "zero-redundancy":
        return f"{_CLASSES[kind]}({parameters}, {options})"
    call = f"ZeroRedundancyOptimizer({parameters}, {_CLASSES[kind]}, {options})"
    if len(call) < 84:
        return call
    arguments = f"{parameters}, {_CLASSES[kind]}, {options}"
    return f"ZeroRedundancyOptimizer(\n        {arguments}\n    )"
