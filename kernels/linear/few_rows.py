"""Products of a few rows with a matrix on the CPU, compiled: the matrix is read once, as it lies."""

from __future__ import annotations

import numpy as np

from duoln.backends.protocol import Array
from duoln.kernels import native

MOST_ROWS = 8
"""With more, packing the matrix pays: (8 x 400)(400 x 1600) takes 144 us here, 213 packed and 182 by OpenBLAS."""
FILE = "linear/linear.cpp"

_multiply = native.Function(FILE, "linear_forward", "x: real[2], weight: real[2], bias: real[1]?, y: real[2], "
                                                    "rows: int64, n_in: int64, n_out: int64, threads: int32")


def multiply_few_rows(x: Array, weight: Array, bias: Array | None, y: Array, threads: int) -> None:
    """`y = x @ weight + bias`, for contiguous arrays.

    Shape:
        x (rows, n_in), weight (n_in, n_out), bias (n_out,) or None, y (rows, n_out).
    """
    _multiply(x, weight, None if bias is None else np.ascontiguousarray(bias), y, len(x), *weight.shape, threads)
