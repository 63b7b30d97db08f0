"""Operators that move values without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.errors import ShapeError
from duoln.ops.common import normal_axis, unbroadcast
from duoln.ops.index import getitem


@op
def reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """The same values in another shape; one entry may be -1.

    Raises:
        ShapeError: the number of values differs.
    """
    known = prod(n for n in shape if n != -1)
    if list(shape).count(-1) > 1 or any(n < -1 for n in shape):
        raise ShapeError(f"[reshape] expected sizes and at most one -1, found {shape}")
    if -1 in shape and known and x.size % known == 0:
        shape = tuple(x.size // known if n == -1 else n for n in shape)
    if -1 in shape or prod(shape) != x.size:
        raise ShapeError(f"[reshape] expected a shape of {x.size} values, found {shape}")
    result: Tensor = reshape.apply(x, shape=tuple(shape))
    return result


reshape.add(Rule("composed", lambda be, x, shape: (be.reshape(x, shape), x.shape),
                 lambda be, before, gout, needs: (be.reshape(gout, before),)))


@op
def permute_dims(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    """The axes in another order.

    Raises:
        ShapeError: `axes` is not an order of the axes.
    """
    order = tuple(normal_axis("permute_dims", a, x.ndim) for a in axes)
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(f"[permute_dims] expected an order of {x.ndim} axes, found {axes}")
    result: Tensor = permute_dims.apply(x, axes=order)
    return result


def _permute_vjp(be: Backend, axes: tuple[int, ...], gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    inverse = sorted(range(len(axes)), key=lambda i: axes[i])
    return (be.permute_dims(gout, tuple(inverse)),)


permute_dims.add(Rule("composed", lambda be, x, axes: (be.permute_dims(x, axes), axes), _permute_vjp))


def expand_dims(x: Tensor, *, axis: int) -> Tensor:
    """A new axis of size 1 at position `axis`."""
    axis = normal_axis("expand_dims", axis, x.ndim + 1)
    return reshape(x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))


def squeeze(x: Tensor, *, axis: int) -> Tensor:
    """Without the axis, which must have size 1."""
    axis = normal_axis("squeeze", axis, x.ndim)
    if x.shape[axis] != 1:
        raise ShapeError(f"[squeeze] expected size 1 at axis {axis}, found shape {x.shape}")
    return reshape(x, shape=x.shape[:axis] + x.shape[axis + 1:])


@op
def broadcast_to(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Repeated along new axes and axes of size 1 until the shape is `shape`."""
    padded = (1,) * (len(shape) - x.ndim) + x.shape
    if len(padded) != len(shape) or any(a not in (1, b) for a, b in zip(padded, shape, strict=True)):
        raise ShapeError(f"[broadcast_to] expected a shape that broadcasts to {shape}, found {x.shape}")
    result: Tensor = broadcast_to.apply(x, shape=tuple(shape))
    return result


broadcast_to.add(Rule("composed", lambda be, x, shape: (be.broadcast_to(x, shape), x.shape),
                      lambda be, before, gout, needs: (unbroadcast(be, gout, before),)))


@op
def concat(*arrays: Tensor, axis: int = 0) -> Tensor:
    """Several tensors one after another along an axis.

    Raises:
        ShapeError: no tensors, or shapes that differ along another axis.
    """
    if not arrays:
        raise ShapeError("[concat] expected at least one tensor, found none")
    axis = normal_axis("concat", axis, arrays[0].ndim)
    first = arrays[0].shape
    for x in arrays:
        if x.ndim != len(first) or any(i != axis and a != b for i, (a, b) in
                                       enumerate(zip(x.shape, first, strict=True))):
            raise ShapeError(f"[concat] expected shapes equal but for axis {axis}, found {first} and {x.shape}")
        if x.dtype != arrays[0].dtype:
            raise ShapeError(f"[concat] expected one dtype, found {arrays[0].dtype} and {x.dtype}")
    result: Tensor = concat.apply(*arrays, axis=axis)
    return result


def _concat_forward(be: Backend, *arrays: Array, axis: int) -> tuple[Array, Any]:
    return be.concat(arrays, axis=axis), (axis, [x.shape[axis] for x in arrays])


def _concat_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    axis, sizes = saved
    before = (slice(None),) * axis
    gradients: list[Array | None] = []
    start = 0
    for size, need in zip(sizes, needs, strict=True):
        gradients.append(gout[(*before, slice(start, start + size))] if need else None)
        start += size
    return gradients


concat.add(Rule("composed", _concat_forward, _concat_vjp))


def stack(*arrays: Tensor, axis: int = 0) -> Tensor:
    """Several tensors of one shape along a new axis."""
    return concat(*(expand_dims(x, axis=axis) for x in arrays), axis=axis)


def split(x: Tensor, parts: int, *, axis: int = -1) -> tuple[Tensor, ...]:
    """Equal parts along an axis.

    Raises:
        ShapeError: the axis does not divide evenly.
    """
    axis = normal_axis("split", axis, x.ndim)
    if parts < 1 or x.shape[axis] % parts:
        raise ShapeError(f"[split] expected a size divisible by {parts} at axis {axis}, found shape {x.shape}")
    size = x.shape[axis] // parts
    before = (slice(None),) * axis
    return tuple(getitem(x, key=(*before, slice(i * size, (i + 1) * size))) for i in range(parts))


@op
def unstack(x: Tensor, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, without it; their gradients are put together once, not slice by slice."""
    result: tuple[Tensor, ...] = unstack.apply(x, axis=normal_axis("unstack", axis, x.ndim))
    return result


def _unstack_forward(be: Backend, x: Array, axis: int) -> tuple[tuple[Array, ...], Any]:
    before = (slice(None),) * axis
    return tuple(x[(*before, i)] for i in range(x.shape[axis])), (x.shape, be.dtype(x), axis)


def _unstack_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> tuple[Array]:
    shape, dtype, axis = saved
    slice_shape = (*shape[:axis], 1, *shape[axis + 1:])
    parts = [be.zeros(slice_shape, dtype) if g is None else be.reshape(g, slice_shape) for g in gouts]
    return (be.concat(parts, axis=axis),)


unstack.add(Rule("composed", _unstack_forward, _unstack_vjp))


@op
def flip(x: Tensor, *, axis: int) -> Tensor:
    """The values along an axis in reverse order."""
    result: Tensor = flip.apply(x, axis=normal_axis("flip", axis, x.ndim))
    return result


flip.add(Rule("composed", lambda be, x, axis: (be.flip(x, axis), axis),
              lambda be, axis, gout, needs: (be.flip(gout, axis),)))


@op
def pad(x: Tensor, *, widths: tuple[tuple[int, int], ...], value: float = 0.0) -> Tensor:
    """A border of `value`, `(before, after)` wide at each axis."""
    if len(widths) != x.ndim or any(n < 0 for pair in widths for n in pair):
        raise ShapeError(f"[pad] expected {x.ndim} pairs of widths of at least 0, found {widths}")
    result: Tensor = pad.apply(x, widths=tuple(widths), value=value)
    return result


def _pad_forward(be: Backend, x: Array, widths: tuple[tuple[int, int], ...], value: float) -> tuple[Array, Any]:
    return be.pad(x, widths, value), (x.shape, widths)


def _pad_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    shape, widths = saved
    return (gout[tuple(slice(before, before + n) for n, (before, _) in zip(shape, widths, strict=True))],)


pad.add(Rule("composed", _pad_forward, _pad_vjp))
