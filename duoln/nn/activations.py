"""Activations as modules, for `nn.Sequential`: functions of `ops` with their settings. They have no parameters."""

from __future__ import annotations

from typing import Any, get_args

from duoln import ops
from duoln.core import Tensor
from duoln.core.arguments import ABOVE_0, FINITE, check_choice, check_integer, check_number
from duoln.core.spec import check_tensors
from duoln.errors import ShapeError
from duoln.nn.module import NOT_GIVEN, Module, Params, check_params
from duoln.ops.activation import GeluForm


class _Function(Module):
    """A layer without parameters, which computes `_of`."""

    _of: Any

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        kind = type(self).__name__
        check_params(kind, params)
        check_tensors(kind, x)
        y: Tensor = self._of(x)
        return y


class ReLU(_Function):
    """`ops.relu`: x where it is positive, else 0."""

    _of = staticmethod(ops.relu)


class Tanh(_Function):
    """`ops.tanh`, the hyperbolic tangent."""

    _of = staticmethod(ops.tanh)


class Sigmoid(_Function):
    """`ops.sigmoid`, 1 / (1 + exp(-x))."""

    _of = staticmethod(ops.sigmoid)


class Softplus(_Function):
    """`ops.softplus`, log(1 + exp(x))."""

    _of = staticmethod(ops.softplus)


class SiLU(_Function):
    """`ops.silu`, x sigmoid(x) (Elfwing et al. 2018)."""

    _of = staticmethod(ops.silu)


class GELU(_Function):
    """`ops.gelu` (Hendrycks and Gimpel 2016): `approximate` is "none" or "tanh"."""

    def __init__(self, approximate: GeluForm = "none") -> None:
        self.approximate: GeluForm = check_choice("GELU", "approximate", approximate, get_args(GeluForm))

    def _of(self, x: Tensor) -> Tensor:
        return ops.gelu(x, approximate=self.approximate)


class ELU(_Function):
    """`ops.elu`: x where it is positive, else alpha (exp(x) - 1) (Clevert et al. 2015)."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = check_number("ELU", "alpha", alpha, ABOVE_0)

    def _of(self, x: Tensor) -> Tensor:
        return ops.elu(x, alpha=self.alpha)


class LeakyReLU(_Function):
    """`ops.leaky_relu`: x where it is positive, else slope x."""

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = check_number("LeakyReLU", "slope", slope, FINITE)

    def _of(self, x: Tensor) -> Tensor:
        return ops.leaky_relu(x, self.slope)


class Softmax(_Function):
    """`ops.softmax` along one axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = check_integer("Softmax", "axis", axis)

    def _of(self, x: Tensor) -> Tensor:
        return ops.softmax(x, axis=self.axis)


class LogSoftmax(_Function):
    """`ops.log_softmax` along one axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = check_integer("LogSoftmax", "axis", axis)

    def _of(self, x: Tensor) -> Tensor:
        return ops.log_softmax(x, axis=self.axis)


class Flatten(_Function):
    """All axes after the first become one."""

    def _of(self, x: Tensor) -> Tensor:
        if not x.ndim:
            raise ShapeError("[Flatten] expected at least one axis, found shape ()")
        return ops.reshape(x, shape=(x.shape[0], x.size // max(x.shape[0], 1)))


class Identity(_Function):
    """The input as it is, such as in the place of a norm that a model lacks."""

    def _of(self, x: Tensor) -> Tensor:
        return x
