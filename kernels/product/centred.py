"""Weights without the means of their rows: layer norm of their product is the same, and the product has no mean."""

from __future__ import annotations

import numpy as np

from duoln.backends.protocol import Array
from duoln.kernels import host, native

_WORTH_THREADS = 1 << 18
"""Values below which a second thread costs more than it saves."""

_FILE = "product/centred.cpp"
_centred = native.Function(_FILE, "centred",
                           "x: real[2], out: real[2], rows: int64, width: int64, cut: int64, threads: int32")


def centred(weight: Array, cut: int | None = None, out: Array | None = None) -> Array:
    """The matrix without its rows' means; with `cut`, the columns before and after it each without their own.

    It is the gradient of itself, too. `out` is where the result goes; it may be `weight` itself.
    """
    rows, width = weight.shape
    cut = width if cut is None else cut
    if out is None:
        out = host.empty((rows, width), weight.dtype)
    if native.refusal(_FILE, weight.dtype):
        for first, last in ((0, cut), (cut, width)):
            if first < last:
                out[:, first:last] = weight[:, first:last] - weight[:, first:last].mean(axis=1, keepdims=True)
    else:
        _centred(np.ascontiguousarray(weight), out, rows, width, cut,
                 host.threads_for(weight.size, _WORTH_THREADS))
    return out
