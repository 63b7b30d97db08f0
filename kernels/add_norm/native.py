"""The norm of a sum on the CPU, compiled from layer norm's own text: one pass reads both and writes sum and norm."""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.kernels.layer_norm.passes import FILE, LAYER, RMS, Passes, Saved
from duoln.ops import add_layer_norm, add_rms_norm

Gouts = tuple[Array | None, Array | None]


def _supports(be: Backend, x: Array, residual: Array, gain: Array | None, bias: Array | None = None,
              eps: float = 1e-5) -> str | None:
    return native.failure(FILE, x.dtype) if x.size else "there are no values"


def _layer_forward(be: Backend, x: Array, residual: Array, gain: Array | None, bias: Array | None,
                   eps: float) -> tuple[tuple[Array, Array], Saved]:
    return LAYER.forward_of_sum(x, residual, gain, bias, eps)


def _layer_vjp(be: Backend, saved: Saved, gouts: Gouts, needs: Sequence[bool]) -> Sequence[Array | None]:
    return _through_sum(LAYER, saved, gouts, needs)


def _rms_forward(be: Backend, x: Array, residual: Array, gain: Array | None,
                 eps: float) -> tuple[tuple[Array, Array], Saved]:
    return RMS.forward_of_sum(x, residual, gain, None, eps)


def _rms_vjp(be: Backend, saved: Saved, gouts: Gouts, needs: Sequence[bool]) -> Sequence[Array | None]:
    return _through_sum(RMS, saved, gouts, (*needs, False))[:3]


def _through_sum(passes: Passes, saved: Saved, gouts: Gouts, needs: Sequence[bool]) -> Sequence[Array | None]:
    """The gradients of x and residual, which are one array, and of gain and bias."""
    dy, d_sum = gouts
    params: list[Array | None] = [None, None]
    if dy is not None:
        d_sum, *params = passes.backward(saved, dy, d_sum, (needs[0] or needs[1], *needs[2:]))
    return (d_sum if needs[0] else None, d_sum if needs[1] else None, *params)


def attach() -> None:
    """Add the rules to `add_layer_norm` and `add_rms_norm`."""
    add_layer_norm.add(Rule("compiled", _layer_forward, _layer_vjp, _supports), backend="numpy")
    add_rms_norm.add(Rule("compiled", _rms_forward, _rms_vjp, _supports), backend="numpy")
