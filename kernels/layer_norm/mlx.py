"""Layer norm on MLX: MLX's kernel if it is accurate, and the gradient of `metal` on Apple GPUs.

Each process measures the accuracy of MLX's kernel once, on rows with a large mean; `duoln doctor --ops` shows
the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.core.storage import in_float32
from duoln.kernels import metal as metal_kernels
from duoln.kernels.layer_norm import metal, mlx_fast
from duoln.ops import layer_norm
from duoln.ops.moments import LEAST_EPS, SCALE

_SCALE = SCALE["float32"]
_ACTIVATIONS: dict[str | None, Callable[[Array], Array]] = {
    None: lambda y: y, "relu": lambda y: mx.maximum(y, 0.0), "tanh": mx.tanh}


def _composed(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
              activation: str | None = None) -> Array:
    y: Array = layer_norm.rules("mlx")[-1].forward(be, x, gain, bias, eps=eps,
                                                   activation=activation)[0]
    return y


_GATE = mlx_fast.Gate("mx.fast.layer_norm", lambda x, eps: _fast(x, None, None, eps, None),
                      lambda be, x, eps: _composed(be, x, None, None, eps), centred=True)


class _Saved(NamedTuple):
    x: Array
    gain: Array | None
    bias: Array | None
    eps: float
    activation: str | None


def normalised(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
               activation: str | None = None) -> Array:
    """Rows of float32, by MLX's kernel if it is accurate here, else by duoln's formula.

    Without epsilon MLX normalises what rounding leaves of equal values.
    """
    if eps >= LEAST_EPS and _GATE.inaccurate(be) is None:
        return _fast(x, gain, bias, eps, activation)
    return _composed(be, x, gain, bias, eps, activation=activation)


def _fast(x: Array, gain: Array | None, bias: Array | None, eps: float, activation: str | None) -> Array:
    return _ACTIVATIONS[activation](mx.fast.layer_norm(x * _SCALE, gain, bias, eps * _SCALE**2))


def _fast_forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
                  activation: str | None = None) -> tuple[Array, _Saved]:
    return _fast(x, gain, bias, eps, activation), _Saved(x, gain, bias, eps, activation)


def _fast_vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    *arrays, eps, activation = saved
    return mlx_fast.gradients(lambda x, gain, bias: _fast(x, gain, bias, eps, activation), arrays, gout, needs)


def _fast_supports(be: Backend, x: Array, *arrays: Array | None, eps: float,
                   **unused: Any) -> str | None:
    if eps < LEAST_EPS:
        return mlx_fast.TINY
    return _GATE.supports(be, x)


def _metal_forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
                   activation: str | None = None) -> tuple[Array, _Saved]:
    y = in_float32(be, x, lambda wide: normalised(be, wide, gain, bias, eps, activation))
    return y, _Saved(x, gain, bias, eps, activation)


def _metal_vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    return metal.backward(saved.x, saved.gain, saved.bias, gout, saved.eps, saved.activation, needs)


def _metal_supports(be: Backend, x: Array, *arrays: Array | None, **unused: Any) -> str | None:
    return metal_kernels.missing() or metal.supports(x)


def attach() -> None:
    """Add the rules to `layer_norm`."""
    layer_norm.add(Rule("mx.fast", _fast_forward, _fast_vjp, _fast_supports, remark=_GATE.remark), backend="mlx")
    layer_norm.add(Rule("metal gradient", _metal_forward, _metal_vjp, _metal_supports, stored=(0,)), backend="mlx")
