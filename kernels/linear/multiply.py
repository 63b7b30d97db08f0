"""Products of two matrices on the CPU, compiled; the compiled rules call this function.

They are as fast as BLAS's on free cores, and do not collapse on taken ones: BLAS's threads wait for each other within
each product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duoln.backends.protocol import Array
from duoln.kernels import host, native
from duoln.kernels.launch import Launch
from duoln.kernels.launch.declared import ACTIVATIONS

MOST_ROWS = 8
"""With more, packing the matrix pays: (8 x 400)(400 x 1600) takes 144 us here, 213 packed and 182 by OpenBLAS."""
MOST_ROWS_TRANSPOSED = 4
"""The same for a matrix that lies transposed: (3 x 1600)(1600 x 800) takes 53 us, 139 packed and 164 by OpenBLAS; with
8 rows 134, 146 and 138.
"""
LEAST_WIDTH = 128
"""The narrowest matrix that is used unpacked. Narrower ones are faster packed, except for a single row."""
FEW_ROWS_FILE = "linear/linear.cpp"

_multiply_few = Launch("linear/linear", "linear_forward", "x: real[*rows, n_in], weight: own[n_in, n_out], "
                       "bias: real[n_out]?, y: own, threads: int32")["numpy"]
_multiply_few_transposed = Launch("linear/linear", "linear_transposed", "x: real[*rows, n_out], "
                                  "weight: own[n_in, n_out], y: own, threads: int32")["numpy"]
differentiate = Launch("linear/linear", "linear_backward", "x: real[*rows, n_in], weight: own[n_in, n_out], "
                       "dy: real[*rows, n_out], threads: int32 -> dx: like x?, d_weight: like weight?")["numpy"]
"""The gradients of x and of a weight that is contiguous."""


def _has_few(rows: int, weight: Array) -> bool:
    """True if a product of `rows` rows with a matrix is faster here than by packing the matrix."""
    if weight.flags.c_contiguous:
        most, width = MOST_ROWS, weight.shape[1]
    else:
        most, width = MOST_ROWS_TRANSPOSED if weight.flags.f_contiguous else 0, weight.shape[0]
    return 0 < rows <= most and (rows == 1 or width >= LEAST_WIDTH) and native.refusal(
        FEW_ROWS_FILE, weight.dtype) is None


def multiply_few_rows(x: Array, weight: Array, bias: Array | None, y: Array, threads: int) -> None:
    """`y = x @ weight + bias`, where the weight is contiguous or lies transposed, and y is contiguous.

    Shape:
        x (*rows, n_in), weight (n_in, n_out), bias (n_out,) or None, y (*rows, n_out).
    """
    if weight.flags.c_contiguous:
        _multiply_few(x, weight, bias, y, threads)
        return
    _multiply_few_transposed(x, weight.T, y, threads)
    if bias is not None:
        y += bias


LEAST = (1 << 18) + 1
"""Multiplications below which BLAS uses one thread too; its call costs less."""
LEAST_OF_VECTOR = 1 << 13
"""The same for a product with one row or column, which BLAS divides between threads from about 9,200 on: the number of
threads would change its bits.
"""
_WORTH_THREADS = 1 << 21
"""Multiplications below which a second thread costs more than it saves."""
_WORTH_THREADS_BYTES = 1 << 22
"""The same for few rows, in bytes of the second matrix: they wait for its memory."""

FILE = "linear/product.cpp"
_TEXT = FILE.removesuffix(".cpp")

_product = Launch(_TEXT, "product", "a: own, b: own, added: own?, out: own, sums: own?, rows: int64, depth: int64, "
                                    "columns: int64, a_distance: int64, b_distance: int64, added_distance: int64, "
                                    "out_distance: int64, a_turned: int32, b_turned: int32, activation: int32, "
                                    "threads: int32")["numpy"]
_product_of_pieces = Launch(_TEXT, "product_of_pieces", "a: own, addresses: own int64, distances: own int64, "
                                                        "ends: own int64, out: own, pieces: int64, rows: int64, "
                                                        "depth: int64, columns: int64, a_distance: int64, "
                                                        "a_turned: int32, threads: int32")["numpy"]
through_activation = Launch(_TEXT, "activation_backward", "y: real[*size], dy: real[*size], activation: int32 "
                                                          "-> dx: like y")["numpy"]
"""The gradient before an activation, from its value and the gradient after it."""


def multiply(a: Array, b: Array, out: Array | None = None, added: Array | None = None) -> Array:
    """`a @ b + added`, by BLAS where that is small, or where there is no library.

    Where `a` has few rows, or `b` has few columns, the other matrix is read once, unpacked.

    Shape:
        a (rows, depth), b (depth, columns), added (columns,), (rows, columns) or None -> (rows, columns).

    Either matrix may be transposed in memory. `out` gets the result; its rows are contiguous, and it overlaps neither
    matrix, but `added` may be `out`.
    """
    rows, columns = len(a), b.shape[1]
    if out is None:
        out = host.empty((rows, columns), a.dtype)
    if refusal(rows, b):
        return np.matmul(a, b, out=out) if added is None else np.add(a @ b, added, out=out)
    if out.flags.c_contiguous and _has_few(rows, b) and (added is None or added.ndim == 1):
        multiply_few_rows(a, b, added, out, host.threads_for(b.nbytes, _WORTH_THREADS_BYTES))
    elif _has_few(columns, a.T):
        out[...] = _few_columns(a, b, added).T
    else:
        _pack_and_multiply(a, b, out, added)
    return out


def _few_columns(a: Array, b: Array, added: Array | None) -> Array:
    """The product transposed: one of few rows with the transpose of `a`."""
    transposed = host.empty((b.shape[1], len(a)), a.dtype)
    multiply_few_rows(b.T, a.T, None, transposed, host.threads_for(a.nbytes, _WORTH_THREADS_BYTES))
    return transposed if added is None else np.add(transposed, np.atleast_2d(added).T, out=transposed)


def multiply_and_activate(a: Array, b: Array, bias: Array | None, activation: str) -> Array:
    """relu(`a @ b + bias`), or its tanh, for matrices for which `refusal` is None.

    Shape:
        a (rows, depth), b (depth, columns), bias (columns,) or None -> (rows, columns).
    """
    out = host.empty((len(a), b.shape[1]), a.dtype)
    if _packs_nothing(a, b):
        multiply(a, b, out, bias)
        return np.maximum(out, 0, out=out) if activation == "relu" else np.tanh(out, out=out)
    _pack_and_multiply(a, b, out, bias, activation=ACTIVATIONS[activation])
    return out


def multiply_and_sum(a: Array, b: Array, out: Array | None = None) -> tuple[Array, Array]:
    """`a @ b`, and the sums of b's columns, which are added up where b is packed.

    Shape:
        a (rows, depth), b (depth, columns) -> (rows, columns), (columns,).

    `out` gets the product, as in `multiply`.
    """
    if out is None:
        out = host.empty((len(a), b.shape[1]), a.dtype)
    if refusal(len(a), b) or _packs_nothing(a, b):
        return multiply(a, b, out), column_sums(b)
    sums = host.empty((b.shape[1],), a.dtype)
    _pack_and_multiply(a, b, out, sums=sums)
    return out, sums


def column_sums(x: Array) -> Array:
    """The sums of the columns of a matrix, as a product."""
    return multiply(host.ones((1, len(x)), x.dtype), x)[0]


def _pack_and_multiply(a: Array, b: Array, out: Array, added: Array | None = None, sums: Array | None = None,
                       activation: int = 0) -> None:
    rows, (depth, columns) = len(a), b.shape
    first, of_first, transposed = _row_contiguous(a)
    second, of_second, second_transposed = _row_contiguous(b)
    of_added = 0
    if added is not None:
        added = added[None] if added.ndim == 1 else added
        if not _distance(added):
            added = host.contiguous(added)
        of_added = _distance(added) if len(added) > 1 else 0
    _product(first, second, added, out, sums, rows, depth, columns, of_first, of_second, of_added, _distance(out),
             transposed, second_transposed, activation, host.threads_for(rows * depth * columns, _WORTH_THREADS))


def multiply_pieces(a: Array, pieces: Sequence[Array]) -> Array:
    """`a @ np.concatenate(pieces)` without that copy of the pieces; the same bits as `multiply` has, where that is
    compiled and packs its second matrix.

    Shape:
        a (rows, depth), which may lie transposed in memory, pieces (depth of each, columns) -> (rows, columns).
    """
    (rows, depth), columns = a.shape, pieces[0].shape[1]
    products = rows * depth * columns
    if len(pieces) == 1 or products < LEAST or native.refusal(FILE, a.dtype):
        return multiply(a, pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
    first, of_first, transposed = _row_contiguous(a)
    whole = [piece if _distance(piece) and piece.dtype == a.dtype else
             host.contiguous(piece.astype(a.dtype, copy=False)) for piece in pieces]
    out = host.empty((rows, columns), a.dtype)
    distances = np.array([_distance(piece) for piece in whole], np.int64)
    ends = np.cumsum([len(piece) for piece in whole], dtype=np.int64)
    _product_of_pieces(first, host.row(whole), distances, ends, out, len(whole), rows,
                       depth, columns, of_first, transposed, host.threads_for(products, _WORTH_THREADS))
    return out


def _packs_nothing(a: Array, b: Array) -> bool:
    """True if `multiply` reads both matrices in their own layout, without packing them."""
    return _has_few(len(a), b) or _has_few(b.shape[1], a.T)


def _row_contiguous(matrix: Array) -> tuple[Array, int, bool]:
    """A matrix with contiguous rows, its row stride in values, and whether it is the transpose of the argument."""
    if (distance := _distance(matrix)) > 0:
        return matrix, distance, False
    if (distance := _distance(matrix.T)) > 0:
        return matrix.T, distance, True
    return host.contiguous(matrix), matrix.shape[1], False


def _distance(matrix: Array) -> int:
    """The row stride of a matrix in values; 0 if a row is not contiguous."""
    if matrix.flags.c_contiguous:
        return int(matrix.shape[1])
    (down, right), size = matrix.strides, matrix.itemsize
    return down // size if right == size and down % size == 0 and down >= matrix.shape[1] * size else 0


def refusal(rows: int, b: Array) -> str | None:
    """The reason why a product of so many rows and `b` is not compiled; None if it is."""
    least = LEAST_OF_VECTOR if rows == 1 or b.shape[1] == 1 else LEAST
    if rows * b.size < least:
        return f"it is for at least {least} multiplications"
    return native.refusal(FILE, b.dtype)
