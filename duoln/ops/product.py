"""The product of values along axes. No partial product overflows or vanishes, so a finite gradient is found.

Partial products are shares of about 1, each with a power of two of its own. They are multiplied by halves, as a tree,
and the gradient goes back along the tree: that of a value is the product of all others, without a division.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from duoln.backends.protocol import Array, Axis, Backend
from duoln.core import Rule, Tensor, op
from duoln.errors import DtypeError
from duoln.ops.common import normal_axes

_FAR = 2300.0
"""A number of about 1 times 2 to this power is infinite, and divided by it is 0, in every dtype."""


@op("x: any -> real")
def prod(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The product of float or int32 values; that of none is 1.

    The gradient of a value is the product of the others, so it is right at 0 too.

    Raises:
        DtypeError: `x` holds bools; on NumPy, int32 does not hold a product, see `sum`.
    """
    prod.check(x)
    if x.dtype == "bool":
        raise DtypeError("[prod] expected a float or int32 tensor, found bool; ops.all is the product of bools")
    axes = normal_axes("prod", axis, x.ndim)
    return prod.apply(x, axis=axes, keepdims=keepdims)


class _Scaled(NamedTuple):
    """Matrices of numbers share 2^power. The power of a share that is 0 or not finite is 0."""

    share: Array
    power: Array

    def columns(self, first: int, end: int | None = None) -> _Scaled:
        return _Scaled(self.share[:, first:end], self.power[:, first:end])


def _scaled(be: Backend, number: Array, power: Array | float = 0.0) -> _Scaled:
    """The numbers `number` 2^`power` with shares of about 1."""
    size = be.abs(number)
    has_power = be.logical_and(be.isfinite(size), size > 0.0)
    own = be.floor(be.log(be.where(has_power, size, 1.0)) * (1 / math.log(2)))
    return _Scaled(_shifted(be, number, -own), be.where(has_power, own + power, 0.0))


def _shifted(be: Backend, number: Array, power: Array) -> Array:
    """`number` 2^`power`, where 2^`power` alone may be beyond the dtype."""
    power = be.minimum(be.maximum(power, -_FAR), _FAR)
    half = be.floor(0.5 * power)
    shifted: Array = number * 2.0 ** half * 2.0 ** (power - half)
    return shifted


def _times(be: Backend, x: _Scaled, y: _Scaled) -> _Scaled:
    return _scaled(be, x.share * y.share, x.power + y.power)


def _concat_columns(be: Backend, *parts: _Scaled) -> _Scaled:
    return _Scaled(*(be.concat(arrays, axis=1) for arrays in zip(*parts, strict=True)))


def _product_tree(be: Backend, rows: Array) -> list[_Scaled]:
    """The rows, and the products of the first and the second half of their columns, until one column is left."""
    levels = [_scaled(be, rows)]
    while (count := levels[-1].share.shape[1]) > 1:
        half, last = count // 2, levels[-1]
        product = _times(be, last.columns(0, half), last.columns(half, 2 * half))
        levels.append(_concat_columns(be, product, last.columns(2 * half)))
    return levels


def _gradients(be: Backend, levels: Sequence[_Scaled], gout: _Scaled) -> _Scaled:
    """The gradient at the first level, from that at the last one."""
    for level in reversed(levels[:-1]):
        half = level.share.shape[1] // 2
        of_product, of_rest = gout.columns(0, half), gout.columns(half)
        gout = _concat_columns(be, _times(be, of_product, level.columns(half, 2 * half)),
                       _times(be, of_product, level.columns(0, half)), of_rest)
    return gout


def _in_rows(be: Backend, x: Array, axes: tuple[int, ...]) -> Array:
    """A matrix with the values along the axes in each row; those of float32 in float64, where it is there."""
    rest = [i for i in range(len(x.shape)) if i not in axes]
    rows = be.reshape(be.permute_dims(x, (*rest, *axes)),
                      (math.prod(x.shape[i] for i in rest), math.prod(x.shape[i] for i in axes)))
    return be.astype(rows, "float64") if be.dtype(x) == "float32" and "float64" in be.dtypes else rows


def _prod_forward(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    shape = tuple(1 if i in axis else n for i, n in enumerate(x.shape) if keepdims or i not in axis)
    rows, dtype = _in_rows(be, x, axis), be.dtype(x)
    if not rows.shape[1]:
        product = be.ones((rows.shape[0],), dtype)
    elif dtype == "int32":
        product = be.exactly(rows, name="prod", compute=partial(_whole_products, be))
    else:
        product = be.astype(_shifted(be, *_product_tree(be, rows)[-1]), dtype)
    return be.reshape(product, shape), (x, axis)


def _whole_products(be: Backend, rows: Array) -> Array:
    """The products of rows of 64-bit integers, by halves. A number beyond int32 is kept as the next one beyond it, so
    that no product wraps round and one with 0 is 0.
    """
    while (count := rows.shape[1]) > 1:
        half = count // 2
        products = be.maximum(be.minimum(rows[:, :half] * rows[:, half:2 * half], 1 << 31), -(1 << 31) - 1)
        rows = be.concat([products, rows[:, 2 * half:]], axis=1)
    return rows[:, 0]


def _prod_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    x, axis = saved
    rows = _in_rows(be, x, axis)
    if not math.prod(x.shape):
        return (be.zeros(x.shape, be.dtype(x)),)
    seed = be.astype(be.reshape(gout, (rows.shape[0], 1)), be.dtype(rows))
    dx = be.astype(_shifted(be, *_gradients(be, _product_tree(be, rows), _scaled(be, seed))), be.dtype(x))
    order = (*(i for i in range(len(x.shape)) if i not in axis), *axis)
    back = tuple(order.index(i) for i in range(len(x.shape)))
    return (be.permute_dims(be.reshape(dx, tuple(x.shape[i] for i in order)), back),)


prod.add(Rule("composed", _prod_forward, _prod_vjp))
