"""The operators of handwriting: the window over the text, and the density of the pen's next point (Graves 2013)."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi
from typing import Any

from duoln.errors import ShapeError
from duoln.extend import Array, AtLeast0, Backend, Rule, Tensor, op

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


def _clip(be: Backend, x: Array, limit: float) -> Array:
    return be.minimum(be.maximum(x, -limit), limit)


def _softplus(be: Backend, x: Array) -> Array:
    return be.maximum(x, 0.0) + be.log1p(be.exp(-be.abs(x)))


def _density(be: Backend, output: Array, points: Array) -> tuple[Array, Any]:
    count = output.shape[-1] // 6
    end, p, m1, m2, s1, s2, r = (output[..., 0], *(output[..., 1 + k * count:1 + (k + 1) * count] for k in range(6)))
    inverse1, inverse2 = (be.exp(be.minimum(-s, _STEEPEST)) for s in (s1, s2))
    a, b = (_clip(be, d, _FARTHEST) for d in ((points[..., 0:1] - m1) * inverse1, (points[..., 1:2] - m2) * inverse2))
    minus, plus = a - b, a + b
    narrow = _clip(be, r, _NARROWEST)
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


def _density_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
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


mixture_density.add(Rule("composed", _density, _density_vjp))


# The window ----------------------------------------------------------------------------------------------------

@op("raw: real[n, 3 k], kappa: real[n, k], characters: real[n, u, c] "
    "-> window: like raw, kappa: like kappa, phi: like raw")
def soft_window(raw: Tensor, kappa: Tensor, characters: Tensor, *,
                advance: AtLeast0 = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """One step of a soft window over a text (Graves 2013, eq. 46-51).

    (a, b, k) = raw;  kappa' = kappa + advance * exp(k);
    phi(u) = sum over K of exp(a) exp(-exp(b) (kappa' - u)^2), u = 1 ... U;  window = sum over u of phi(u) c_u.

    Shape:
        raw (B, 3 K), kappa (B, K), characters (B, U, C) -> window (B, C), the new kappa (B, K), phi (B, U).
        Rows of `characters` that are all 0 are padding: they add nothing to the window.

    Raises:
        ShapeError: the arrays do not fit together.
    """


def _window(be: Backend, raw: Array, kappa: Array, characters: Array, advance: float) -> tuple[tuple[Array, ...], Any]:
    batch, count = kappa.shape
    positions = be.astype(be.arange(characters.shape[1]), be.dtype(raw)) + 1.0
    # Beyond the bounds a power is 0 or infinite, and the product of both NaN.
    powers = be.reshape(be.exp(be.minimum(be.maximum(raw, -_STEEPEST), _STEEPEST)), (batch, 3, count, 1))
    beta, step = powers[:, 1], advance * powers[:, 2, :, 0]
    new = kappa + step
    distance = be.reshape(new, (batch, count, 1)) - positions
    bumps = powers[:, 0] * be.exp(-beta * (distance * distance))
    phi = be.sum(bumps, axis=1)
    window = be.reshape(be.matmul(be.reshape(phi, (batch, 1, -1)), characters), (batch, characters.shape[2]))
    return (window, new, phi), (beta, step, distance, bumps, phi, characters)


def _window_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    beta, step, distance, bumps, phi, characters = saved
    g_window, g_new, g_phi = gouts
    batch = step.shape[0]
    g_characters = None
    if g_window is not None:
        column = be.reshape(g_window, (batch, -1, 1))
        through = be.reshape(be.matmul(characters, column), phi.shape)
        g_phi = through if g_phi is None else g_phi + through
        if needs[2]:
            g_characters = be.expand_dims(phi, 2) * be.expand_dims(g_window, 1)
    elif needs[2]:
        g_characters = be.zeros(characters.shape, be.dtype(phi))
    if g_phi is None:
        zero = be.zeros(step.shape, be.dtype(phi))
        g_kappa = zero if g_new is None else g_new
        return [be.concat([zero, zero, g_kappa * step], axis=1), g_kappa, g_characters]
    g_bumps = bumps * be.expand_dims(g_phi, 1)
    far = g_bumps * distance
    g_beta = be.sum(far * distance, axis=2)
    width = beta[:, :, 0]
    g_kappa = -2.0 * width * be.sum(far, axis=2)
    if g_new is not None:
        g_kappa = g_kappa + g_new
    g_raw = be.concat([be.sum(g_bumps, axis=2), -width * g_beta, g_kappa * step], axis=1)
    return [g_raw, g_kappa, g_characters]


soft_window.add(Rule("composed", _window, _window_vjp))
