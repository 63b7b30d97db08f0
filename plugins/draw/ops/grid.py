"""Attention that looks at an image through a grid of Gaussians (Gregor et al. 2015, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from duoln import ops
from duoln.extend import Array, AtLeast1, Backend, Rule, Tensor, Whole, check_room, op

Side = Annotated[int, Whole(2)]
"""The number of rows and columns of a grid."""

WHERE = 5
"""Numbers that place a grid: g_X, g_Y, log sigma^2, log delta, log gamma."""
LIMIT = 20.0
"""The five numbers are clamped to +-LIMIT: exp(LIMIT)^2 times the square of a distance then fits a float32."""
EPSILON = 1e-4


@op("where: real[n, 5]")
def filterbank(where: Tensor, *, size: Side, pixels: AtLeast1, inverse: bool = False) -> tuple[Tensor, Tensor]:
    """The filters of a size x size grid on a square image, one bank for its rows and one for its columns.

    `where` holds g_X, g_Y, log sigma^2, log delta and log gamma. Filter i of N, from 0, is a Gaussian over the
    pixels a = 0, 1, ... (eq. 19-26; eq. 22 has pixels + 1, which puts the middle half a pixel away from the image's):

        mu_i = (g + 1) / 2 * pixels + (i - N / 2 + 0.5) * stride,  stride = (pixels - 1) / (N - 1) * delta
        F[i, a] = exp(-(a - mu_i)^2 / (2 sigma^2)) / (their sum over a + 1e-4)

    The row bank is multiplied by gamma, or divided by it with `inverse`: F_Y image F_X^T is then what is read, and
    F_Y^T patch F_X what is written. The five numbers are clamped to +-20. So every value and gradient is finite, also
    for a grid that is far away, dense or sharp. A filter that covers no pixel is 0.

    Shape:
        where (B, 5) -> rows F_Y (B, size, pixels), columns F_X (B, size, pixels).

    Raises:
        ShapeError: `where` of another shape, a grid smaller than 2 x 2, or no pixels.
    """
    filterbank.check(where)
    check_room("filterbank", where.backend, (where.shape[0], 2, size, pixels))
    return filterbank.apply(where, size=size, pixels=pixels, inverse=inverse)


def _filterbank_forward(be: Backend, where: Array, size: int, pixels: int, inverse: bool,
                        ) -> tuple[tuple[Array, Array], Any]:
    batch, dtype = where.shape[0], be.dtype(where)
    clamped = be.minimum(be.maximum(where, -LIMIT), LIMIT)
    half = pixels / 2
    scales = be.reshape(be.exp(clamped[:, 2:]), (batch, 3, 1, 1))
    precision, stride = 1.0 / scales[:, 0:1], (pixels - 1) / (size - 1) * scales[:, 1:2]
    gamma = 1.0 / scales[:, 2] if inverse else scales[:, 2]
    steps = be.reshape(be.arange(size, dtype) - (size / 2 - 0.5), (1, 1, size, 1))
    means = be.reshape((clamped[:, :2] + 1.0) * half, (batch, 2, 1, 1)) + stride * steps
    away = be.reshape(be.arange(pixels, dtype), (1, 1, 1, pixels)) - means
    bells = be.exp(away * away * (-0.5 * precision))
    filters = bells / (be.sum(bells, axis=-1, keepdims=True) + EPSILON)
    columns, rows = filters[:, 0], filters[:, 1] * gamma
    return (rows, columns), (where, filters, away, precision, stride, steps, gamma, half, inverse)


def _filterbank_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, Array | None],
                    needs: Sequence[bool]) -> tuple[Array | None]:
    where, filters, away, precision, stride, steps, gamma, half, inverse = saved
    if not needs[0]:
        return (None,)
    batch = where.shape[0]
    plain = filters[:, 1]
    of_rows, of_columns = (be.zeros(plain.shape, be.dtype(plain)) if g is None else g for g in gouts)
    scaled = of_rows * gamma
    d_gamma = be.sum(be.reshape(scaled * plain, (batch, -1)), axis=1, keepdims=True)
    g = be.concat((be.expand_dims(of_columns, 1), be.expand_dims(scaled, 1)), axis=1)
    # The gradient of the exponents is that of a softmax; the epsilon is already in the saved filters.
    g = filters * (g - be.sum(g * filters, axis=-1, keepdims=True)) * precision
    toward = g * away
    d_means = be.sum(toward, axis=-1, keepdims=True)
    d_centres = be.reshape(be.sum(d_means, axis=2), (batch, 2)) * half
    d_variance = be.sum(be.reshape(toward * away, (batch, -1)), axis=1, keepdims=True) * 0.5
    d_stride = be.sum(be.reshape(d_means * steps * stride, (batch, -1)), axis=1, keepdims=True)
    gradient = be.concat((d_centres, d_variance, d_stride, -d_gamma if inverse else d_gamma), axis=1)
    return (be.where(be.abs(where) < LIMIT, gradient, 0.0),)


filterbank.add(Rule("composed", _filterbank_forward, _filterbank_vjp))


def read_patches(image: Tensor, error: Tensor, where: Tensor, *, size: int) -> Tensor:
    """The patches that a grid reads from two images, gamma F_Y [image, error] F_X^T (eq. 27).

    Shape:
        image and error (B, P, P), where (B, 5) -> (B, 2 size^2), the image's patch first, by rows.
    """
    rows, columns = filterbank(where, size=size, pixels=image.shape[-1])
    # Both images have the same column filters, so that one product serves both.
    between_rows = ops.concat(ops.matmul(rows, image), ops.matmul(rows, error), axis=1)
    both = ops.matmul(between_rows, ops.permute_dims(columns, axes=(0, 2, 1)))
    return ops.reshape(both, shape=(image.shape[0], 2 * size * size))


def write_patch(patch: Tensor, where: Tensor, *, pixels: int) -> Tensor:
    """1 / gamma F_Y^T patch F_X: a patch as it lands on the canvas (eq. 29).

    Shape:
        patch (B, N, N), where (B, 5) -> (B, pixels, pixels).
    """
    rows, columns = filterbank(where, size=patch.shape[-1], pixels=pixels, inverse=True)
    return ops.matmul(ops.permute_dims(rows, axes=(0, 2, 1)), ops.matmul(patch, columns))
