"""The functions of this package's layers, by a key: a text that names an operator and its settings; and the norms.

A key means the same in every process, so layers pickle, and `torch.compile` keeps a call of `torch.ops.duoln.forward`
in its graph.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from duoln import ops
from duoln.bridge.functions import sequence
from duoln.bridge.torch.function import NOT_EXPORTED, apply, backward_of, forward, refuse_script, ticket_for
from duoln.core import Tensor
from duoln.core.pytorch_names import hinted
from duoln.errors import ShapeError, UsageError
from duoln.ops.recurrent.variants import CELLS


class Layer:
    """The part of a layer that answers `torch.jit.script`."""

    __prepare_scriptable__ = staticmethod(refuse_script)  # PyTorch asks every module within the one that is scripted


@lru_cache
def function_of(key: str) -> Callable[..., Sequence[Tensor]]:
    """The function of tensors that a key names."""
    operator, settings = json.loads(key)
    return sequence(operator, **settings) if operator in CELLS else _norm(operator, **settings)


def _norm(operator: str, **settings: Any) -> Callable[..., Sequence[Tensor]]:
    """A norm of x, or of a sum, with its parameters."""
    def norm(x: Tensor, *rest: Tensor) -> Sequence[Tensor]:
        eps = settings["eps"]
        if eps is None:  # as torch.nn.RMSNorm: the step of the dtype that is computed in, float32 for 16 bits
            eps = torch.finfo(torch.float64 if x.dtype == "float64" else torch.float32).eps
        y = getattr(ops, operator)(x, *rest, **{**settings, "eps": eps})
        return y if isinstance(y, tuple) else (y,)

    return norm


def call(key: str, tensors: Sequence[torch.Tensor], keeps_results: bool = True) -> tuple[torch.Tensor, ...]:
    """The function of a key, recorded by autograd; within a graph that is compiled, as one operator of it."""
    if not torch.compiler.is_compiling():
        return apply(function_of(key), tensors, keeps_results)
    if torch.compiler.is_exporting():
        raise UsageError(f"[bridge] torch.export: {NOT_EXPORTED}")
    if torch.is_autocast_enabled(tensors[0].device.type):
        tensors = [x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in tensors]
    needs = [torch.is_grad_enabled() and x.requires_grad for x in tensors]
    return tuple(_forward(key, list(tensors), needs)[:-1])


@torch.library.custom_op("duoln::forward", mutates_args=(),
                         schema="(str key, Tensor[] tensors, bool[] needs) -> Tensor[]")
def _forward(key: str, tensors: list[torch.Tensor], needs: list[bool]) -> list[torch.Tensor]:
    """The results, and the ticket of their gradient."""
    results, back = forward(function_of(key), tensors, needs)
    return [*(y.contiguous() for y in results), ticket_for(back)]


@_forward.register_fake
def _(key: str, tensors: list[torch.Tensor], needs: list[bool]) -> list[torch.Tensor]:
    # The sizes stay symbols: with numbers in their place the compiler would make a graph for each length.
    x, operator = tensors[0], json.loads(key)[0]
    if operator in CELLS:
        states = tensors[1:1 + len(CELLS[operator].states)]
        results = [x.new_empty((*x.shape[:2], states[0].shape[1])), *(s.new_empty(s.shape) for s in states)]
    else:
        results = [x.new_empty(x.shape) for _ in range(2 if operator.startswith("add_") else 1)]
    return [*results, torch.empty(2, dtype=torch.int64)]


@torch.library.custom_op("duoln::gradient", mutates_args=(),
                         schema="(Tensor ticket, Tensor?[] gradients, Tensor[] needed) -> Tensor[]")
def _gradient(ticket: torch.Tensor, gradients: list[torch.Tensor | None], needed: list[torch.Tensor],
              ) -> list[torch.Tensor]:
    """The gradients of the tensors that need one."""
    results = [g for g in backward_of(ticket)(gradients) if g is not None]
    return [_with_strides(g, like=x) for g, x in zip(results, needed, strict=True)]


def _with_strides(g: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A gradient with the strides that the compiler expects, those of `torch.empty_like`."""
    expected = torch.empty_like(like, device="meta").stride()
    return g if g.stride() == expected else torch.empty_like(like).copy_(g)


@_gradient.register_fake
def _(ticket: torch.Tensor, gradients: list[torch.Tensor | None], needed: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_like(x) for x in needed]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    _, tensors, ctx.needs = inputs
    ctx.save_for_backward(output[-1], *(x for x, need in zip(tensors, ctx.needs, strict=True) if need))


def _back(ctx: Any, gradients: list[torch.Tensor | None]) -> Any:
    ticket, *needed = ctx.saved_tensors
    results = iter(_gradient(ticket, gradients[:-1], needed))
    return None, [next(results) if need else None for need in ctx.needs], None


_forward.register_autograd(_back, setup_context=_setup_context)


# Norms --------------------------------------------------------------------------------------------------
# Parameters, states and arguments are those of torch.nn's classes.

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
