"""A residual is added and the sum normalised: what stands between two blocks of a residual network, in one operator.

Both return the normalised sum and the sum itself, which the next block adds to. A fused rule reads and writes each
value once.

Source: Ba, Kiros, Hinton 2016, "Layer Normalization", eq. 3; Zhang, Sennrich 2019, eq. 4; He, Zhang, Ren and
Sun 2016, "Deep Residual Learning for Image Recognition", eq. 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import AtLeast0
from duoln.ops.norm import (
    layer_norm_forward,
    layer_norm_vjp,
    rms_norm_forward,
    rms_norm_vjp,
)

Gouts = tuple[Array | None, Array | None]


@op("x: real[*rows, width+], residual: real[*rows, width], gain: real[width]?, bias: real[width]? "
    "-> y: like x, total: like residual")
def add_layer_norm(x: Tensor, residual: Tensor, gain: Tensor | None = None, bias: Tensor | None = None, *,
                   eps: AtLeast0 = 1e-5) -> tuple[Tensor, Tensor]:
    """The sum of `x` and `residual`, and its layer norm over the last axis: `layer_norm(x + residual, gain, bias)`.

    total = x + residual; y = gain * (total - mean) / sqrt(var + eps) + bias. If `residual` is float32 and `x` has 16
    bits, the sum stays float32 and y has 16 bits; y is computed from the sum before that is rounded.

    Shape:
        x (..., width), residual like x, gain and bias (width,) or None -> (y like x, total like residual).

    Raises:
        ShapeError: `[add_layer_norm] last axis is 5, gain has 4`; `residual` has another shape than `x`; the last axis
            has no values. UsageError: `eps` is below 0.
    """


@op("x: real[*rows, width+], residual: real[*rows, width], gain: real[width]? -> y: like x, total: like residual")
def add_rms_norm(x: Tensor, residual: Tensor, gain: Tensor | None = None, *,
                 eps: AtLeast0 = 1e-5) -> tuple[Tensor, Tensor]:
    """The sum of `x` and `residual`, and its RMS norm over the last axis: `rms_norm(x + residual, gain)`.

    total = x + residual; y = gain * total / sqrt(mean(total ** 2) + eps). Dtypes are those of `add_layer_norm`.

    Shape:
        x (..., width), residual like x, gain (width,) or None -> (y like x, total like residual).

    Raises:
        ShapeError: `[add_rms_norm] last axis is 5, gain has 4`; `residual` has another shape than `x`; the last axis
            has no values. UsageError: `eps` is below 0.
    """


def _add_layer_norm_forward(be: Backend, x: Array, residual: Array, gain: Array | None, bias: Array | None,
                            eps: float) -> tuple[tuple[Array, Array], Any]:
    total = x + residual
    y, saved = layer_norm_forward(be, total, gain, bias, eps)
    return (y, total), saved


def _add_layer_norm_vjp(be: Backend, saved: Any, gouts: Gouts, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    return _through_sum(layer_norm_vjp, be, saved, gouts, needs)


def _add_rms_norm_forward(be: Backend, x: Array, residual: Array, gain: Array | None,
                          eps: float) -> tuple[tuple[Array, Array], Any]:
    total = x + residual
    y, saved = rms_norm_forward(be, total, gain, eps)
    return (y, total), saved


def _add_rms_norm_vjp(be: Backend, saved: Any, gouts: Gouts, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    return _through_sum(rms_norm_vjp, be, saved, gouts, needs)


def _through_sum(norm_vjp: Callable[..., tuple[Array | None, ...]], be: Backend, saved: Any, gouts: Gouts,
                 needs: Sequence[bool]) -> tuple[Array | None, ...]:
    """The gradient of the norm with respect to the sum, plus that of the sum itself, which x and residual share."""
    dy, d_sum = gouts
    params: list[Array | None] = [None] * len(needs[2:])
    if dy is not None:
        through, *params = norm_vjp(be, saved, dy, (needs[0] or needs[1], *needs[2:]))
        d_sum = through if d_sum is None or through is None else through + d_sum
    return (d_sum if needs[0] else None, d_sum if needs[1] else None, *params)


add_layer_norm.add(Rule("composed", _add_layer_norm_forward, _add_layer_norm_vjp))
add_rms_norm.add(Rule("composed", _add_rms_norm_forward, _add_rms_norm_vjp))
