"""Operators that move values without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import REALS, Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import LARGEST, NOT_NAN, check_integer, check_integers_in, check_number, described
from duoln.core.miscalled import explained
from duoln.core.storage import EVERY, MIXED, in_float32
from duoln.errors import DtypeError, ShapeError
from duoln.ops.common import check_room, check_tensors, normal_axis, unbroadcast
from duoln.ops.index import getitem


@op
def reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same values in another shape; one entry may be -1.

    Raises:
        ShapeError: the number of values differs.
    """
    check_tensors("reshape", x)
    shape = check_integers_in("reshape", "shape", shape, high=1 << 62)
    known = prod(n for n in shape if n != -1)
    if shape.count(-1) > 1 or any(n < -1 for n in shape):
        raise ShapeError(f"[reshape] expected sizes and at most one -1, found {shape}")
    if -1 in shape and known and x.size % known == 0:
        shape = tuple(x.size // known if n == -1 else n for n in shape)
    if -1 in shape or prod(shape) != x.size:
        raise ShapeError(f"[reshape] expected a shape of {x.size} values, found {shape}")
    return reshape.apply(x, shape=tuple(shape))


reshape.add(Rule("composed", lambda be, x, shape: (be.reshape(x, shape), x.shape),
                 lambda be, before, gout, needs: (be.reshape(gout, before),), stored=(0,)))


@op
def permute_dims(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The axes in another order.

    Raises:
        ShapeError: `axes` is not an order of the axes.
    """
    check_tensors("permute_dims", x)
    order = tuple(normal_axis("permute_dims", a, x.ndim) for a in check_integers_in("permute_dims", "axes", axes))
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(f"[permute_dims] expected an order of {x.ndim} axes, found {axes}")
    return permute_dims.apply(x, axes=order)


def _permute_vjp(be: Backend, axes: tuple[int, ...], gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    inverse = sorted(range(len(axes)), key=lambda i: axes[i])
    return (be.permute_dims(gout, tuple(inverse)),)


permute_dims.add(Rule("composed", lambda be, x, axes: (be.permute_dims(x, axes), axes), _permute_vjp, stored=(0,)))


@explained
def expand_dims(x: Tensor, axis: int) -> Tensor:
    """A new axis of size 1 at position `axis`."""
    check_tensors("expand_dims", x)
    axis = normal_axis("expand_dims", axis, x.ndim + 1)
    return reshape(x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))


@explained
def squeeze(x: Tensor, axis: int) -> Tensor:
    """The tensor without one axis, which must have size 1."""
    check_tensors("squeeze", x)
    axis = normal_axis("squeeze", axis, x.ndim)
    if x.shape[axis] != 1:
        raise ShapeError(f"[squeeze] expected size 1 at axis {axis}, found shape {x.shape}")
    return reshape(x, shape=x.shape[:axis] + x.shape[axis + 1:])


@op
def broadcast_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeat the values along new axes and along axes of size 1, so that the result has this shape."""
    check_tensors("broadcast_to", x)
    shape = check_integers_in("broadcast_to", "shape", shape, 0, 1 << 62)
    padded = (1,) * (len(shape) - x.ndim) + x.shape
    if len(padded) != len(shape) or any(a not in (1, b) for a, b in zip(padded, shape, strict=True)):
        raise ShapeError(f"[broadcast_to] expected a shape that broadcasts to {shape}, found {x.shape}")
    check_room("broadcast_to", x.backend, shape)
    return broadcast_to.apply(x, shape=shape)


broadcast_to.add(Rule("composed", lambda be, x, shape: (be.broadcast_to(x, shape), x.shape),
                      lambda be, before, gout, needs: (in_float32(be, gout, lambda g: unbroadcast(be, g, before)),),
                      stored=(0,)))


@op
def concat(*arrays: Tensor | Sequence[Tensor] | int, axis: int = 0) -> Tensor:
    """Several tensors one after another along an axis: `concat(x, y, axis=1)` or `concat([x, y], 1)`.

    Raises:
        ShapeError: no argument, or shapes that differ along another axis. DtypeError: several dtypes, or no tensor.
    """
    tensors, axis = _several("concat", arrays, axis)
    axis = normal_axis("concat", axis, tensors[0].ndim)
    first = tensors[0].shape
    for x in tensors:
        if x.ndim != len(first) or any(i != axis and a != b for i, (a, b) in
                                       enumerate(zip(x.shape, first, strict=True))):
            raise ShapeError(f"[concat] expected shapes equal but for axis {axis}, found {first} and {x.shape}")
        if x.dtype != tensors[0].dtype and {x.dtype, tensors[0].dtype} not in MIXED:
            raise DtypeError(f"[concat] expected one dtype, found {tensors[0].dtype} and {x.dtype}; "
                             "convert with astype")
    return concat.apply(*tensors, axis=axis)


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


concat.add(Rule("composed", _concat_forward, _concat_vjp, stored=EVERY))


@explained
def stack(*arrays: Tensor | Sequence[Tensor] | int, axis: int = 0) -> Tensor:
    """Several tensors of one shape along a new axis: `stack(x, y)` or `stack([x, y])`.

    Raises:
        ShapeError: no argument, or shapes that differ. DtypeError: several dtypes, or an argument is not a tensor.
    """
    tensors, axis = _several("stack", arrays, axis)
    axis = normal_axis("stack", axis, tensors[0].ndim + 1)
    forms = {(x.shape, x.dtype): x for x in tensors}
    if len(forms) > 1 and (len({shape for shape, _ in forms}) > 1 or {dtype for _, dtype in forms} not in MIXED):
        kind = ShapeError if len({shape for shape, _ in forms}) > 1 else DtypeError
        raise kind(f"[stack] expected tensors of one shape and dtype, found "
                   f"{' and '.join(f'{dtype} {shape}' for shape, dtype in forms)}")
    return concat(*(expand_dims(x, axis=axis) for x in tensors), axis=axis)


def _several(name: str, arrays: Sequence[Any], axis: int) -> tuple[Sequence[Tensor], int]:
    """The tensors that were given one by one, or as one list or tuple of them, behind which the axis may stand."""
    tensors: Sequence[Any] = arrays
    if arrays and isinstance(arrays[0], list | tuple) and len(arrays) <= 2:
        tensors, axis = arrays[0], arrays[1] if len(arrays) == 2 else axis
    if not tensors:
        raise ShapeError(f"[{name}] expected at least one tensor, found none")
    check_tensors(name, *tensors)
    return tensors, axis


@explained
def split(x: Tensor, parts: int, axis: int = -1) -> tuple[Tensor, ...]:
    """Equal parts along an axis.

    Raises:
        ShapeError: the axis does not divide evenly.
    """
    check_tensors("split", x)
    axis, parts = normal_axis("split", axis, x.ndim), check_integer("split", "parts", parts, 1)
    if x.shape[axis] % parts:
        raise ShapeError(f"[split] expected a size divisible by {parts} at axis {axis}, found shape {x.shape}")
    size = x.shape[axis] // parts
    before = (slice(None),) * axis
    return tuple(getitem(x, key=(*before, slice(i * size, (i + 1) * size))) for i in range(parts))


@op
def unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, which they no longer have. Their gradients are joined in one step, not one by one."""
    check_tensors("unstack", x)
    return unstack.apply(x, axis=normal_axis("unstack", axis, x.ndim))


def _unstack_forward(be: Backend, x: Array, axis: int) -> tuple[tuple[Array, ...], Any]:
    before = (slice(None),) * axis
    return tuple(x[(*before, i)] for i in range(x.shape[axis])), (x.shape, be.dtype(x), axis)


def _unstack_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> tuple[Array]:
    shape, dtype, axis = saved
    slice_shape = (*shape[:axis], 1, *shape[axis + 1:])
    parts = [be.zeros(slice_shape, dtype) if g is None else be.reshape(g, slice_shape) for g in gouts]
    return (be.concat(parts, axis=axis),)


unstack.add(Rule("composed", _unstack_forward, _unstack_vjp, stored=(0,)))


@op
def flip(x: Tensor, axis: int) -> Tensor:
    """The values along an axis in reverse order."""
    check_tensors("flip", x)
    return flip.apply(x, axis=normal_axis("flip", axis, x.ndim))


flip.add(Rule("composed", lambda be, x, axis: (be.flip(x, axis), axis),
              lambda be, axis, gout, needs: (be.flip(gout, axis),), stored=(0,)))


@op
def pad(x: Tensor, widths: tuple[tuple[int, int], ...], value: float = 0.0) -> Tensor:
    """A border of `value`, `(before, after)` wide at each axis.

    Raises:
        ShapeError: the number of pairs is wrong, or a width is below 0. DtypeError: widths or value of a wrong kind.
        MemoryExhaustedError: the device has not enough memory for the result.
    """
    check_tensors("pad", x)
    if not isinstance(widths, tuple | list):
        raise DtypeError(f"[pad] widths: expected a tuple of pairs, found {described(widths)}")
    pairs = tuple(check_integers_in("pad", "widths", pair, 0) for pair in widths)
    if len(pairs) != x.ndim or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(f"[pad] expected {x.ndim} pairs of widths, found {widths}")
    check_room("pad", x.backend, tuple(n + before + after for n, (before, after) in zip(x.shape, pairs, strict=True)))
    value = check_number("pad", "value", value, NOT_NAN)
    if x.dtype not in REALS and not (-LARGEST <= value <= LARGEST and value == int(value)):
        raise DtypeError(f"[pad] value: expected an integer beside a tensor of {x.dtype}, found {value}")
    return pad.apply(x, widths=pairs, value=value)


def _pad_forward(be: Backend, x: Array, widths: tuple[tuple[int, int], ...], value: float) -> tuple[Array, Any]:
    return be.pad(x, widths, value), (x.shape, widths)


def _pad_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    shape, widths = saved
    return (gout[tuple(slice(before, before + n) for n, (before, _) in zip(shape, widths, strict=True))],)


pad.add(Rule("composed", _pad_forward, _pad_vjp, stored=(0,)))
