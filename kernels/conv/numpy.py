"""Convolution on the CPU: it gathers patches of a few images at a time and computes one product for each such block.

The composed rule writes all patches of the batch to memory, KH x KW times the images, and reads them again. Here a
block of patches stays in cache until it is multiplied. The gradient of the images is a convolution of the outputs'
gradient with the reversed kernel, so it is computed in the same way. Only BLAS uses threads here: with a share of the
images for each thread, whole training steps took 1.3 times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.ops import conv2d

BLOCK_BYTES = 1 << 21
"""The size of a block of patches. The product packs the weights for each block, so a smaller block would not pay."""


class _Saved(NamedTuple):
    padded: Array
    weight: Array
    padding: int


def _supports(be: Backend, x: Array, weight: Array, stride: int = 1, padding: int = 0) -> str | None:
    if stride != 1:
        return f"the stride is {stride}"
    return None if x.size and weight.size else "there are no values"


def _forward(be: Backend, x: Array, weight: Array, stride: int, padding: int) -> tuple[Array, _Saved]:
    padded = _bordered(x, padding, padding)
    return _convolve(padded, weight), _Saved(padded, weight, padding)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    padded, weight, padding = saved
    dx = None
    if needs[0]:
        turned = weight[::-1, ::-1].transpose(0, 1, 3, 2)
        dx = _convolve(_bordered(gout, *(n - 1 - padding for n in weight.shape[:2])), turned)
    return [dx, _weight_gradient(padded, gout, weight.shape) if needs[1] else None]


def _bordered(x: Array, rows: int, columns: int) -> Array:
    """The images with zero rows above and below and zero columns on both sides; a negative number removes pixels."""
    x = x[:, max(-rows, 0):x.shape[1] - max(-rows, 0), max(-columns, 0):x.shape[2] - max(-columns, 0)]
    rows, columns = max(rows, 0), max(columns, 0)
    if not rows and not columns:
        return np.ascontiguousarray(x)
    batch, height, width, channels = x.shape
    out = host.empty((batch, height + 2 * rows, width + 2 * columns, channels), x.dtype)
    for border in (out[:, :rows], out[:, rows + height:], out[:, rows:rows + height, :columns],
                   out[:, rows:rows + height, columns + width:]):
        border[...] = 0
    out[:, rows:rows + height, columns:columns + width] = x
    return out


class _Patches:
    """The input pixels of each output position, gathered block by block.

    A row of a patch, KW pixels with all their channels, is contiguous in memory and is copied as one piece.
    """

    def __init__(self, padded: Array, kernel: tuple[int, int]) -> None:
        batch, height, width, channels = padded.shape
        self.out = (batch, height - kernel[0] + 1, width - kernel[1] + 1)
        self.width = prod(kernel) * channels
        self._view = sliding_window_view(padded, kernel, (1, 2)).transpose(0, 1, 2, 4, 5, 3)

    def blocks(self) -> Iterator[tuple[tuple[slice, slice], Array]]:
        """Images and rows of the output for each block, with the patches (..., width).

        Every block uses the same array.
        """
        count, height, width = self.out
        row_bytes = width * self.width * self._view.itemsize
        rows = min(max(BLOCK_BYTES // row_bytes, 1), height)
        images = min(max(BLOCK_BYTES // (row_bytes * height), 1), count)
        buffer = host.scratch("patches", images * rows * width * self.width, self._view.dtype)
        for i in range(0, count, images):
            for r in range(0, height, rows):
                place = slice(i, min(i + images, count)), slice(r, min(r + rows, height))
                seen = self._view[place]
                if seen.flags.c_contiguous:  # a kernel of one pixel: the images are the patches
                    yield place, seen.reshape(-1, self.width)
                    continue
                patches = buffer[:seen.size].reshape(seen.shape)
                patches[...] = seen
                yield place, patches.reshape(-1, self.width)


def _convolve(padded: Array, weight: Array) -> Array:
    """The convolution without padding."""
    patches = _Patches(padded, weight.shape[:2])
    flat = np.ascontiguousarray(weight).reshape(patches.width, -1)
    y = host.empty((*patches.out, weight.shape[3]), padded.dtype)
    for place, block in patches.blocks():
        np.matmul(block, flat, out=y[place].reshape(-1, flat.shape[1]))
    return y


def _weight_gradient(padded: Array, gout: Array, shape: tuple[int, ...]) -> Array:
    patches = _Patches(padded, (shape[0], shape[1]))
    g = np.ascontiguousarray(gout)
    total = np.zeros((patches.width, shape[3]), g.dtype)
    part = np.empty_like(total)
    for place, block in patches.blocks():
        total += np.matmul(block.T, g[place].reshape(-1, shape[3]), out=part)
    return total.reshape(shape)


def attach() -> None:
    """Add the rule to `conv2d`."""
    conv2d.add(Rule("cache blocks", _forward, _vjp, _supports), backend="numpy")
