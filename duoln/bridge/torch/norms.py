"""Normalising layers as modules of PyTorch. Parameters, states and arguments are those of torch.nn's classes."""

from __future__ import annotations

import json
from typing import Any

import torch

from duoln.bridge.torch.layers import Layer, call
from duoln.core.pytorch_names import hinted
from duoln.errors import ShapeError


class _Norm(Layer):
    """The part of a norm that calls duoln: mixed into the class of torch.nn that has its parameters."""

    operator: str

    def __init__(self, *args: Any, **options: Any) -> None:
        hinted(super(_Norm, type(self)).__init__)(self, *args, **options)
        own: Any = self  # with the attributes of torch.nn's class
        self._shape = tuple(own.normalized_shape)
        settings = {"eps": own.eps, **self._axes()}
        self._key = json.dumps([self.operator, settings])  # once: `torch.compile` cannot write numbers into a text

    def _axes(self) -> dict[str, list[int]]:
        return {"axis": list(range(-len(self._shape), 0))}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised values."""
        return self._call(x)[0]

    def _call(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        own: Any = self
        for x in tensors:
            if isinstance(x, torch.Tensor) and tuple(x.shape[-len(self._shape):]) != self._shape:
                raise ShapeError(f"[{type(self).__name__}] expected last axes {self._shape}, found shape "
                                 f"{tuple(x.shape)}")
        parameters = [p for p in (own.weight, getattr(own, "bias", None)) if p is not None]
        return call(self._key, (*tensors, *parameters), keeps_results=len(tensors) > 1)


class _NormOfSum(_Norm):
    """The part of a norm of a sum that calls duoln."""

    def _axes(self) -> dict[str, list[int]]:
        if len(self._shape) != 1:
            raise ShapeError(f"[{type(self).__name__}] normalized_shape: expected one axis, found {self._shape}")
        return {}

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """The normalised sum, and the sum."""
        y, total = self._call(x, residual)
        return y, total


class LayerNorm(_Norm, torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` on duoln's kernels (Ba, Kiros, Hinton 2016, eq. 3).

    Shape:
        x (..., *normalized_shape) -> the same.

    Raises:
        ShapeError: the last axes of x are others.
    """

    operator = "layer_norm"


class RMSNorm(_Norm, torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` on duoln's kernels (Zhang, Sennrich 2019, eq. 4).

    An `eps` of None is the smallest step from 1 in the dtype of the computation, as there: float32 for 16 bits. Shape
    and errors are those of `LayerNorm`.
    """

    operator = "rms_norm"


class AddLayerNorm(_NormOfSum, torch.nn.LayerNorm):
    """The layer norm of a sum and the sum itself, in one pass over memory: `norm(x + residual), x + residual`.

    Shape:
        x and residual (..., width) -> two tensors like x; `normalized_shape` is one axis.

    Raises:
        ShapeError: the last axis is another, or `normalized_shape` has several.
    """

    operator = "add_layer_norm"


class AddRMSNorm(_NormOfSum, torch.nn.RMSNorm):
    """The RMS norm of a sum and the sum itself, in one pass over memory; see `AddLayerNorm`."""

    operator = "add_rms_norm"
