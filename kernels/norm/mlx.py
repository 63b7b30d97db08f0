"""The norms on MLX: MLX's kernel of rows where it is accurate, and the gradient of `metal` on Apple GPUs.

Some builds subtract the mean only once, or compute the variance as a difference, or add up long rows one value behind
another, and lose digits. So each process measures a kernel once, on rows with means that grow; `duoln doctor --ops`
shows the figures. Without epsilon MLX normalises what rounding leaves of equal values.

The norm of a sum is an addition, the norm's forward pass, and the Metal gradient, which adds the gradient of the sum in
the same pass. In 16 bits it keeps both arrays, because rows are normalised before the sum is rounded; otherwise the
sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core.storage import in_float32
from duoln.kernels.launch import metal as metal_kernels
from duoln.kernels.norm import OPERATORS, metal, rule
from duoln.kernels.norm.plan import Norm
from duoln.ops import layer_norm, rms_norm
from duoln.ops.norm import LEAST_EPS, SCALE
from duoln.randomness import Stream

_SCALE = SCALE["float32"]
_ACTIVATIONS: dict[str | None, Callable[[Array], Array]] = {
    None: lambda y: y, "relu": lambda y: mx.maximum(y, 0.0), "tanh": mx.tanh}
_MEANS = (0.0, 1e2, 1e3, 1e4)
_SHAPE = (64, 1000)
_EPS = 1e-5


class _Kept(NamedTuple):
    x: Array
    """The array that was normalised, or, with `residual`, the other summand of it."""
    residual: Array | None
    gain: Array | None
    bias: Array | None
    eps: float
    activation: str | None


def _fast(centred: bool, x: Array, gain: Array | None, bias: Array | None, eps: float,
          activation: str | None = None) -> Array:
    """By MLX's kernel."""
    if centred:
        return _ACTIVATIONS[activation](mx.fast.layer_norm(x * _SCALE, gain, bias, eps * _SCALE**2))
    return mx.fast.rms_norm(x * _SCALE, gain, eps * _SCALE**2)


def _composed(be: Backend, centred: bool, x: Array, gain: Array | None, bias: Array | None, eps: float,
              activation: str | None = None) -> Array:
    """By duoln's formula."""
    if centred:
        y: Array = layer_norm.rules("mlx")[-1].forward(be, x, gain, bias, eps=eps, activation=activation)[0]
    else:
        y = rms_norm.rules("mlx")[-1].forward(be, x, gain, eps=eps)[0]
    return y


class _Figure(NamedTuple):
    """The largest error of normalised rows of one mean, against float64."""

    mean: float
    fast: float
    """The error of MLX's kernel."""
    composed: float
    """The error of duoln's formula on MLX."""
    allowed: float
    """Twice the error of the two-pass formula in float32 NumPy."""


class _Gate:
    """The measurement of MLX's kernel with a mean or without, made when it is first asked for."""

    def __init__(self, centred: bool) -> None:
        self._centred = centred
        self._measured: list[_Figure] = []

    def _figures(self, be: Backend) -> list[_Figure]:
        """Errors of MLX's kernel and of duoln's formula on rows of width 1000, deviation 1, growing means."""
        if not self._measured:
            self._measured.extend(self._measure(be, mean) for mean in _MEANS)
        return self._measured

    def _measure(self, be: Backend, mean: float) -> _Figure:
        x = (Stream(0, "large means").gaussian(_SHAPE) + mean).astype(np.float32)
        exact, native = self._formula(x.astype(np.float64)), mx.array(x)
        results = (_fast(self._centred, native, None, None, _EPS),
                   _composed(be, self._centred, native, None, None, _EPS), self._formula(x))
        fast, own, two_pass = (float(np.abs(np.asarray(y, np.float64) - exact).max()) for y in results)
        return _Figure(mean, fast, own, 2 * two_pass + 4e-7)

    def _formula(self, x: np.ndarray) -> np.ndarray:
        """In the dtype of `x`."""
        values = x - x.mean(-1, keepdims=True) if self._centred else x
        normalised: np.ndarray = values / np.sqrt((values ** 2).mean(-1, keepdims=True) + x.dtype.type(_EPS))
        return normalised

    def refusal(self, be: Backend) -> str | None:
        """The reason why MLX's kernel is not used; None if its errors are within the limits."""
        bad = [f for f in self._figures(be) if not f.fast <= f.allowed]
        if not bad:
            return None
        return f"at a mean of {bad[0].mean:g} its error is {bad[0].fast:.1e}; {bad[0].allowed:.1e} is allowed"

    def remark(self, be: Backend) -> str:
        """The line of `duoln doctor --ops`."""
        figures = "; ".join(f"mean {f.mean:g}: {f.fast:.1e}, ours {f.composed:.1e}" for f in self._figures(be))
        name = "mx.fast.layer_norm" if self._centred else "mx.fast.rms_norm"
        verdict = "it is not used" if self.refusal(be) else "it is used"
        return f"largest error of {name} against float64 on rows of {_SHAPE[1]}, {figures}. So {verdict}"


_GATES = {centred: _Gate(centred) for centred in (True, False)}


def _fast_supports(norm: Norm, be: Backend, x: Array, *arrays: Array | None, eps: float, **attrs: Any) -> str | None:
    if eps < LEAST_EPS:
        return f"epsilon is below {LEAST_EPS:g}"  # MLX's kernels square values as they are
    if x.dtype != mx.float32 or not x.size:
        return "there are no values" if not x.size else f"it was measured for float32, not for {x.dtype}"
    return _GATES[norm.centred].refusal(be)


def _fast_forward(be: Backend, norm: Norm, x: Array, residual: None, gain: Array | None, bias: Array | None, eps: float,
                  activation: str | None) -> tuple[Array, None, _Kept]:
    return _fast(norm.centred, x, gain, bias, eps, activation), None, _Kept(x, None, gain, bias, eps, activation)


def _fast_backward(norm: Norm, kept: _Kept, dy: Array, d_total: None, needs: Sequence[bool]) -> list[Array | None]:
    """MLX's own gradients of what is asked for."""
    arrays: list[Any] = [kept.x, kept.gain, kept.bias]
    asked = [i for i, need in enumerate(needs) if need]

    def of_asked(*some: Array) -> Array:
        every = list(arrays)
        for i, a in zip(asked, some, strict=True):
            every[i] = a
        x, gain, bias = every
        return _fast(norm.centred, x, gain, bias, kept.eps, kept.activation)

    _, made = mx.vjp(of_asked, [arrays[i] for i in asked], [dy])
    by_place = dict(zip(asked, made, strict=True))
    return [by_place.get(i) for i in range(len(needs))]


def _metal_supports(norm: Norm, be: Backend, x: Array, *arrays: Array | None, **attrs: Any) -> str | None:
    return metal_kernels.refusal() or metal.supports(x, norm.centred)


def _metal_forward(be: Backend, norm: Norm, x: Array, residual: Array | None, gain: Array | None, bias: Array | None,
                   eps: float, activation: str | None) -> tuple[Array, Array | None, _Kept]:
    def normalised(wide: Array) -> Array:
        if eps >= LEAST_EPS and _GATES[norm.centred].refusal(be) is None:
            return _fast(norm.centred, wide, gain, bias, eps, activation)
        return _composed(be, norm.centred, wide, gain, bias, eps, activation)

    if residual is None:
        return in_float32(be, x, normalised), None, _Kept(x, None, gain, bias, eps, activation)
    dtype = be.dtype(x)
    total = be.astype(x, "float32") + be.astype(residual, "float32")
    y, rounded = be.astype(normalised(total), dtype), be.astype(total, dtype)
    if dtype in STORAGE:
        return y, rounded, _Kept(x, residual, gain, bias, eps, None)
    return y, rounded, _Kept(total, None, gain, bias, eps, None)


def _metal_backward(norm: Norm, kept: _Kept, dy: Array, d_total: Array | None,
                    needs: Sequence[bool]) -> tuple[Array | None, ...]:
    return metal.backward(kept.x, kept.gain, kept.bias, dy, kept.eps, kept.activation, needs, norm.centred,
                          kept.residual, d_total)


def attach() -> None:
    """Add the rules to the operators."""
    for norm, op in OPERATORS.items():
        if not norm.residual:
            op.add(rule(norm, "mx.fast", _fast_forward, _fast_backward, partial(_fast_supports, norm),
                        remark=_GATES[norm.centred].remark), backend="mlx")
        op.add(rule(norm, "metal gradient", _metal_forward, _metal_backward, partial(_metal_supports, norm),
                    stored=True), backend="mlx")
