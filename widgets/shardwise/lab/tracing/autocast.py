"""`torch.autocast("cuda", bfloat16)` on tensors that pretend: by the lists of CUDA's autocast.

Lists: torch `aten/src/ATen/autocast_mode.h` (AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32,
AT_FORALL_FP32_SET_OPT_DTYPE), as its documentation prints them. The CPU's own lists differ (it
leaves softmax and layer norm in bf16), so CPU autocast would not do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._pytree import tree_map_only

_LOWER = {
    "__matmul__", "__rmatmul__", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm",
    "chain_matmul", "multi_dot", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "einsum", "GRUCell", "linear", "LSTMCell",
    "matmul", "mm", "mv", "prelu", "RNNCell", "scaled_dot_product_attention",
}  # fmt: skip
_FULL = {
    "__pow__", "__rdiv__", "__rpow__", "__rtruediv__", "acos", "asin",
    "binary_cross_entropy_with_logits", "cdist", "cosh", "cosine_embedding_loss",
    "cosine_similarity", "cross_entropy", "cumprod", "cumsum", "dist", "erfinv", "exp",
    "expm1", "group_norm", "hinge_embedding_loss", "kl_div", "l1_loss", "layer_norm", "log",
    "log10", "log1p", "log2", "log_softmax", "margin_ranking_loss", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "nll_loss", "norm", "normalize", "pdist",
    "poisson_nll_loss", "pow", "prod", "reciprocal", "renorm", "rsqrt", "sinh",
    "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus", "sum", "tan",
    "triplet_margin_loss",
}  # fmt: skip


class Autocast(TorchFunctionMode):
    """Casts arguments as CUDA's autocast does, with its cache of cast weights in forward."""

    def __init__(self) -> None:
        """An empty cache."""
        super().__init__()
        self.caching = True
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Cast by the function's name, then run it."""
        name = getattr(func, "__name__", "")
        if name in _LOWER:
            args, kwargs = tree_map_only(torch.Tensor, self.lower, (args, kwargs))
        elif name in _FULL:
            args, kwargs = tree_map_only(torch.Tensor, full, (args, kwargs))
        return func(*args, **(kwargs or {}))

    def lower(self, tensor: torch.Tensor) -> torch.Tensor:
        """Cast fp32 to bf16; leaves that train are cast once in a forward (cached_cast)."""
        if tensor.dtype != torch.float32:
            return tensor
        if not (self.caching and tensor.is_leaf and tensor.requires_grad):
            return tensor.to(torch.bfloat16)
        if id(tensor) not in self._cache:
            self._cache[id(tensor)] = (tensor, tensor.to(torch.bfloat16))
        return self._cache[id(tensor)][1]

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """Cast inside, with a cache of weights that is dropped at the end."""
        self.caching = True
        try:
            with self:
                yield
        finally:
            self._cache.clear()
            self.caching = False

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Cast too where checkpoints run a layer again in backward."""
        original = checkpoint._run_fn_with_dynamo_disabled

        def again(*args: Any, **kwargs: Any) -> Any:
            with self:
                return original(*args, **kwargs)

        with mock.patch.object(checkpoint, "_run_fn_with_dynamo_disabled", again):
            yield


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Cast short floats to fp32."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
