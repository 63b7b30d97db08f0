"""Layer norm on MLX: MLX's kernel if it is accurate, and the gradient of `metal` on Apple GPUs.

Each process measures the accuracy of MLX's kernel once, on rows with a large mean: some builds subtract the mean only
once, or compute the variance as a difference, and lose digits. `duoln doctor --ops` shows the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.core.storage import in_float32
from duoln.kernels import metal as metal_kernels
from duoln.kernels.layer_norm import metal
from duoln.ops import layer_norm
from duoln.randomness import Stream

_MEANS = (0.0, 1e2, 1e3, 1e4)
_SHAPE = (64, 1000)
_EPS = 1e-5
_ACTIVATIONS: dict[str | None, Callable[[Array], Array]] = {
    None: lambda y: y, "relu": lambda y: mx.maximum(y, 0.0), "tanh": mx.tanh}


class Figure(NamedTuple):
    """The largest error of normalised rows of one mean, against float64."""

    mean: float
    fast: float
    """The error of `mx.fast.layer_norm`."""
    composed: float
    """The error of duoln's formula on MLX."""
    allowed: float
    """Twice the error of the two-pass formula in float32 NumPy."""


_measured: list[Figure] = []


def large_means(be: Backend) -> list[Figure]:
    """Errors of MLX's kernel and of duoln's formula on rows of width 1000, deviation 1, growing means."""
    if not _measured:
        _measured.extend(_measure(be))
    return _measured


def _measure(be: Backend) -> list[Figure]:
    composed = layer_norm.rules("mlx")[-1]
    figures = []
    for mean in _MEANS:
        x = (Stream(0, "large means").gaussian(_SHAPE) + mean).astype(np.float32)
        wide = x.astype(np.float64)
        exact = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + _EPS)
        centred = x - x.mean(-1, keepdims=True)
        plain = centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + np.float32(_EPS))
        native = mx.array(x)
        ours, _ = composed.forward(be, native, None, None, eps=_EPS, eps_place="inside")
        fast, own, two_pass = (float(np.abs(np.asarray(y, np.float64) - exact).max())
                               for y in (mx.fast.layer_norm(native, None, None, _EPS), ours, plain))
        figures.append(Figure(mean, fast, own, 2 * two_pass + 4e-7))
    return figures


def _inaccurate(be: Backend) -> str | None:
    """The reason why MLX's kernel is not used; None if its errors are within the limits."""
    bad = [f for f in large_means(be) if not f.fast <= f.allowed]
    if not bad:
        return None
    return f"at a mean of {bad[0].mean:g} its error is {bad[0].fast:.1e}; {bad[0].allowed:.1e} is allowed"


def _remark(be: Backend) -> str:
    figures = "; ".join(f"mean {f.mean:g}: {f.fast:.1e}, ours {f.composed:.1e}" for f in large_means(be))
    verdict = "it is not used" if _inaccurate(be) else "it is used"
    return f"largest error of mx.fast.layer_norm against float64 on rows of {_SHAPE[1]}, {figures}. So {verdict}"


class _Saved(NamedTuple):
    x: Array
    gain: Array | None
    bias: Array | None
    eps: float
    activation: str | None


def _fast(saved: _Saved) -> Array:
    return _ACTIVATIONS[saved.activation](mx.fast.layer_norm(saved.x, saved.gain, saved.bias, saved.eps))


def _fast_forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float, eps_place: str,
                  activation: str | None = None) -> tuple[Array, _Saved]:
    saved = _Saved(x, gain, bias, eps, activation)
    return _fast(saved), saved


def _fast_vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    asked = [i for i, need in enumerate(needs) if need]

    def of_asked(*arrays: Array) -> Array:
        return _fast(saved._replace(**{_Saved._fields[i]: a for i, a in zip(asked, arrays, strict=True)}))

    primals: list[Any] = [saved[i] for i in asked]
    _, gradients = mx.vjp(of_asked, primals, [gout])
    by_place = dict(zip(asked, gradients, strict=True))
    return [by_place.get(i) for i in range(len(needs))]


def _fast_supports(be: Backend, x: Array, *arrays: Array | None, eps: float, eps_place: str,
                   **unused: Any) -> str | None:
    if eps_place != "inside":
        return "epsilon is outside the root"
    if x.dtype != mx.float32 or not x.size:
        return "there are no values" if not x.size else f"it was measured for float32, not for {x.dtype}"
    return _inaccurate(be)


def _metal_forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float, eps_place: str,
                   activation: str | None = None) -> tuple[Array, _Saved]:
    saved = _Saved(x, gain, bias, eps, activation)
    if _inaccurate(be) is None:
        return in_float32(be, x, lambda wide: _fast(saved._replace(x=wide))), saved
    composed = layer_norm.rules("mlx")[-1].forward
    return in_float32(be, x, lambda wide: composed(be, wide, gain, bias, eps=eps, eps_place=eps_place,
                                                   activation=activation)[0]), saved


def _metal_vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    return metal.backward(saved.x, saved.gain, saved.bias, gout, saved.eps, saved.activation, needs)


def _metal_supports(be: Backend, x: Array, *arrays: Array | None, eps_place: str, **unused: Any) -> str | None:
    return metal_kernels.missing() or metal.supports(x, eps_place)


def attach() -> None:
    """Add the rules to `layer_norm`."""
    layer_norm.add(Rule("mx.fast", _fast_forward, _fast_vjp, _fast_supports, remark=_remark), backend="mlx")
    layer_norm.add(Rule("metal gradient", _metal_forward, _metal_vjp, _metal_supports, stored=(0,)), backend="mlx")
