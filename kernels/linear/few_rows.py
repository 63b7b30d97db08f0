"""Products of a few rows with a matrix on the CPU, compiled: the matrix is read once, unpacked."""

from __future__ import annotations

from duoln.backends.protocol import Array
from duoln.kernels import native
from duoln.kernels.launch import Launch

MOST_ROWS = 8
"""With more, packing the matrix pays: (8 x 400)(400 x 1600) takes 144 us here, 213 packed and 182 by OpenBLAS."""
MOST_ROWS_TRANSPOSED = 4
"""The same for a matrix that lies transposed: (3 x 1600)(1600 x 800) takes 53 us, 139 packed and 164 by OpenBLAS; with
8 rows 134, 146 and 138.
"""
LEAST_WIDTH = 128
"""The narrowest matrix that is used unpacked. Narrower ones are faster packed, except for a single row."""
FILE = "linear/linear.cpp"
_TEXT = FILE.removesuffix(".cpp")

_multiply = Launch(_TEXT, "linear_forward", "x: real[*rows, n_in], weight: own[n_in, n_out], bias: real[n_out]?, "
                                            "y: own, threads: int32")["numpy"]
_multiply_transposed = Launch(_TEXT, "linear_transposed", "x: real[*rows, n_out], weight: own[n_in, n_out], y: own, "
                                                          "threads: int32")["numpy"]
differentiate = Launch(_TEXT, "linear_backward", "x: real[*rows, n_in], weight: own[n_in, n_out], "
                                                 "dy: real[*rows, n_out], threads: int32 "
                                                 "-> dx: like x?, d_weight: like weight?")["numpy"]
"""The gradients of x and of a weight that is contiguous."""


def fits(rows: int, weight: Array) -> bool:
    """True if a product of `rows` rows with a matrix is faster here than by packing the matrix."""
    if weight.flags.c_contiguous:
        most, width = MOST_ROWS, weight.shape[1]
    else:
        most, width = MOST_ROWS_TRANSPOSED if weight.flags.f_contiguous else 0, weight.shape[0]
    return 0 < rows <= most and (rows == 1 or width >= LEAST_WIDTH) and native.refusal(FILE, weight.dtype) is None


def multiply_few_rows(x: Array, weight: Array, bias: Array | None, y: Array, threads: int) -> None:
    """`y = x @ weight + bias`, where the weight is contiguous or lies transposed, and y is contiguous.

    Shape:
        x (*rows, n_in), weight (n_in, n_out), bias (n_out,) or None, y (*rows, n_out).
    """
    if weight.flags.c_contiguous:
        _multiply(x, weight, bias, y, threads)
        return
    _multiply_transposed(x, weight.T, y, threads)
    if bias is not None:
        y += bias
