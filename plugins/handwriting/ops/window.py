"""The soft window of Graves (2013): attention that moves forward over a text, with Gaussians over its positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.extend import Array, AtLeast0, Backend, Rule, Tensor, op

_MOST = 80.0


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


def _forward(be: Backend, raw: Array, kappa: Array, characters: Array, advance: float) -> tuple[tuple[Array, ...], Any]:
    batch, count = kappa.shape
    positions = be.astype(be.arange(characters.shape[1]), be.dtype(raw)) + 1.0
    # Beyond the bounds a power is 0 or infinite, and the product of both NaN.
    powers = be.reshape(be.exp(be.minimum(be.maximum(raw, -_MOST), _MOST)), (batch, 3, count, 1))
    beta, step = powers[:, 1], advance * powers[:, 2, :, 0]
    new = kappa + step
    distance = be.reshape(new, (batch, count, 1)) - positions
    bumps = powers[:, 0] * be.exp(-beta * (distance * distance))
    phi = be.sum(bumps, axis=1)
    window = be.reshape(be.matmul(be.reshape(phi, (batch, 1, -1)), characters), (batch, characters.shape[2]))
    return (window, new, phi), (beta, step, distance, bumps, phi, characters)


def _vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
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


soft_window.add(Rule("composed", _forward, _vjp))
