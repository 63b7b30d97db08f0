"""RMS norm on MLX: MLX's kernel if it is accurate, and on Apple GPUs the gradient by layer norm's kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.core.storage import in_float32
from duoln.kernels import metal as metal_kernels
from duoln.kernels.layer_norm import metal, mlx_fast
from duoln.kernels.layer_norm.variant import RMS
from duoln.ops import rms_norm
from duoln.ops.moments import LEAST_EPS, SCALE

_SCALE = SCALE["float32"]


def _composed(be: Backend, x: Array, gain: Array | None, eps: float) -> Array:
    y: Array = rms_norm.rules("mlx")[-1].forward(be, x, gain, eps=eps)[0]
    return y


_GATE = mlx_fast.Gate("mx.fast.rms_norm", lambda x, eps: _fast(x, None, eps),
                      lambda be, x, eps: _composed(be, x, None, eps), centred=False)


class _Saved(NamedTuple):
    x: Array
    gain: Array | None
    eps: float


def normalised(be: Backend, x: Array, gain: Array | None, eps: float) -> Array:
    """Rows of float32, by MLX's kernel if it is accurate here, else by duoln's formula."""
    if eps >= LEAST_EPS and _GATE.inaccurate(be) is None:
        return _fast(x, gain, eps)
    return _composed(be, x, gain, eps)


def _fast(x: Array, gain: Array | None, eps: float) -> Array:
    return mx.fast.rms_norm(x * _SCALE, gain, eps * _SCALE**2)


def _fast_forward(be: Backend, x: Array, gain: Array | None, eps: float) -> tuple[Array, _Saved]:
    return _fast(x, gain, eps), _Saved(x, gain, eps)


def _fast_vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    *arrays, eps = saved
    return mlx_fast.gradients(lambda x, gain: _fast(x, gain, eps), arrays, gout, needs)


def _fast_supports(be: Backend, x: Array, gain: Array | None, eps: float) -> str | None:
    return mlx_fast.TINY if eps < LEAST_EPS else _GATE.supports(be, x)


def _metal_forward(be: Backend, x: Array, gain: Array | None, eps: float) -> tuple[Array, _Saved]:
    return in_float32(be, x, lambda wide: normalised(be, wide, gain, eps)), _Saved(x, gain, eps)


def _metal_vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    return metal.backward(saved.x, saved.gain, None, gout, saved.eps, None, (*needs, False), RMS)[:2]


def _metal_supports(be: Backend, x: Array, gain: Array | None, **unused: Any) -> str | None:
    return metal_kernels.missing() or metal.supports(x, RMS)


def attach() -> None:
    """Add the rules to `rms_norm`."""
    rms_norm.add(Rule("mx.fast", _fast_forward, _fast_vjp, _fast_supports, remark=_GATE.remark), backend="mlx")
    rms_norm.add(Rule("metal gradient", _metal_forward, _metal_vjp, _metal_supports, stored=(0,)), backend="mlx")
