"""Records what whole layers of transformers' code save for backward, and their backward's moments.

State-space and linear-attention layers run dozens of operators, some in loops over the sequence or
over its chunks. One layer of each kind is run forward and backward on fake tensors, at sizes that
no other product of sizes equals; every storage that autograd opens becomes a product of the layer's
sizes. `data/layers/layers.json` holds the sums; `shardwise.core.memory.operators.recorded` puts in
any config's sizes. Run:

    python tests/accuracy/record_layers.py              # all layers
    python tests/accuracy/record_layers.py mamba2       # those whose name has `mamba2`
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import prod
from pathlib import Path
from typing import Any

import torch
from recorded_layers import RECORDED, Recorded
from torch._subclasses.fake_tensor import FakeTensorMode

from shardwise.lab.tracing import labels
from shardwise.lab.tracing.autocast import Autocast
from shardwise.lab.tracing.build import batch_of, from_config, layers_of
from shardwise.lab.tracing.fake import fake_group, honest_masks
from shardwise.lab.tracing.kernels import Kernels
from shardwise.lab.tracing.ledger import Entry, Ledger
from shardwise.lab.tracing.live import LiveStorages
from shardwise.lab.tracing.settings import Settings

TARGET = Path(__file__).parents[2] / "data" / "layers" / "layers.json"
PRECISIONS = {"16": "bf16", "32": "fp32", "autocast": "autocast", "mixed": "fp32"}
Sum = Counter[str]


class Timeline(Ledger):
    """A ledger that also keeps every opening and closing in order."""

    def __init__(self) -> None:
        """Nothing yet."""
        super().__init__(1)
        self.events: list[tuple[int, int, Entry | None]] = []
        self._number: dict[int, int] = {}
        self._next = 0

    def open(self, key: int, entry: Entry) -> None:
        """Enter a new storage under a number of its own."""
        super().open(key, entry)
        self._next += 1
        self._number[key] = self._next
        self.events.append((1, self._next, entry))

    def close(self, key: int) -> None:
        """Strike out a storage that died."""
        super().close(key)
        if key in self._number:
            self.events.append((-1, self._number.pop(key), None))

    def number_of(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage, 0 for one that was there before."""
        return self._number.get(tensor.untyped_storage()._cdata, 0)


class Enter(torch.autograd.Function):
    """The layer's input, made as a layer before it would."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, shape: Any, dtype: Any) -> torch.Tensor:
        """The hidden states."""
        return torch.empty(shape, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Its gradient goes on to the layer before."""
        return None, None, None


class Leave(torch.autograd.Function):
    """What reads the layer's output and keeps nothing of it."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        ctx.like = (output.shape, output.dtype)
        return torch.empty(())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> torch.Tensor:
        """The gradient of the residual stream."""
        return torch.empty(ctx.like[0], dtype=ctx.like[1])


@dataclass
class Run:
    """One layer's run: events, where backward begins, and what is known of some storages."""

    events: list[tuple[int, int, Entry | None]]
    backward: int
    entered: int
    gradients: dict[int, str]
    parameters: dict[str, int]


def run_layer(recorded: Recorded, precision: str, attention: str) -> Run:
    """Run one layer on fake tensors."""
    settings = Settings(
        engine="none", world=1, precision=PRECISIONS[precision], attention=attention,
        micro_batch=recorded.samples, sequence_length=recorded.length,
    )  # fmt: skip
    autocast = Autocast() if precision == "autocast" else None
    timeline = Timeline()
    live = LiveStorages(timeline)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(fake_group(settings))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(Kernels(attention, autocast).installed())
        stack.enter_context(honest_masks())
        model = from_config(recorded.config, settings)
        if precision == "mixed":  # as FSDP2 casts: parameters, and no buffer
            for parameter in model.parameters():
                parameter.data = parameter.data.to(torch.bfloat16)
        layer = layers_of(model)[recorded.layer]
        args, kwargs = _arguments(model, layer, settings, autocast)
        labels.label_model(live, model)
        for given in (*args[1:], *kwargs.values()):
            for tensor in given if isinstance(given, tuple) else (given,):
                if isinstance(tensor, torch.Tensor):
                    live.see(tensor, "buffers and inputs")
        gc.collect()
        timeline.events.clear()
        return _passes(layer, args, kwargs, live, timeline, autocast)


def _arguments(model: Any, layer: Any, settings: Settings, autocast: Autocast | None) -> Any:
    seen: dict[str, Any] = {}

    def note(_: Any, args: Any, kwargs: Any) -> None:
        seen["call"] = (args, kwargs)

    handle = layer.register_forward_pre_hook(note, with_kwargs=True)
    with autocast.forward_pass() if autocast else nullcontext(), torch.no_grad():
        model(**batch_of(model, settings, torch.device("cpu")))
    handle.remove()
    args, kwargs = seen["call"]
    if not args:
        kwargs = dict(kwargs)
        args = (kwargs.pop("hidden_states"),)
    shape, dtype = args[0].shape, args[0].dtype
    return ((shape, dtype), *args[1:]), kwargs


def _passes(
    layer: Any, args: Any, kwargs: Any, live: LiveStorages, timeline: Timeline, autocast: Any
) -> Run:
    leaf = torch.zeros((), requires_grad=True)
    with live.watching(layer):
        with autocast.forward_pass() if autocast else nullcontext():
            hidden = Enter.apply(leaf, *args[0])
            entered = timeline.number_of(hidden)
            given = (hidden, *args[1:])
            del hidden
            output = _called(layer, given, kwargs)
            del given
            out = Leave.apply(output)
            del output
        gc.collect()
        backward = len(timeline.events)
        out.backward()
    named = list(layer.named_parameters())
    gradients = {timeline.number_of(p.grad): name for name, p in named if p.grad is not None}
    parameters = {name: p.numel() for name, p in named}
    return Run(timeline.events, backward, entered, gradients, parameters)


def _called(layer: Any, given: Any, kwargs: Any) -> Any:
    output = layer(*given, **kwargs)
    return output[0] if isinstance(output, tuple) else output


class Namer:
    """Writes element counts as products of a layer's sizes."""

    def __init__(self, recorded: Recorded) -> None:
        """All products of up to three sizes, with the factors 1 and 2."""
        self.length = recorded.length
        self.chunks = recorded.chunks
        self.tokens = recorded.counts
        self.products: dict[int, str] = {}
        for count in range(4):
            for chosen in combinations_with_replacement(recorded.sizes.items(), count):
                value = prod(size for _, size in chosen)
                self.products.setdefault(value, "·".join(name for name, _ in chosen))
        self.known: dict[int, tuple[str, float]] = {}

    def term(self, elements: int) -> tuple[str, float]:
        """(`tokens|sizes`, factor); raises for a count that is no product."""
        if elements not in self.known:
            self.known[elements] = self._found(elements)
        return self.known[elements]

    def _found(self, elements: int) -> tuple[str, float]:
        for factor in (1, 2, 3, 4, 8, 12):
            for tokens, count in self.tokens.items():
                rest, odd = divmod(elements, count * factor)
                if not odd and rest in self.products:
                    return f"{tokens}|{self.products[rest]}", factor
        for part in (1 / 2, 1 / 4, 3 / 4, 1 / 8, 3 / 8):  # of a head whose rotation takes a part
            for tokens, count in self.tokens.items():
                rest = elements / part / count
                if rest in self.products:
                    return f"{tokens}|{self.products[int(rest)]}", part
        raise LookupError(f"{elements} elements are no product of these sizes")

    def repeated(self, count: int) -> tuple[str, int, int] | None:
        """A number of like storages as (loop, times, rest): those of a loop over the sequence."""
        if count <= 8:
            return "", 0, count
        for loop, runs in (("steps", self.length), ("chunks", self.chunks)):
            for times in (1, 2, 3, 4, 5, 6):
                if runs and abs(count - times * runs) <= 3 * times:
                    return loop, times, count - times * runs
        return None


_LOOPED = {"samples": {"steps": "tokens", "chunks": "chunked"}}
Key = tuple[str, str, float]


class Sums:
    """Live storages as a sum of products, kept up to date event by event."""

    def __init__(self, run: Run, namer: Namer) -> None:
        """Empty."""
        self.run, self.namer = run, namer
        self.alive: dict[int, Key] = {}
        self.counts: Counter[Key] = Counter()
        self.made: list[str] = []
        self._sizes = set(run.parameters.values())

    def take(self, event: tuple[int, int, Entry | None]) -> None:
        """Enter one event."""
        sign, number, entry = event
        if sign < 0:
            key = self.alive.pop(number, None)
            if key:
                self.counts[key] -= 1
            return
        assert entry is not None
        if number in self.run.gradients:
            self.made.append(self.run.gradients[number])
            return
        if not entry.number_bytes:
            return
        item = torch.empty(0, dtype=getattr(torch, entry.dtype)).element_size()
        elements = entry.number_bytes // item
        if elements in self._sizes or elements == 1:
            return  # a weight's copy or its gradient before it is cast
        term, factor = self.namer.term(elements)
        key = (term, entry.operator, item * factor)
        self.alive[number] = key
        self.counts[key] += 1

    def now(self) -> Sum | None:
        """The sum of this moment; None in the middle of a loop."""
        total: Sum = Counter()
        for (term, _, each), count in self.counts.items():
            if not count:
                continue
            split = self.namer.repeated(count)
            if split is None:
                return None
            loop, times, rest = split
            if rest:
                total[term] += rest * each
            if loop:
                tokens, _, sizes = term.partition("|")
                total[f"{_LOOPED[tokens][loop]}|{sizes}"] += times * each
        return +total if all(v > 0 for v in total.values()) else total

    def bytes_now(self) -> int:
        """The same in bytes."""
        return sum(
            count * each * self.namer.tokens[term.partition("|")[0]] * _product(term, self.namer)
            for (term, _, each), count in self.counts.items()
        )


def _product(term: str, namer: Namer) -> int:
    sizes = term.partition("|")[2]
    return next(value for value, name in namer.products.items() if name == sizes)


def record(recorded: Recorded, precision: str, attention: str) -> dict[str, Any]:
    """One layer: what it saves, and the moments of its backward that no other one tops."""
    run = run_layer(recorded, precision, attention)
    namer = Namer(recorded)
    sums = Sums(run, namer)
    forward: list[Sum] = []
    for event in run.events[: run.backward]:
        sums.take(event)
        if event[0] > 0 and (now := sums.now()) is not None:
            forward.append(now)
    saved = sums.now()
    assert saved is not None
    reads_input = run.entered in sums.alive
    moments: list[tuple[Sum, tuple[str, ...]]] = []
    for event in run.events[run.backward :]:
        sums.take(event)
        if event[0] > 0 and (now := sums.now()) is not None:
            moments.append((now, tuple(sums.made)))
    kept = undominated(moments)
    entering = namer.term(recorded.samples * recorded.length * recorded.sizes["h"])[0]
    item = max(4 if precision == "32" else 2, 4 if recorded.fp32_stream else 2)
    item = 4 if precision == "autocast" else item
    return {
        "saved": dict(saved),
        "input": {entering: item} if reads_input else {},
        "forward": [dict(s) for s, _ in undominated([(s, ()) for s in forward])],
        "moments": [
            {"live": dict(s), "made": dict(Counter(_weights(made, run, namer)))} for s, made in kept
        ],
        "weights": _weights(tuple(run.parameters), run, namer),
    }


def _weights(names: tuple[str, ...], run: Run, namer: Namer) -> dict[str, int]:
    total: Counter[str] = Counter()
    for name in names:
        part = "feed forward" if is_feed_forward(name) else "others"
        elements = run.parameters[name]
        sizes, factor = _without_tokens(elements, namer)
        total[f"{part}|{sizes}"] += factor
    return dict(total)


def _without_tokens(elements: int, namer: Namer) -> tuple[str, int]:
    for factor in (1, 2, 3, 4):
        if elements % factor == 0 and elements // factor in namer.products:
            return namer.products[elements // factor], factor
    raise LookupError(elements)


def is_feed_forward(name: str) -> bool:
    """Whether a weight belongs to the layer's MLP or experts."""
    words = (
        "feed_forward",
        "mlp",
        "moe",
        "shared_",
        "experts",
        "router",
        "gate.weight",
        "fc1",
        "fc2",
    )
    return any(word in name for word in words) and "norm" not in name


Instant = tuple[Sum, tuple[str, ...]]


def undominated(moments: list[Instant]) -> list[Instant]:
    """Moments that no other one tops in every term and in the weights whose gradients are there."""
    kept: list[Instant] = []
    for moment in moments:
        if not any(tops(other, moment) for other in kept):
            kept = [other for other in kept if not tops(moment, other)]
            kept.append(moment)
    return kept


def tops(one: Instant, other: Instant) -> bool:
    """Whether a moment is at least as high as another whatever the sizes are."""
    if not set(one[1]) >= set(other[1]):
        return False
    return all(one[0][key] >= other[0][key] for key in {*one[0], *other[0]})


def wanted(recorded: Recorded) -> Iterator[tuple[str, str]]:
    """The precisions and attention kinds that a layer is recorded in."""
    for precision in PRECISIONS:
        if precision != "16" and recorded.half:
            continue  # grouped products take bf16 weights only
        if precision == "mixed" and not recorded.reads_buffers:
            continue
        for attention in (
            ("flash", "efficient", "math", "eager") if recorded.attention else ("flash",)
        ):
            yield precision, attention


def main() -> None:
    """Record and write."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    found: dict[str, Any] = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    for name, recorded in RECORDED.items():
        if only not in name:
            continue
        for precision, attention in wanted(recorded):
            key = precision + (f" {attention}" if recorded.attention else "")
            one = record(recorded, precision, attention)
            found.setdefault(name, {})[key] = one
            print(
                name, key, len(one["saved"]), len(one["moments"]), len(one["forward"]), flush=True
            )
            write(found)


def write(found: dict[str, Any]) -> None:
    """The file: a line for each layer in each precision."""
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    layers = []
    for name, records in sorted(found.items()):
        lines = [f" {json.dumps(key)}: {_short(one)}" for key, one in sorted(records.items())]
        layers.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    TARGET.write_text("{\n" + ",\n".join(layers) + "\n}\n", encoding="utf-8")


def _short(one: dict[str, Any]) -> str:
    return json.dumps(one, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


if __name__ == "__main__":
    main()
