"""Matrix products. Weights are stored (in, out), so a layer is `x @ weight + bias`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import check_axes, check_integer, check_integers_in
from duoln.core.pytorch_names import hinted
from duoln.core.spec import check_float
from duoln.core.storage import converted
from duoln.errors import ShapeError
from duoln.ops.common import broadcast_shape, normal_axis, unbroadcast
from duoln.ops.elementwise import multiply, relu, tanh
from duoln.ops.norm import Activation
from duoln.ops.reduce import sum
from duoln.ops.shape import permute_dims, reshape


def transposed(be: Backend, x: Array) -> Array:
    """The last two axes exchanged."""
    n = len(x.shape)
    return be.permute_dims(x, (*range(n - 2), n - 1, n - 2))


def _rows(be: Backend, x: Array) -> Array:
    """Merge all leading axes into one, so that a product with a matrix is one GEMM."""
    return x if len(x.shape) == 2 else be.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))


def _sums(be: Backend, x: Array, y: Array) -> Array:
    """The product before it is rounded: that of values of 16 bits in float32."""
    return be.matmul(x, y, "float32") if x.dtype in be.narrow else be.matmul(x, y)


def _times_matrix(be: Backend, x: Array, w: Array) -> Array:
    product = be.matmul(_rows(be, x), w)
    return product if len(x.shape) == 2 else be.reshape(product, (*x.shape[:-1], w.shape[-1]))


def weight_gradient(be: Backend, uses: Sequence[tuple[Any, Array]]) -> Array:
    """The gradient of a matrix that multiplied many inputs: one GEMM over the concatenated inputs."""
    inputs = [_rows(be, saved[0]) for saved, _ in uses]
    gouts = [_rows(be, gout) for _, gout in uses]
    x = inputs[0] if len(inputs) == 1 else be.concat(inputs, axis=0)
    g = gouts[0] if len(gouts) == 1 else be.concat(gouts, axis=0)
    return be.matmul(transposed(be, x), g)


def bias_gradient(be: Backend, uses: Sequence[tuple[Any, Array]]) -> Array:
    """The gradient of a vector that was added to many outputs."""
    gouts = [_rows(be, gout) for _, gout in uses]
    g = gouts[0] if len(gouts) == 1 else be.concat(gouts, axis=0)
    # A product with ones uses BLAS, which is faster than a sum over rows.
    return be.reshape(_sums(be, be.ones((1, g.shape[0]), be.dtype(g)), g), (g.shape[1],))


@op("x: real, y: real")
def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Matrix product over the last two axes; leading axes broadcast. A vector is a row or, on the right, a column.

    Shape:
        x (..., n, k) or (k,), y (..., k, m) or (k,) -> (..., n, m), without n or m where a vector was.

    Raises:
        ShapeError: an argument has no axes, or the sizes that are summed over differ.
    """
    matmul.check(x, y)
    if len(x.data.shape) == len(y.data.shape) == 2 and x.data.shape[1] == y.data.shape[0]:
        return matmul.apply(x, y)
    if not x.ndim or not y.ndim:
        raise ShapeError(f"[matmul] expected at least one axis on both sides, found shapes {x.shape} and {y.shape}")
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        raise ShapeError(f"[matmul] expected inner sizes to be equal, found shapes {x.shape} and {y.shape}")
    if x.ndim > 1 and y.ndim > 1:
        broadcast_shape("matmul", x.shape[:-2], y.shape[:-2])
        return matmul.apply(x, y)
    shape = (*x.shape[:-1], *y.shape[:-2], *y.shape[-1:][:y.ndim - 1])
    left = reshape(x, shape=(1, *x.shape)) if x.ndim == 1 else x
    right = reshape(y, shape=(*y.shape, 1)) if y.ndim == 1 else y
    return reshape(matmul.apply(left, right), shape=shape)


def _matmul_forward(be: Backend, x: Array, y: Array) -> tuple[Array, Any]:
    return (_times_matrix(be, x, y) if len(y.shape) == 2 else be.matmul(x, y)), (x, y)


def _matmul_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    x, y = saved
    dx = gy = None
    if len(y.shape) == 2:
        dx = _times_matrix(be, gout, transposed(be, y)) if needs[0] else None
        gy = weight_gradient(be, [(saved, gout)]) if needs[1] else None
    else:
        dx = _sum_like(be, _sums(be, gout, transposed(be, y)), x) if needs[0] else None
        gy = _sum_like(be, _sums(be, transposed(be, x), gout), y) if needs[1] else None
    return dx, gy


def _sum_like(be: Backend, gradient: Array, x: Array) -> Array:
    """The sum of a gradient over the axes along which `x` was broadcast, in the dtype of `x`."""
    return converted(be, unbroadcast(be, gradient, x.shape), be.dtype(x))


def _matmul_pooled(be: Backend, uses: Sequence[tuple[Any, Array]]) -> Array:
    y = uses[0][0][1]
    if len(y.shape) == 2:
        return weight_gradient(be, uses)
    total = None
    for (x, _), gout in uses:
        gradient = unbroadcast(be, _sums(be, transposed(be, x), gout), y.shape)
        total = gradient if total is None else total + gradient
    return converted(be, total, be.dtype(y))


matmul.add(Rule("composed", _matmul_forward, _matmul_vjp, pooled={1: _matmul_pooled}, stored=(0, 1)))


@op("x: real[*rows, n_in], weight: real[n_in, n_out], bias: real[n_out]? -> like x")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight + bias`.

    Shape:
        x (..., in), weight (in, out), bias (out,) or None -> (..., out).

    Raises:
        ShapeError: the sizes do not fit.
    """


def linear_forward(be: Backend, x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
    """The value of `linear` on native arrays, and what its gradient needs."""
    if bias is None:
        return _times_matrix(be, x, weight), (x, weight)
    y = _sums(be, _rows(be, x), weight)
    y += bias  # y is a new array, so this may work in place where arrays are mutable
    if x.dtype in be.narrow:
        y = be.astype(y, be.dtype(x))
    return (y if len(x.shape) == 2 else be.reshape(y, (*x.shape[:-1], weight.shape[1]))), (x, weight)


def linear_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    """The gradients of `linear` at x, weight and bias."""
    _, weight = saved
    return (
        _times_matrix(be, gout, transposed(be, weight)) if needs[0] else None,
        weight_gradient(be, [(saved, gout)]) if needs[1] else None,
        bias_gradient(be, [(saved, gout)]) if needs[2] else None,
    )


linear.add(Rule("composed", linear_forward, linear_vjp, pooled={1: weight_gradient, 2: bias_gradient}, stored=(0, 1)))


@hinted
def outer(x: Tensor, y: Tensor) -> Tensor:
    """All products of a value of one vector and a value of a second one.

    Shape:
        x (n,), y (m,) -> (n, m).

    Raises:
        ShapeError: an argument is not a vector.
    """
    check_float("outer", x, y)
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(f"[outer] expected two vectors, found shapes {x.shape} and {y.shape}")
    return multiply(reshape(x, shape=(x.size, 1)), y)


@hinted
def vecdot(x: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """The sums of products along an axis, counted from the end; the other axes broadcast.

    Raises:
        ShapeError: the axis is not below 0, a tensor lacks it, or their sizes there differ.
    """
    check_float("vecdot", x, y)
    axis = check_integer("vecdot", "axis", axis, -min(x.ndim, y.ndim), -1)
    if x.shape[axis] != y.shape[axis]:
        raise ShapeError(f"[vecdot] expected equal sizes at axis {axis}, found shapes {x.shape} and {y.shape}")
    broadcast_shape("vecdot", x.shape, y.shape)
    return sum(multiply(x, y), axis=axis)


@hinted
def tensordot(x: Tensor, y: Tensor, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sums of products over several axes, as one matrix product.

    Args:
        x, y: the tensors.
        axes: how many of the last axes of `x` meet as many of the first axes of `y`; or a pair, the axes of `x` and
            the axes of `y` that they meet.

    Raises:
        ShapeError: there are no such axes, or their sizes differ.
    """
    check_float("tensordot", x, y)
    if isinstance(axes, tuple | list):
        if len(axes) != 2:
            raise ShapeError(f"[tensordot] axes: expected a number or a pair of tuples, found {len(axes)} entries")
        pairs = [check_integers_in("tensordot", "axes", side) for side in axes]
    else:
        count = check_integer("tensordot", "axes", axes, 0, min(x.ndim, y.ndim))
        pairs = [tuple(range(x.ndim - count, x.ndim)), tuple(range(count))]
    of_x, of_y = (tuple(normal_axis("tensordot", a, t.ndim) for a in side)
                  for side, t in zip(pairs, (x, y), strict=True))
    sizes = [[t.shape[a] for a in side] for t, side in ((x, of_x), (y, of_y))]
    if sizes[0] != sizes[1] or len({*of_x}) != len(of_x) or len({*of_y}) != len(of_y):
        raise ShapeError(f"[tensordot] axes: expected different axes of equal sizes, found {of_x} of {x.shape} and "
                         f"{of_y} of {y.shape}")
    rest_x, rest_y = ([a for a in range(t.ndim) if a not in summed] for t, summed in ((x, of_x), (y, of_y)))
    check_axes("tensordot", len(rest_x) + len(rest_y))
    rows, columns, summed = (prod(t.shape[a] for a in some) for t, some in ((x, rest_x), (y, rest_y), (x, of_x)))
    left = reshape(permute_dims(x, axes=(*rest_x, *of_x)), shape=(rows, summed))
    right = reshape(permute_dims(y, axes=(*of_y, *rest_y)), shape=(summed, columns))
    return reshape(matmul.apply(left, right), shape=(*(x.shape[a] for a in rest_x), *(y.shape[a] for a in rest_y)))


_FUNCTIONS = {"relu": relu, "tanh": tanh}


@op("x: real[*rows, n_in], weight: real[n_in, n_out], bias: real[n_out]? -> like x")
def activated_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation) -> Tensor:
    """relu(x @ weight + bias), or its tanh: the value before the activation is not kept.

    A fused rule has the slope of tanh from its value, 1 - tanh^2, which has few digits where tanh is near 1.

    Where no rule of the backend computes both at once, it is `linear` and the activation, each with its own rules.
    A weight that is used at many time steps has one product for its gradient with `linear`, and one a use here.

    Shape:
        x (..., in), weight (in, out), bias (out,) or None -> (..., out).

    Raises:
        ShapeError: the sizes do not fit.
    """
    activated_linear.check(x, weight, bias)
    if len(activated_linear.rules(x.backend.name)) == 1:
        return _FUNCTIONS[activation](linear(x, weight, bias))
    return activated_linear.apply(x, weight, bias, activation=activation)


def _activated_forward(be: Backend, x: Array, weight: Array, bias: Array | None, *,
                       activation: str) -> tuple[Array, Any]:
    y, saved = linear_forward(be, x, weight, bias)
    y = be.maximum(y, 0.0) if activation == "relu" else be.tanh(y)
    return y, (saved, y, activation)


def _activated_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    of_linear, y, activation = saved
    before = be.where(y > 0, gout, 0.0) if activation == "relu" else gout * (1.0 - y * y)
    return linear_vjp(be, of_linear, before, needs)


activated_linear.add(Rule("composed", _activated_forward, _activated_vjp))
