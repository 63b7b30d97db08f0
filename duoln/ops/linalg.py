"""Matrix products, and Einstein summation by them. Weights are stored (in, out), so a layer is `x @ weight + bias`."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend, Shape
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import check_axes, check_integer, check_integers_in, described
from duoln.core.pytorch_names import hinted
from duoln.core.spec import check_float
from duoln.core.storage import converted
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.ops.common import broadcast_shape, normal_axis, unbroadcast
from duoln.ops.elementwise import multiply, relu, tanh
from duoln.ops.index import getitem
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


# Einstein summation -------------------------------------------------------------------------------------

Term = tuple[Tensor, str]
"""A tensor, and a letter for each of its axes."""


@hinted
def einsum(subscripts: str, *arrays: Tensor) -> Tensor:
    """Einstein summation: `einsum("bij,bjk->bik", x, y)` is a product of batches of matrices.

    Each tensor has one letter for each axis. Axes of one letter are multiplied together, and those whose letter is not
    behind the arrow are summed over. Without an arrow, the letters that occur once stand there, in the order of the
    alphabet. Dots, "...", stand for all further axes, which come first in a result that does not name them. A letter
    twice in one tensor is its diagonal. Axes of one letter have one size: a size of 1 is not repeated.

    The tensors are multiplied in pairs, by one matrix product each, in the order of `numpy.einsum_path`.

    Raises:
        DtypeError: the subscripts are no text, or the tensors are not floats of one dtype.
        UsageError: the subscripts are not of this form.
        ShapeError: they do not fit the tensors' axes, or the axes of one letter differ in size.
    """
    if not isinstance(subscripts, str):
        raise DtypeError(f"[einsum] subscripts: expected a text, found {described(subscripts)}")
    check_float("einsum", *arrays)
    inputs, output = _letters(subscripts, [x.shape for x in arrays])
    terms = [_diagonal(x, letters) for x, letters in zip(arrays, inputs, strict=True)]
    for places in _path(",".join(letters for _, letters in terms) + f"->{output}", tuple(x.shape for x, _ in terms)):
        chosen = [terms[i] for i in places]
        terms = [term for i, term in enumerate(terms) if i not in places]
        kept = {*output, *(letter for _, letters in terms for letter in letters)}
        result = chosen[0]
        for k, term in enumerate(chosen[1:], start=1):
            later = {letter for _, letters in chosen[k + 1:] for letter in letters}
            result = _product(result, term, kept | later)
        terms.append(result)
    x, letters = _summed(terms[0], set(output))
    return permute_dims(x, axes=tuple(letters.index(letter) for letter in output))


def _letters(subscripts: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The letters of each tensor and of the result, with letters in the place of dots, after all checks."""
    text = subscripts.replace(" ", "")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    for part in (*inputs, output):
        if part.replace("...", "", 1).strip(string.ascii_letters):
            raise UsageError(f"[einsum] expected letters, commas, one -> and one ... a term, found {subscripts!r:.60}")
    if len(inputs) != len(shapes) or not shapes:
        raise ShapeError(f"[einsum] expected {len(inputs)} tensors for {subscripts!r:.60}, found {len(shapes)}")
    free = [letter for letter in string.ascii_letters if letter not in text]
    most = 0
    for k, (part, shape) in enumerate(zip(inputs, shapes, strict=True)):
        dots = len(shape) - len(part.replace("...", ""))
        if dots < 0 or (dots and "..." not in part) or dots > len(free):
            raise ShapeError(f"[einsum] expected a tensor with the axes {part!r}, found shape {shape}")
        inputs[k], most = part.replace("...", "".join(free[:dots][::-1])), max(most, dots)
    further = "".join(free[:most][::-1])
    sizes: dict[str, int] = {}
    for part, shape in zip(inputs, shapes, strict=True):
        for letter, n in zip(part, shape, strict=True):
            if sizes.setdefault(letter, n) != n:
                raise ShapeError(f"[einsum] expected one size for all axes of a letter, found {sizes[letter]} and {n} "
                                 f"in {subscripts!r:.60}")
    check_axes("einsum", len(sizes))
    if not arrow:
        everything = "".join(inputs)
        output = further + "".join(sorted(a for a in sizes if everything.count(a) == 1 and a not in further))
    output = output.replace("...", further)
    if len({*output}) != len(output) or not {*output} <= sizes.keys():
        raise UsageError(f"[einsum] expected different letters of the tensors behind the arrow, "
                         f"found {subscripts!r:.60}")
    return inputs, output


@functools.lru_cache(maxsize=256)
def _path(expression: str, shapes: tuple[Shape, ...]) -> list[tuple[int, ...]]:
    """Which of the tensors that are left are multiplied at each step; what a step makes goes to the end."""
    if len(shapes) < 3:
        return [tuple(range(len(shapes)))]
    zeros = [np.broadcast_to(np.float32(0), shape) for shape in shapes]  # only their shapes are read
    _, *steps = np.einsum_path(expression, *zeros, optimize="greedy")[0]
    return [tuple(step) for step in steps]


def _diagonal(x: Tensor, letters: str) -> Term:
    """The tensor with one axis for each of its letters: axes of one letter become their diagonal."""
    for letter in sorted({a for a in letters if letters.count(a) > 1}):
        while letters.count(letter) > 1:
            first, second = letters.index(letter), letters.rindex(letter)
            rest = [i for i in range(x.ndim) if i not in (first, second)]
            n, before = x.shape[first], tuple(x.shape[i] for i in rest)
            x = reshape(permute_dims(x, axes=(*rest, first, second)), shape=(*before, n * n))
            x = getitem(x, key=(..., slice(None, None, n + 1)))
            letters = "".join(letters[i] for i in rest) + letter
    return x, letters


def _summed(term: Term, kept: set[Any]) -> Term:
    """The sum over the axes whose letters are not needed any more."""
    x, letters = term
    gone = tuple(i for i, letter in enumerate(letters) if letter not in kept)
    return (sum(x, axis=gone) if gone else x), "".join(letter for letter in letters if letter in kept)


def _product(left: Term, right: Term, kept: set[Any]) -> Term:
    """The product of two tensors, summed over the letters that are not needed any more."""
    (x, of_x), (y, of_y) = _summed(left, kept | {*right[1]}), _summed(right, kept | {*left[1]})
    both = [a for a in of_x if a in of_y]
    rows, columns = [a for a in of_x if a not in both], [a for a in of_y if a not in both]
    batch, summed = [a for a in both if a in kept], [a for a in both if a not in kept]
    sizes = {**dict(zip(of_x, x.shape, strict=True)), **dict(zip(of_y, y.shape, strict=True))}

    def arranged(t: Tensor, letters: str, middle: list[str], last: list[str]) -> Tensor:
        order = tuple(letters.index(a) for a in (*batch, *middle, *last))
        return reshape(permute_dims(t, axes=order), shape=(
            *(sizes[a] for a in batch), prod(sizes[a] for a in middle), prod(sizes[a] for a in last)))

    result = (matmul if summed else multiply)(arranged(x, of_x, rows, summed), arranged(y, of_y, summed, columns))
    letters = [*batch, *rows, *columns]
    return reshape(result, shape=tuple(sizes[a] for a in letters)), "".join(letters)
