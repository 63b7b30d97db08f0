"""The density of a pen's next point: a mixture of bivariate Gaussians and a bit (Graves 2013, eq. 16-26)."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi
from typing import Any

from duoln.errors import ShapeError
from duoln.extend import Array, Backend, Rule, Tensor, op

_LOG_TWO_PI = log(2 * pi)
_STEEPEST, _FARTHEST, _NARROWEST = 80.0, 1e9, 20.0
"""Bounds on -s, on a and b, and on r. Within them no product of the gradient is infinite: times a share of 0 it would
be NaN. A component farther away has no share, and the correlation of a greater r is 1 in float32.
"""


@op("output: real[*rows, width], points: real[*rows, 3] -> real[*rows]")
def mixture_density(output: Tensor, points: Tensor) -> Tensor:
    """Negative log-likelihood, in nats, of an offset and a bit, from the outputs of a network.

    Along its last axis `output` holds e (1), then M each of the weights' logits p, the means m1 and m2, the log
    deviations s1 and s2, and r with correlation rho = tanh r. The bit is 1 with probability sigmoid(-e), and

    -log sum over M of softmax(p) N(x | m, exp(s), tanh(r)) - log P(bit).

    All values are in log space. No value is divided by 1 - rho^2, because it is 0 in float32 from r = 9 on: with
    a = (x1 - m1) / sigma1 and b = (x2 - m2) / sigma2,

    Z / (1 - rho^2) = [(a - b)^2 (1 + exp(2 r)) + (a + b)^2 (1 + exp(-2 r))] / 4,   -log(1 - rho^2) / 2 = log cosh r,

    sums of what is not negative.

    Shape:
        output (..., 1 + 6 M), points (..., 3) -> (...).

    Raises:
        ShapeError: arrays that do not fit.
    """
    mixture_density.check(output, points)
    if output.shape[-1] < 7 or output.shape[-1] % 6 != 1:
        raise ShapeError(f"[mixture_density] expected output (..., 1 + 6 M), found {output.shape}")
    return mixture_density.apply(output, points)


def _within(be: Backend, x: Array, limit: float) -> Array:
    return be.minimum(be.maximum(x, -limit), limit)


def _softplus(be: Backend, x: Array) -> Array:
    return be.maximum(x, 0.0) + be.log1p(be.exp(-be.abs(x)))


def _forward(be: Backend, output: Array, points: Array) -> tuple[Array, Any]:
    count = output.shape[-1] // 6
    end, p, m1, m2, s1, s2, r = (output[..., 0], *(output[..., 1 + k * count:1 + (k + 1) * count] for k in range(6)))
    inverse1, inverse2 = (be.exp(be.minimum(-s, _STEEPEST)) for s in (s1, s2))
    a, b = (_within(be, d, _FARTHEST) for d in ((points[..., 0:1] - m1) * inverse1, (points[..., 1:2] - m2) * inverse2))
    minus, plus = a - b, a + b
    narrow = _within(be, r, _NARROWEST)
    up, down = be.exp(2.0 * narrow), be.exp(-2.0 * narrow)
    quadratic = 0.25 * (minus * minus * (1.0 + up) + plus * plus * (1.0 + down))
    shifted = p - be.max(p, axis=-1, keepdims=True)
    powers = be.exp(shifted)
    total = be.sum(powers, axis=-1, keepdims=True)
    width = be.abs(r)
    log_cosh = width + be.log1p(be.exp(-2.0 * width)) - log(2.0)
    each = shifted - be.log(total) - s1 - s2 + log_cosh - 0.5 * quadratic
    top = be.max(each, axis=-1, keepdims=True)
    share = be.exp(each - top)
    together = be.sum(share, axis=-1, keepdims=True)
    bit = points[..., 2]
    loss = _LOG_TWO_PI - be.squeeze(top + be.log(together), -1) + _softplus(be, end) - (1.0 - bit) * end
    saved = (end, bit, powers / total, share / together, a, b, inverse1, inverse2, up, down, be.tanh(r))
    return loss, saved


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    end, bit, weight, share, a, b, inverse1, inverse2, up, down, rho = saved
    g = be.expand_dims(gout, -1)
    minus, plus = a - b, a + b
    from_minus, from_plus = 0.5 * minus * (1.0 + up), 0.5 * plus * (1.0 + down)
    g_each = share * g
    # Half the derivatives of the quadratic by a and b: those of the loss, each component's by its share.
    by_a, by_b = 0.5 * (from_plus + from_minus), 0.5 * (from_plus - from_minus)
    g_m1, g_m2 = -g_each * by_a * inverse1, -g_each * by_b * inverse2
    g_output = None
    if needs[0]:
        g_end = g * be.expand_dims(0.5 * be.tanh(0.5 * end) + 0.5 - (1.0 - bit), -1)
        g_r = g_each * (0.25 * (minus * minus * up - plus * plus * down) - rho)
        g_output = be.concat([g_end, weight * g - g_each, g_m1, g_m2, g_each * (1.0 - a * by_a),
                              g_each * (1.0 - b * by_b),
                              g_r], axis=-1)
    g_points = None
    if needs[1]:
        parts = [-be.sum(g_m1, axis=-1, keepdims=True), -be.sum(g_m2, axis=-1, keepdims=True),
                 g * be.expand_dims(end, -1)]
        g_points = be.concat(parts, axis=-1)
    return g_output, g_points


mixture_density.add(Rule("composed", _forward, _vjp))
