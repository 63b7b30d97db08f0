"""Matrix products. Weights are stored (in, out), so a layer is `x @ weight + bias`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.storage import converted
from duoln.errors import ShapeError
from duoln.ops.common import broadcast_shape, check_float, unbroadcast


def _transposed(be: Backend, x: Array) -> Array:
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
    return be.matmul(_transposed(be, x), g)


def bias_gradient(be: Backend, uses: Sequence[tuple[Any, Array]]) -> Array:
    """The gradient of a vector that was added to many outputs."""
    gouts = [_rows(be, gout) for _, gout in uses]
    g = gouts[0] if len(gouts) == 1 else be.concat(gouts, axis=0)
    # A product with ones uses BLAS, which is faster than a sum over rows.
    return be.reshape(_sums(be, be.ones((1, g.shape[0]), be.dtype(g)), g), (g.shape[1],))


@op
def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Matrix product over the last two axes; leading axes broadcast.

    Shape:
        x (..., n, k), y (..., k, m) -> (..., n, m).

    Raises:
        ShapeError: an argument has fewer than two axes, or the inner sizes differ.
    """
    check_float("matmul", x, y)
    if x.ndim < 2 or y.ndim < 2:
        raise ShapeError(f"[matmul] expected at least 2 axes on both sides, found shapes {x.shape} and {y.shape}")
    if x.shape[-1] != y.shape[-2]:
        raise ShapeError(f"[matmul] expected inner sizes to be equal, found shapes {x.shape} and {y.shape}")
    broadcast_shape("matmul", x.shape[:-2], y.shape[:-2])
    return matmul.apply(x, y)


def _matmul_forward(be: Backend, x: Array, y: Array) -> tuple[Array, Any]:
    return (_times_matrix(be, x, y) if len(y.shape) == 2 else be.matmul(x, y)), (x, y)


def _matmul_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    x, y = saved
    dx = gy = None
    if len(y.shape) == 2:
        dx = _times_matrix(be, gout, _transposed(be, y)) if needs[0] else None
        gy = weight_gradient(be, [(saved, gout)]) if needs[1] else None
    else:
        dx = _sum_like(be, _sums(be, gout, _transposed(be, y)), x) if needs[0] else None
        gy = _sum_like(be, _sums(be, _transposed(be, x), gout), y) if needs[1] else None
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
        gradient = unbroadcast(be, _sums(be, _transposed(be, x), gout), y.shape)
        total = gradient if total is None else total + gradient
    return converted(be, total, be.dtype(y))


matmul.add(Rule("composed", _matmul_forward, _matmul_vjp, pooled={1: _matmul_pooled}, stored=(0, 1)))


@op(like=(0,))
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight + bias`.

    Shape:
        x (..., in), weight (in, out), bias (out,) or None -> (..., out).

    Raises:
        ShapeError: the sizes do not fit.
    """
    check_float("linear", x, weight, *([] if bias is None else [bias]))
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[0]:
        raise ShapeError(f"[linear] expected weight (in, out) with in equal to the last axis of x, "
                         f"found x {x.shape} and weight {weight.shape}")
    if bias is not None and bias.shape != (weight.shape[1],):
        raise ShapeError(f"[linear] expected bias ({weight.shape[1]},), found {bias.shape}")
    return linear.apply(x, weight, bias)


def _linear_forward(be: Backend, x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
    if bias is None:
        return _times_matrix(be, x, weight), (x, weight)
    y = _sums(be, _rows(be, x), weight)
    y += bias  # y is a new array, so this may work in place where arrays are mutable
    if x.dtype in be.narrow:
        y = be.astype(y, be.dtype(x))
    return (y if len(x.shape) == 2 else be.reshape(y, (*x.shape[:-1], weight.shape[1]))), (x, weight)


def _linear_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    _, weight = saved
    return (
        _times_matrix(be, gout, _transposed(be, weight)) if needs[0] else None,
        weight_gradient(be, [(saved, gout)]) if needs[1] else None,
        bias_gradient(be, [(saved, gout)]) if needs[2] else None,
    )


linear.add(Rule("composed", _linear_forward, _linear_vjp, pooled={1: weight_gradient, 2: bias_gradient}, stored=(0, 1)))
