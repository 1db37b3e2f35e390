"""Bytes a parameter before activations: the rule of 16, and how ZeRO divides it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shardwise.core.model import Model
from shardwise.core.optimizers import state_bytes
from shardwise.core.precision import Precision


@dataclass(frozen=True)
class BytesPerParameter:
    """The rule of 16: what each parameter costs before activations, in bytes."""

    parameters: float
    gradients: float
    master_weights: float
    momentum: float
    variance: float

    @property
    def total(self) -> float:
        """Bytes a parameter altogether."""
        momentum = self.momentum + self.variance
        return self.parameters + self.gradients + self.master_weights + momentum


def bytes_per_parameter(model: Model, precision: Precision, optimizer: str) -> BytesPerParameter:
    """Bytes a parameter by part, averaged over this model's tensors.

    Mixed-precision Adam is 2 + 2 + 4 + 4 + 4 = 16 (Rajbhandari et al. 2020, section 3.1). For
    optimizers whose state depends on a tensor's shape (Adafactor, Muon, 8-bit) the average is that
    of the model at hand.

    >>> from shardwise.core.precision import POLICIES
    >>> bytes_per_parameter(Model.from_parameters(7e9), POLICIES["mixed-16"], "adamw").total
    16.0
    """
    state = _whole_state_bytes(model, optimizer, precision.state_bytes) / model.parameters
    variance = state / 2 if optimizer in ("adamw", "adamw-8bit") else 0.0
    return BytesPerParameter(
        parameters=precision.parameter_bytes,
        gradients=precision.gradient_bytes,
        master_weights=precision.master_bytes,
        momentum=state - variance,
        variance=variance,
    )


def rule_of_sixteen(model: Model, precision: Precision, optimizer: str) -> float:
    """Bytes of model states before activations and before any sharding: 16 a parameter with Adam.

    >>> from shardwise.core.precision import POLICIES
    >>> rule_of_sixteen(Model.from_parameters(7e9), POLICIES["mixed-16"], "adamw") / 1e9
    112.0
    """
    return model.parameters * bytes_per_parameter(model, precision, optimizer).total


@lru_cache(maxsize=256)
def _whole_state_bytes(model: Model, optimizer: str, element_bytes: float) -> float:
    return sum(state_bytes(t.shape, t.part, optimizer, element_bytes) for t in model.tensors)


def zero_state_bytes(
    parameters: float, stage: int, ranks: int, *, optimizer_bytes: float = 12
) -> float:
    """Bytes of model states on one GPU under ZeRO stage 0 to 3, with 16-bit weights and gradients.

    Rajbhandari et al. 2020, figure 1 and section 5: (2 + 2 + K)P for stage 0; 4P + KP/N for
    stage 1; 2P + (2 + K)P/N for stage 2; (4 + K)P/N for stage 3, K = 12 for Adam.

    >>> zero_state_bytes(7.5e9, 1, 64) / 1e9
    31.40625
    """
    shared = {0: 0.0, 1: optimizer_bytes, 2: 2 + optimizer_bytes, 3: 4 + optimizer_bytes}[stage]
    return parameters * (4 + optimizer_bytes - shared) + parameters * shared / ranks
