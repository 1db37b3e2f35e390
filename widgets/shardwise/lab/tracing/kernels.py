"""CUDA's operators on tensors that pretend to be elsewhere: what each saves and allocates.

A build of torch without CUDA can't give autograd a pretended `cuda` device (no device guard), so
fake tensors claim `cpu`. Four operators then take another road than on a GPU; here they take the
GPU's: scaled dot product attention (flash or efficient kernel: output and log-sum-exp),
dropout (`native_dropout`: a bool mask), layer norm (fp32 statistics), `rms_norm` (fused).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from shardwise.lab.tracing.autocast import Autocast, full

aten = torch.ops.aten
_FLASH_HEAD_LIMIT = 256  # sdp_utils.cpp, check_head_dim_size_flash
_SHORT_FLOATS = (torch.bfloat16, torch.float16)


def flash_runs(query: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether CUDA would choose the flash kernel (ATen/native/transformers/cuda/sdp_utils)."""
    head = query.shape[-1]
    return (
        mask is None
        and query.dtype in _SHORT_FLOATS
        and head == value.shape[-1]
        and head <= _FLASH_HEAD_LIMIT
    )


def _flash(query: Any, key: Any, value: Any, dropout: float, causal: bool, scale: Any) -> Any:
    head = query.shape[-1]
    scale = scale if scale is not None else 1 / math.sqrt(head)
    padding = -head % 8
    if padding:
        query, key, value = (functional.pad(t, (0, padding)) for t in (query, key, value))
    output = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout, causal, False, scale=scale
    )[0]
    return output[..., :head] if padding else output


def _efficient(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: Any
) -> Any:
    if mask is not None:
        if mask.dtype == torch.bool:
            # convert_boolean_attn_mask: a float mask of the query's dtype.
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(
                mask.logical_not(), float("-inf")
            )
        batch, heads, rows, columns = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
        if mask.dim() == 2:
            mask = mask[None, None]
        padding = -columns % 8
        if padding:
            mask = functional.pad(mask, (0, padding))[..., :columns]
        mask = mask.expand(batch, heads, rows, columns)
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, True, dropout, causal, scale=scale
    )[0]


def _math_with_dropout(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: Any, gqa: bool
) -> Any:
    """`_scaled_dot_product_attention_math` (ATen/native/transformers/attention.cpp) line by line.

    The composed operator calls `at::dropout`, which on CUDA keeps a bool mask, and on the CPU an
    fp32 one.
    """
    dtype = query.dtype
    if dtype in _SHORT_FLOATS:
        query, key, value = query.float(), key.float(), value.float()
    root = (scale if scale is not None else 1 / math.sqrt(query.shape[-1])) ** 0.5
    if gqa and key.shape[1] != query.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(repeats, dim=1) for t in (key, value))
    if causal:
        size = (query.shape[-2], key.shape[-2])
        mask = torch.ones(size, dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(
            mask.logical_not(), float("-inf")
        )
    scores = torch.matmul(query * root, key.transpose(-2, -1) * root)
    if mask is not None:
        scores.add_(mask)
    weights = torch.native_dropout(aten._safe_softmax(scores, -1), dropout, True)[0]
    return torch.matmul(weights, value).to(dtype)


class Kernels:
    """Stand-ins for one run; `ran` counts which attention kernel each call took."""

    def __init__(self, attention: str, autocast: Autocast | None) -> None:
        """Stand-ins for one kind of attention, casting arguments if `autocast` is there."""
        self.attention = attention
        self.autocast = autocast
        self.ran: Counter[str] = Counter()

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Scaled dot product attention as CUDA's dispatcher would run it."""
        if self.autocast:
            query, key, value = (self.autocast.lower(each) for each in (query, key, value))
            if attn_mask is not None:
                attn_mask = self.autocast.lower(attn_mask)
        if self.attention == "flash" and flash_runs(query, value, attn_mask):
            self.ran["sdpa flash"] += 1
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if self.attention != "math" and not (enable_gqa and key.shape[1] != query.shape[1]):
            self.ran["sdpa efficient"] += 1
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        self.ran["sdpa math"] += 1
        if dropout_p > 0:
            with torch._C.DisableTorchFunction():  # autocast stands aside inside the operator
                return _math_with_dropout(
                    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
                )
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The stand-ins in place of torch's functions."""
        with (
            mock.patch.object(functional, "scaled_dot_product_attention", self.attend),
            mock.patch.object(functional, "dropout", _dropout),
            mock.patch.object(functional, "layer_norm", self._layer_norm),
            mock.patch.object(functional, "rms_norm", _rms_norm),
        ):
            yield

    def _layer_norm(
        self,
        input: torch.Tensor,
        normalized_shape: Any,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        input = full(input) if self.autocast else input
        return _LayerNorm.apply(input, list(normalized_shape), weight, bias, eps)


def _dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    if not training or p == 0.0:
        return input
    return torch.native_dropout(input, p, True)[0]


class _LayerNorm(torch.autograd.Function):
    """`native_layer_norm` with the fp32 statistics that the CUDA kernel saves for short floats."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, shape: list[int], weight: Any, bias: Any, eps: float
    ) -> torch.Tensor:
        output, mean, rstd = aten.native_layer_norm.default(input, shape, weight, bias, eps)
        ctx.shape = shape
        ctx.save_for_backward(input, mean.float(), rstd.float(), weight, bias)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        input, mean, rstd, weight, bias = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], weight is not None, bias is not None]
        to_input, to_weight, to_bias = aten.native_layer_norm_backward.default(
            gradient, input, ctx.shape, mean, rstd, weight, bias, mask
        )
        return to_input, None, to_weight, to_bias, None


def _rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> torch.Tensor:
    return _RMSNorm.apply(input, len(tuple(normalized_shape)), weight)


class _RMSNorm(torch.autograd.Function):
    """CUDA's `_fused_rms_norm`: keeps input, weight and an fp32 rsqrt a row; the CPU's is composed.

    Only sizes are traced, so outputs are left empty (ATen/native/cuda/layer_norm_kernel.cu).
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dimensions: int, weight: Any) -> torch.Tensor:
        rows = input.shape[: input.dim() - dimensions]
        rstd = input.new_empty((*rows, *[1] * dimensions), dtype=torch.float32)
        ctx.save_for_backward(input, rstd, weight)
        return torch.empty_like(input)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        input, _, weight = ctx.saved_tensors
        to_weight = torch.empty_like(weight) if weight is not None else None
        return torch.empty_like(input), None, to_weight
