"""Normalising layers as modules of PyTorch. Parameters, states and arguments are those of torch.nn's classes."""

from __future__ import annotations

from typing import Any

import torch

from duoln.bridge.torch.layers import call
from duoln.errors import ShapeError


class LayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` on duoln's kernels (Ba, Kiros, Hinton 2016, eq. 3).

    Shape:
        x (..., *normalized_shape) -> the same.

    Raises:
        ShapeError: the last axes of x are others.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised values."""
        key = f'["layer_norm", {{"eps": {self.eps}, "axis": {_axes(self, x)}}}]'
        return call(key, _with_parameters(self, x), False)[0]


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` on duoln's kernels (Zhang, Sennrich 2019, eq. 4).

    Shape:
        x (..., *normalized_shape) -> the same.

    Raises:
        ShapeError: the last axes of x are others.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised values."""
        key = f'["rms_norm", {{"eps": {_epsilon(self, x)}, "axis": {_axes(self, x)}}}]'
        return call(key, _with_parameters(self, x), False)[0]


class AddLayerNorm(torch.nn.LayerNorm):
    """The layer norm of a sum and the sum itself, in one pass over memory: `norm(x + residual), x + residual`.

    Shape:
        x and residual (..., width) -> two tensors like x; `normalized_shape` is one axis.

    Raises:
        ShapeError: the last axis is another, or there are several.
    """

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """The normalised sum, and the sum."""
        _last_axis(self, x)
        y, total = call(f'["add_layer_norm", {{"eps": {self.eps}}}]', _with_parameters(self, x, residual))
        return y, total


class AddRMSNorm(torch.nn.RMSNorm):
    """The RMS norm of a sum and the sum itself, in one pass over memory; see `AddLayerNorm`."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """The normalised sum, and the sum."""
        _last_axis(self, x)
        y, total = call(f'["add_rms_norm", {{"eps": {_epsilon(self, x)}}}]', _with_parameters(self, x, residual))
        return y, total


def _axes(norm: Any, x: torch.Tensor) -> list[int]:
    count = len(norm.normalized_shape)
    if tuple(x.shape[-count:]) != tuple(norm.normalized_shape):
        raise ShapeError(f"[{type(norm).__name__}] expected x with last axes {tuple(norm.normalized_shape)}, found "
                         f"shape {tuple(x.shape)}")
    return list(range(-count, 0))


def _last_axis(norm: Any, x: torch.Tensor) -> None:
    if len(_axes(norm, x)) != 1:
        raise ShapeError(f"[{type(norm).__name__}] expected a normalized_shape of one axis, found "
                         f"{tuple(norm.normalized_shape)}")


def _epsilon(norm: torch.nn.RMSNorm, x: torch.Tensor) -> float:
    """An `eps` of None is the smallest step from 1 in the dtype of x, as in torch.nn.RMSNorm."""
    return torch.finfo(x.dtype).eps if norm.eps is None else norm.eps


def _with_parameters(norm: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (*tensors, *(p for p in (norm.weight, getattr(norm, "bias", None)) if p is not None))
