"""The norm of a sum on Apple GPUs: an addition, the norm's own forward pass, and the gradient by layer norm's kernel,
which adds the gradient of the sum in the same pass.

Of 16 bits the rules keep x and residual, because rows are normalised before the sum is rounded; otherwise the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core import Rule
from duoln.kernels import metal as metal_kernels
from duoln.kernels.layer_norm import metal
from duoln.kernels.layer_norm.mlx import normalised as layer_normalised
from duoln.kernels.layer_norm.variant import LAYER, RMS, Norm
from duoln.kernels.rms_norm.mlx import normalised as rms_normalised
from duoln.ops import add_layer_norm, add_rms_norm

_Outs = tuple[Array, Array]
_Gouts = tuple[Array | None, Array | None]


class _Saved(NamedTuple):
    x: Array
    """The sum, or what is added to `residual` to have it."""
    residual: Array | None
    gain: Array | None
    bias: Array | None
    eps: float


def _run(be: Backend, x: Array, residual: Array, gain: Array | None, bias: Array | None, eps: float,
         normalised: Callable[[Array], Array]) -> tuple[_Outs, _Saved]:
    dtype = be.dtype(x)
    total = be.astype(x, "float32") + be.astype(residual, "float32")
    y, rounded = be.astype(normalised(total), dtype), be.astype(total, dtype)
    if dtype in STORAGE:
        return (y, rounded), _Saved(x, residual, gain, bias, eps)
    return (y, rounded), _Saved(total, None, gain, bias, eps)


def _backward(norm: Norm, saved: _Saved, gouts: _Gouts, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    """Gradients of x, residual, gain and bias; the first two are one array."""
    dy, d_total = gouts
    d_gain = d_bias = None
    if dy is not None:
        d_total, d_gain, d_bias = metal.backward(saved.x, saved.gain, saved.bias, dy, saved.eps, None,
                                                 (needs[0] or needs[1], *needs[2:]), norm, saved.residual, d_total)
    return (d_total if needs[0] else None, d_total if needs[1] else None, d_gain, d_bias)


def _layer_forward(be: Backend, x: Array, residual: Array, gain: Array | None, bias: Array | None,
                   eps: float) -> tuple[_Outs, _Saved]:
    return _run(be, x, residual, gain, bias, eps, lambda total: layer_normalised(be, total, gain, bias, eps))


def _layer_vjp(be: Backend, saved: _Saved, gouts: _Gouts, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    return _backward(LAYER, saved, gouts, needs)


def _rms_forward(be: Backend, x: Array, residual: Array, gain: Array | None, eps: float) -> tuple[_Outs, _Saved]:
    return _run(be, x, residual, gain, None, eps, lambda total: rms_normalised(be, total, gain, eps))


def _rms_vjp(be: Backend, saved: _Saved, gouts: _Gouts, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    return _backward(RMS, saved, gouts, (*needs, False))[:3]


def _supports(norm: Norm) -> Callable[..., str | None]:
    return lambda be, x, *arrays, **unused: metal_kernels.missing() or metal.supports(x, norm)


def attach() -> None:
    """Add the rules to `add_layer_norm` and `add_rms_norm`."""
    for op, norm, forward, vjp in ((add_layer_norm, LAYER, _layer_forward, _layer_vjp),
                                   (add_rms_norm, RMS, _rms_forward, _rms_vjp)):
        op.add(Rule("metal gradient", forward, vjp, _supports(norm), stored=(0, 1)), backend="mlx")
