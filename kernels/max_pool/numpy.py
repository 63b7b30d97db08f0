"""The gradient of max pooling on the CPU for windows that do not overlap: each pixel is written once.

The composed rule adds the entries of all windows to an array of zeros, one position in the window after another, and
copies the array each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.ops import max_pool2d


def _supports(be: Backend, x: Array, size: int, stride: int) -> str | None:
    if size != stride:
        return f"the windows are {size} wide and {stride} apart"
    return None if x.size else "there are no values"


def _places(x: Array, pooled: Array, size: int) -> Iterator[Array]:
    """For each position in the window, the pixels of all windows at this position."""
    height, width = (n * size for n in pooled.shape[1:3])
    for i in range(size):
        for j in range(size):
            yield x[:, i:height:size, j:width:size]


def _forward(be: Backend, x: Array, size: int, stride: int) -> tuple[Array, Any]:
    batch, height, width, channels = x.shape
    y = host.empty((batch, height // size, width // size, channels), x.dtype)

    def work(first: int, last: int) -> None:
        for i in range(first, last):  # one image at a time, because it fits into the cache
            first_place, *more_places = _places(x[i:i + 1], y, size)
            y[i:i + 1] = first_place
            for pixels in more_places:
                np.maximum(y[i:i + 1], pixels, out=y[i:i + 1])

    host.over_rows(batch, x[0].nbytes, work)
    return y, (x, y, size)


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    x, y, size = saved
    dx = host.empty_like(x)
    dx[:, y.shape[1] * size:] = 0  # pixels that are in no window
    dx[:, :, y.shape[2] * size:] = 0

    def work(first: int, last: int) -> None:
        for i in range(first, last):
            here = slice(i, i + 1)
            greatest = [pixels == y[here] for pixels in _places(x[here], y, size)]
            share = gout[here] / sum(greatest[1:], start=greatest[0].astype(gout.dtype))
            for target, is_greatest in zip(_places(dx[here], y, size), greatest, strict=True):
                np.multiply(is_greatest, share, out=target)

    host.over_rows(len(x), x[0].nbytes, work)
    return (dx,)


def attach() -> None:
    """Add the rule to `max_pool2d`."""
    max_pool2d.add(Rule("windows side by side", _forward, _vjp, _supports), backend="numpy")
