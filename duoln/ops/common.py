"""Shared by all operators: checks of tensors, whose errors begin with the op, and the gradient of broadcasting.

The checks of arguments that are not tensors are in `duoln.core.arguments`.
"""

from __future__ import annotations

from math import nan, prod
from typing import Any

from duoln.backends.protocol import REALS, Array, Backend, Shape
from duoln.core import Tensor
from duoln.core.arguments import LARGEST, check_axes, check_integer, did_you_mean, dtype_name
from duoln.core.spec import check_beside
from duoln.core.step.repeated import repeated
from duoln.errors import DtypeError, MemoryExhaustedError, ShapeError

_ROOM_ALWAYS = 1 << 28
"""The number of values up to which a result needs no check of the free memory."""


def unbroadcast(backend: Backend, gradient: Array, shape: Shape) -> Array:
    """Sum a gradient over the axes along which an argument of `shape` was broadcast."""
    if gradient.shape == shape:
        return gradient
    extra = len(gradient.shape) - len(shape)
    axes = [*range(extra), *(i + extra for i, n in enumerate(shape) if n == 1 and gradient.shape[i + extra] != 1)]
    if axes:
        gradient = backend.sum(gradient, axis=tuple(axes), keepdims=True)
    return backend.reshape(gradient, shape)


def length_over(backend: Backend, x: Array, axes: tuple[int, ...]) -> Array:
    """The Euclidean norm over axes, which stay with length 1. Values are divided by the greatest first, because the
    squares of large ones overflow and those of small ones vanish.
    """
    if not prod(x.shape):
        return backend.sum(x, axis=axes, keepdims=True)
    unit = scale_of(backend, greatest_size(backend, x, axes))
    scaled = x / unit
    return backend.sqrt(backend.sum(scaled * scaled, axis=axes, keepdims=True)) * unit


def greatest_size(backend: Backend, x: Array, axes: tuple[int, ...]) -> Array:
    """The greatest absolute value over axes, which stay with length 1, without an array of absolute values."""
    return backend.maximum(backend.max(x, axis=axes, keepdims=True), -backend.min(x, axis=axes, keepdims=True))


def is_extreme(backend: Backend, x: Array, extreme: Array) -> Array:
    """True where a value is the greatest or smallest one, which is given; everywhere if that is NaN."""
    return backend.logical_not(backend.logical_or(x < extreme, x > extreme))


def scale_of(backend: Backend, greatest: Array) -> Array:
    """The divisors of values whose greatest sizes are given: 1 for 0, and for infinity and NaN, which so stay."""
    return backend.where(backend.logical_and(backend.isfinite(greatest), greatest > 0.0), greatest, 1.0)


def broadcast_shape(name: str, *shapes: Shape) -> Shape:
    """The shape that the arguments broadcast to.

    Raises:
        ShapeError: the shapes do not broadcast.
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


def check_not_16_bits(name: str, roles: str, *tensors: Tensor) -> None:
    """Raises DtypeError if a tensor has 16 bits, which would lose most of the small changes that are added to it."""
    narrow = next((x.dtype for x in tensors if x.data.dtype in x.backend.narrow), None)
    if narrow:
        raise DtypeError(f"[{name}] expected {roles} of float32, found {narrow}, which loses most steps; keep them "
                         f"in float32 and round a copy for the model: p.astype({narrow!r})")


def indices_unchecked(backend: Backend) -> bool:
    """True if the values of indices are on a device: `check_indices` does not read them, and rules give NaN instead."""
    return backend.lazy or backend.queues


def in_index_range(backend: Backend, indices: Array, low: int, stop: int) -> Array:
    """True where an index is in low .. stop - 1."""
    return backend.logical_and(indices >= low, indices < stop)


def nan_outside(backend: Backend, inside: Array, x: Array) -> Array:
    """Floats where the bools `inside` are True, NaN elsewhere; arrays of other dtypes as they are."""
    dtype = backend.dtype(x)
    return backend.where(inside, x, backend.full((), nan, dtype)) if dtype in REALS else x


def check_indices(name: str, role: str, x: Tensor, count: int, like: Tensor, low: int = 0) -> None:
    """Check indices into `count` entries: always their dtype, and their range if no wait for a device is needed.

    Args:
        name, role: the names of the operator and of its argument.
        x: the indices.
        count: the number of entries.
        like: a tensor on the backend where `x` should be.
        low: the smallest index allowed; the operator defines what a negative index means.

    Raises:
        DtypeError: `x` is not an int32 tensor.
        ShapeError: an index is out of range.
    """
    check_beside(name, role, x, "int32", like)
    if not count and x.size:
        raise ShapeError(f"[{name}] {role}: expected no indices into an axis of 0 entries, found {x.size}")
    repeated(_check_range, x.data, x.backend, name, role, low, count)


def _check_range(indices: Array, backend: Backend, name: str, role: str, low: int, count: int) -> None:
    stray = backend.stray_index(indices, low, count)
    if stray is not None:
        raise ShapeError(f"[{name}] {role}: expected indices in {low} .. {count - 1}, found {stray}")


def check_dtype(name: str, dtype: Any, backend: Backend) -> str:
    """The name of a dtype, also of one of NumPy's or of Python's types. Raises DtypeError unless the backend has it."""
    dtype = dtype_name(dtype)
    if not isinstance(dtype, str) or dtype not in backend.dtypes:
        raise DtypeError(f"[{name}] expected a dtype of {', '.join(backend.dtypes)} on {backend.name}, "
                         f"found {dtype!r:.60}{did_you_mean(dtype, backend.dtypes)}")
    return dtype


def check_room(name: str, backend: Backend, shape: Shape) -> None:
    """Check the shape of a result whose size an argument decides, before memory is allocated.

    Raises:
        ShapeError: there are more axes than the backends allow, or an axis is longer.
        MemoryExhaustedError: the device has not enough memory for so many values.
    """
    check_axes(name, len(shape))
    if max(shape, default=0) > LARGEST:
        raise ShapeError(f"[{name}] expected axes of at most {LARGEST}, found shape {shape}")
    count = prod(shape)
    if count > _ROOM_ALWAYS and 4 * count > (free := backend.free_memory()):
        raise MemoryExhaustedError(f"[{name}] expected a result that fits the {free >> 20} MiB that are free, "
                                   f"found shape {shape}: {4 * count >> 20} MiB")


def normal_axis(name: str, axis: Any, ndim: int) -> int:
    """The axis counted from the front.

    Raises:
        DtypeError: `axis` is not an integer. ShapeError: there is no such axis.
    """
    if type(axis) is not int:
        axis = check_integer(name, "axis", axis)
    if not -ndim <= axis < ndim:
        allowed = f"an axis between {-ndim} and {ndim - 1}" if ndim else "a tensor with axes"
        raise ShapeError(f"[{name}] expected {allowed}, found {axis if ndim else f'axis {axis} of shape ()'}")
    count: int = axis % ndim
    return count


def normal_axes(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes counted from the front, in ascending order; None means all. It raises the errors of `normal_axis`."""
    if axis is None:
        return tuple(range(ndim))
    several = isinstance(axis, tuple | list)
    axes = sorted({normal_axis(name, a, ndim) for a in (axis if several else (axis,))})
    if several and len(axes) != len(axis):
        raise ShapeError(f"[{name}] expected different axes, found {axis}")
    return tuple(axes)


def only_axis(name: str, axis: Any, ndim: int) -> int:
    """The axis counted from the front; None means the axis of a vector. It raises the errors of `normal_axis`."""
    if axis is None:
        if ndim != 1:
            raise ShapeError(f"[{name}] axis: expected an axis of a tensor with {ndim}, found None")
        return 0
    return normal_axis(name, axis, ndim)


def check_axis_given(name: str, axis: Any) -> Any:
    """An axis or axes, as they are. Raises DtypeError for None, which does not mean all of them here."""
    if axis is None:
        raise DtypeError(f"[{name}] axis: expected an integer or a tuple of integers, found None")
    return axis
