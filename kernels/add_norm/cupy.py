"""The norm of a sum on CUDA, by the kernels of layer norm, in one pass: x and residual are read once, the sum and y are
written once, and the gradient reads the sum and both gradients once and writes one, that of x and of residual.

For the gradient the rules keep the sum, which they return too, and three floats per row, or one. Of 16 bits they keep x
and residual, because rows are normalised before the sum is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import launch
from duoln.kernels.layer_norm import cuda
from duoln.kernels.layer_norm.variant import LAYER, RMS
from duoln.ops import add_layer_norm, add_rms_norm

_Outs = tuple[Array, Array]
_Gouts = tuple[Array | None, Array | None]


def _layer_supports(be: Backend, x: Array, residual: Array, gain: Array | None, bias: Array | None,
                    eps: float = 1e-5) -> str | None:
    return cuda.supports(be, x)


def _layer_forward(be: Backend, x: Array, residual: Array, gain: Array | None, bias: Array | None,
                   eps: float) -> tuple[_Outs, cuda.Kept]:
    gain, bias = launch.packed(gain, bias)
    y, total, kept = cuda.add_forward(LAYER, cuda.as_rows(x), cuda.as_rows(residual), gain, bias, eps)
    return (y.reshape(x.shape), total.reshape(x.shape)), kept


def _layer_vjp(be: Backend, saved: cuda.Kept, gouts: _Gouts, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    return cuda.add_backward(LAYER, saved, gouts, needs)


def _rms_supports(be: Backend, x: Array, residual: Array, gain: Array | None, eps: float = 1e-5) -> str | None:
    return cuda.supports(be, x)


def _rms_forward(be: Backend, x: Array, residual: Array, gain: Array | None, eps: float) -> tuple[_Outs, cuda.Kept]:
    (gain,) = launch.packed(gain)
    y, total, kept = cuda.add_forward(RMS, cuda.as_rows(x), cuda.as_rows(residual), gain, None, eps)
    return (y.reshape(x.shape), total.reshape(x.shape)), kept


def _rms_vjp(be: Backend, saved: cuda.Kept, gouts: _Gouts, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    return cuda.add_backward(RMS, saved, gouts, (*needs, False))[:3]


def attach() -> None:
    """Add the rules to `add_layer_norm` and `add_rms_norm`."""
    add_layer_norm.add(Rule("cuda row", _layer_forward, _layer_vjp, _layer_supports, stored=(0, 1)), backend="cupy")
    add_rms_norm.add(Rule("cuda row", _rms_forward, _rms_vjp, _rms_supports, stored=(0, 1)), backend="cupy")
