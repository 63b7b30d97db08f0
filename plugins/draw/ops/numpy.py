"""A glimpse of DRAW on the CPU: the filters of both grids in one pass, and sums in place.

The gradient needs, for each row, the chances of the canvas (one image), the filters, and the products of filters with
images, which are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from duoln.extend import Array, Backend, Rule, host
from duoln.plugins.draw.ops.grid import EPSILON, LIMIT, WHERE

_LARGEST = 87.0
_SIGNS = np.array((1.0, -1.0))


class _Grids(NamedTuple):
    """The filters of the grid that reads and, behind them, of the grid that writes."""

    filters: Array
    """Columns, then rows: (B, 2, read + write, P)."""
    away: Array
    """The distance of each pixel from each mean: the same shape."""
    precision: Array
    """(B, 1, read + write, 1)."""
    strides: Array
    """The factors of a grid's steps: (B, 2)."""
    gammas: Array
    """The factors of the row filters: gamma to read, 1 / gamma to write, (B, 2)."""
    steps: Array
    """(read + write,)."""
    sizes: tuple[int, int]
    half: float


class _Saved(NamedTuple):
    image: Array
    looked: Array
    chances: Array
    """sigmoid(canvas)."""
    grids: _Grids
    rows: tuple[Array, Array]
    patch: Array
    landed: Array
    """The patch between the columns: (B, write, P)."""
    seen_rows: Array
    """The two images after the row filters: (B, 2 read, P)."""


def _make_grids(looked: Array, sizes: tuple[int, int], pixels: int, centre: str) -> _Grids:
    batch, dtype = len(looked), looked.dtype
    clamped = np.clip(looked[:, :2 * WHERE], -LIMIT, LIMIT).reshape(batch, 2, WHERE)
    half = (pixels if centre == "edge" else pixels + 1) / 2
    scales = np.exp(clamped[:, :, 2:])
    spans = np.array([(pixels - 1) / (n - 1) for n in sizes], dtype)
    strides, gammas = scales[:, :, 1] * spans, scales[:, :, 2].copy()
    np.divide(1.0, gammas[:, 1], gammas[:, 1])
    precision = np.repeat(1.0 / scales[:, :, 0], sizes, axis=1)[:, None, :, None]
    steps = np.concatenate([np.arange(n) - (n / 2 - 0.5) for n in sizes]).astype(dtype)
    centres = np.repeat((clamped[:, :, :2] + 1.0) * dtype.type(half), sizes, axis=1)  # (B, grid points, x and y)
    means = centres + (np.repeat(strides, sizes, axis=1) * steps)[:, :, None]
    away = np.subtract(np.arange(pixels, dtype=dtype), means.transpose(0, 2, 1)[..., None])
    bells = np.multiply(away, away)
    bells *= precision * dtype.type(-0.5)
    np.exp(bells, bells)
    totals = _sums(bells)
    totals += dtype.type(EPSILON)
    bells /= totals
    return _Grids(bells, away, precision, strides, gammas, steps, sizes, half)


def _sums(x: Array) -> Array:
    """Sums over the last axis, as a product: BLAS is faster than NumPy's sum of short rows."""
    return (x.reshape(-1, x.shape[-1]) @ np.ones(x.shape[-1], x.dtype)).reshape(*x.shape[:-1], 1)


def _grids_gradient(grids: _Grids, looked: Array, of_rows: tuple[Array, Array], of_columns: tuple[Array, Array],
                    ) -> Array:
    """The gradient at the ten numbers, (B, 10), from those at the filters, as `filterbank` has it."""
    batch, cut = len(looked), grids.sizes[0]
    g = host.empty_like(grids.filters)
    g[:, 0, :cut], g[:, 0, cut:] = of_columns
    for k, part in enumerate((slice(0, cut), slice(cut, None))):
        np.multiply(of_rows[k], grids.gammas[:, k, None, None], g[:, 1, part])
    along = np.multiply(g, grids.filters)
    sums = _sums(along)  # (B, 2, points, 1)
    g -= sums
    g *= grids.filters
    g *= grids.precision
    g *= grids.away
    d_means = _sums(g)
    g *= grids.away
    spreads = _sums(g)
    gradient = np.empty((batch, 2, WHERE), looked.dtype)
    for k, part in enumerate((slice(0, cut), slice(cut, None))):
        gradient[:, k, :2] = d_means[:, :, part, 0].sum(axis=2) * grids.half
        gradient[:, k, 2] = spreads[:, :, part, 0].sum(axis=(1, 2)) * 0.5
        gradient[:, k, 3] = (d_means[:, :, part, 0].sum(axis=1) @ grids.steps[part]) * grids.strides[:, k]
        gradient[:, k, 4] = sums[:, 1, part, 0].sum(axis=1) * _SIGNS[k]
    gradient = gradient.reshape(batch, 2 * WHERE)
    gradient[np.abs(looked[:, :2 * WHERE]) >= LIMIT] = 0.0
    return gradient


def _chances(logits: Array) -> Array:
    """1 / (1 + exp(-logits)). NumPy's exp takes half the time of its tanh."""
    # Below -_LARGEST a chance is 0 in float32. The exponential of a smaller logit would overflow.
    chances = np.maximum(logits, np.full(logits.shape[-1], -_LARGEST, logits.dtype), out=host.empty_like(logits))
    np.negative(chances, chances)
    np.exp(chances, chances)
    chances += 1.0
    return np.divide(1.0, chances, chances)


def _forward(be: Backend, canvas: Array, image: Array, looked: Array, read: int, write: int,
             centre: str) -> tuple[tuple[Array, Array], _Saved]:
    batch, pixels = canvas.shape[:2]
    grids = _make_grids(looked, (read, write), pixels, centre)
    columns = grids.filters[:, 0]
    read_rows = grids.filters[:, 1, :read] * grids.gammas[:, 0, None, None]
    write_rows = grids.filters[:, 1, read:] * grids.gammas[:, 1, None, None]
    patch = np.ascontiguousarray(looked[:, 2 * WHERE:]).reshape(batch, write, write)
    landed = patch @ columns[:, read:]
    drawn = np.matmul(write_rows.transpose(0, 2, 1), landed, out=host.empty_like(canvas))
    drawn += canvas
    chances = _chances(drawn)
    seen_rows = np.concatenate((read_rows @ image, read_rows @ chances), axis=1)
    seen = (seen_rows @ columns[:, :read].transpose(0, 2, 1)).reshape(batch, 2, read * read)
    np.subtract(seen[:, 0], seen[:, 1], seen[:, 1])  # the error patch: that of the image minus `chances`
    saved = _Saved(image, looked, chances, grids, (read_rows, write_rows), patch, landed, seen_rows)
    return (drawn, seen.reshape(batch, -1)), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> list[Array | None]:
    image, looked, chances, grids, (read_rows, write_rows), patch, landed, seen_rows = saved
    batch, (read, write) = len(looked), grids.sizes
    columns = grids.filters[:, 0]
    of_canvas, of_seen = gouts
    d_image = None
    if of_seen is not None:
        g = of_seen.reshape(batch, 2, read, read)
        halves = np.stack((g[:, 0] + g[:, 1], -g[:, 1]), axis=1).reshape(batch, 2 * read, read)
        d_seen_rows = halves @ columns[:, :read]
        d_read_columns = halves.transpose(0, 2, 1) @ seen_rows
        d_read_rows = d_seen_rows[:, :read] @ image.transpose(0, 2, 1)
        d_read_rows += d_seen_rows[:, read:] @ chances.transpose(0, 2, 1)
        read_rows_t = read_rows.transpose(0, 2, 1)
        if needs[1]:
            d_image = read_rows_t @ d_seen_rows[:, :read]
        d_canvas = np.multiply(chances, chances, host.empty_like(chances))
        np.subtract(chances, d_canvas, d_canvas)
        d_canvas *= read_rows_t @ d_seen_rows[:, read:]
        if of_canvas is not None:
            d_canvas += of_canvas
    else:
        assert of_canvas is not None
        d_canvas = of_canvas
        d_read_columns = d_read_rows = np.zeros_like(read_rows)
        d_image = np.zeros_like(image) if needs[1] else None
    d_looked = None
    if needs[2]:
        between = write_rows @ d_canvas
        d_patch = between @ columns[:, read:].transpose(0, 2, 1)
        d_write_columns = patch.transpose(0, 2, 1) @ between
        d_write_rows = landed @ d_canvas.transpose(0, 2, 1)
        d_where = _grids_gradient(grids, looked, (d_read_rows, d_write_rows), (d_read_columns, d_write_columns))
        d_looked = np.concatenate((d_where, d_patch.reshape(batch, write * write)), axis=1)
    return [d_canvas if needs[0] else None, d_image, d_looked]


write_then_read_in_one_pass = Rule("one pass", _forward, _vjp)
