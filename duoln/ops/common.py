"""What the operators share: checks whose errors begin with the op, and the sum that undoes broadcasting."""

from __future__ import annotations

from typing import Any

from duoln.backends.protocol import FLOATS, Array, Backend, Shape
from duoln.core import Tensor
from duoln.errors import DtypeError, ShapeError


def unbroadcast(backend: Backend, gradient: Array, shape: Shape) -> Array:
    """Sum a gradient over the axes along which an argument of `shape` was broadcast."""
    if gradient.shape == shape:
        return gradient
    extra = len(gradient.shape) - len(shape)
    axes = [*range(extra), *(i + extra for i, n in enumerate(shape) if n == 1 and gradient.shape[i + extra] != 1)]
    if axes:
        gradient = backend.sum(gradient, axis=tuple(axes), keepdims=True)
    return backend.reshape(gradient, shape)


def broadcast_shape(name: str, *shapes: Shape) -> Shape:
    """The shape that the arguments broadcast to.

    Raises:
        ShapeError: they do not.
    """
    rank = max(len(s) for s in shapes)
    out = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            if out[i] == 1:
                out[i] = n
            elif n not in (1, out[i]):
                raise ShapeError(f"[{name}] expected shapes that broadcast, found {' and '.join(map(str, shapes))}")
    return tuple(out)


def check_float(name: str, *tensors: Tensor) -> None:
    """Raises DtypeError unless all are float tensors."""
    for x in tensors:
        if not isinstance(x, Tensor):
            raise DtypeError(f"[{name}] expected a duoln.Tensor, found {type(x).__module__}.{type(x).__qualname__}; "
                             "wrap it with duoln.tensor(x)")
        if x.dtype not in FLOATS:
            raise DtypeError(f"[{name}] expected a float dtype, found {x.dtype}")


def check_integers(name: str, role: str, x: Tensor) -> None:
    """Raises DtypeError unless `x` is an int32 tensor."""
    if not isinstance(x, Tensor) or x.dtype != "int32":
        found = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise DtypeError(f"[{name}] {role}: expected an int32 tensor, found {found}")


def check_pair(name: str, x: Any, y: Any) -> None:
    """The rules of two-argument arithmetic: equal dtypes, shapes that broadcast, numbers that fit the dtype."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        if x.backend is y.backend and x.dtype != y.dtype:
            raise DtypeError(f"[{name}] expected equal dtypes, found {x.dtype} and {y.dtype}; convert with astype")
        if x.shape != y.shape:
            broadcast_shape(name, x.shape, y.shape)
        return
    for tensor, number in ((x, y), (y, x)):
        if isinstance(tensor, Tensor) and isinstance(number, float) and tensor.dtype not in FLOATS:
            raise DtypeError(f"[{name}] expected an integer beside a tensor of {tensor.dtype}, found {number}")


def normal_axis(name: str, axis: int, ndim: int) -> int:
    """The axis counted from the front.

    Raises:
        ShapeError: there is no such axis.
    """
    if not isinstance(axis, int) or not -ndim <= axis < ndim:
        raise ShapeError(f"[{name}] expected an axis between {-ndim} and {ndim - 1}, found {axis}")
    return axis % ndim


def normal_axes(name: str, axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """All axes for None, else each counted from the front, ascending."""
    if axis is None:
        return tuple(range(ndim))
    axes = sorted({normal_axis(name, a, ndim) for a in (axis if isinstance(axis, tuple) else (axis,))})
    if isinstance(axis, tuple) and len(axes) != len(axis):
        raise ShapeError(f"[{name}] expected different axes, found {axis}")
    return tuple(axes)
