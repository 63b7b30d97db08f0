"""Operators that move values without changing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Annotated, Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Op, Rule, Tensor, op
from duoln.core.arguments import (
    LARGEST,
    NOT_NAN,
    Whole,
    check_axes,
    check_integer,
    check_integers_in,
    check_number,
    described,
)
from duoln.core.entering import check_representable
from duoln.core.pytorch_names import hinted
from duoln.core.spec import check_tensors
from duoln.core.storage import EVERY, MIXED, in_float32
from duoln.errors import DtypeError, ShapeError
from duoln.ops.common import broadcast_shape, check_axis_given, check_room, normal_axes, normal_axis, unbroadcast
from duoln.ops.index import getitem


@op("x: any")
def reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same values in another shape; one entry may be -1.

    Raises:
        ShapeError: the number of values differs, or there are more than 32 axes.
    """
    reshape.check(x)
    shape = check_integers_in("reshape", "shape", shape, high=1 << 62)
    known = prod(n for n in shape if n != -1)
    if shape.count(-1) > 1 or any(n < -1 for n in shape):
        raise ShapeError(f"[reshape] expected sizes and at most one -1, found {shape}")
    if -1 in shape and known and x.size % known == 0:
        shape = tuple(x.size // known if n == -1 else n for n in shape)
    if -1 in shape or prod(shape) != x.size:
        raise ShapeError(f"[reshape] expected a shape of {x.size} values, found {shape}")
    check_axes("reshape", len(shape))
    return reshape.apply(x, shape=tuple(shape))


reshape.add(Rule("composed", lambda be, x, shape: (be.reshape(x, shape), x.shape),
                 lambda be, before, gout, needs: (be.reshape(gout, before),), stored=(0,)))


@op("x: any")
def permute_dims(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The axes in another order.

    Raises:
        ShapeError: `axes` is not an order of the axes.
    """
    permute_dims.check(x)
    order = tuple(normal_axis("permute_dims", a, x.ndim) for a in check_integers_in("permute_dims", "axes", axes))
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(f"[permute_dims] expected an order of {x.ndim} axes, found {axes}")
    return permute_dims.apply(x, axes=order)


def _permute_vjp(be: Backend, axes: tuple[int, ...], gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    inverse = sorted(range(len(axes)), key=lambda i: axes[i])
    return (be.permute_dims(gout, tuple(inverse)),)


permute_dims.add(Rule("composed", lambda be, x, axes: (be.permute_dims(x, axes), axes), _permute_vjp, stored=(0,)))


@hinted
def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes exchanged.

    Raises:
        ShapeError: there are fewer than two axes.
    """
    check_tensors("matrix_transpose", x)
    if x.ndim < 2:
        raise ShapeError(f"[matrix_transpose] expected at least two axes, found shape {x.shape}")
    return permute_dims.apply(x, axes=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@hinted
def moveaxis(x: Tensor, source: int | tuple[int, ...], destination: int | tuple[int, ...]) -> Tensor:
    """The axes `source` at the positions `destination`; the others keep their order.

    Raises:
        ShapeError: there is no such axis, one stands twice, or there are not as many of both.
    """
    check_tensors("moveaxis", x)
    moved, places = (_in_order("moveaxis", axis, x.ndim) for axis in (source, destination))
    if len(moved) != len(places):
        raise ShapeError(f"[moveaxis] expected as many axes in source as in destination, found {source} and "
                         f"{destination}")
    order = [i for i in range(x.ndim) if i not in moved]
    for place, axis in sorted(zip(places, moved, strict=True)):
        order.insert(place, axis)
    return permute_dims.apply(x, axes=tuple(order))


def _in_order(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Axes counted from the front, in the order in which they were given. It raises the errors of `normal_axes`."""
    normal_axes(name, check_axis_given(name, axis), ndim)
    return tuple(normal_axis(name, a, ndim) for a in (axis if isinstance(axis, tuple | list) else (axis,)))


@hinted
def expand_dims(x: Tensor, axis: int = 0) -> Tensor:
    """A new axis of size 1 at position `axis`."""
    check_tensors("expand_dims", x)
    axis = normal_axis("expand_dims", axis, x.ndim + 1)
    check_axes("expand_dims", x.ndim + 1)
    return reshape(x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))


@hinted
def squeeze(x: Tensor, axis: int | tuple[int, ...]) -> Tensor:
    """The tensor without some axes, which must have size 1."""
    check_tensors("squeeze", x)
    axes = normal_axes("squeeze", check_axis_given("squeeze", axis), x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"[squeeze] expected size 1 at axis {axis}, found shape {x.shape}")
    return reshape(x, shape=tuple(n for i, n in enumerate(x.shape) if i not in axes))


@op("x: any")
def broadcast_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeat the values along new axes and along axes of size 1, so that the result has this shape."""
    broadcast_to.check(x)
    shape = check_integers_in("broadcast_to", "shape", shape, 0, 1 << 62)
    padded = (1,) * (len(shape) - x.ndim) + x.shape
    if len(padded) != len(shape) or any(a not in (1, b) for a, b in zip(padded, shape, strict=True)):
        raise ShapeError(f"[broadcast_to] expected a shape that broadcasts to {shape}, found {x.shape}")
    check_room("broadcast_to", x.backend, shape)
    return broadcast_to.apply(x, shape=shape)


broadcast_to.add(Rule("composed", lambda be, x, shape: (be.broadcast_to(x, shape), x.shape),
                      lambda be, before, gout, needs: (in_float32(be, gout, lambda g: unbroadcast(be, g, before)),),
                      stored=(0,)))


@hinted
def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """The tensors, each repeated along axes of size 1, so that all have the shape that they broadcast to.

    Raises:
        ShapeError: no argument, or shapes that do not broadcast. DtypeError: an argument is not a tensor.
    """
    if not arrays:
        raise ShapeError("[broadcast_arrays] expected at least one tensor, found none")
    check_tensors("broadcast_arrays", *arrays)
    shape = broadcast_shape("broadcast_arrays", *(x.shape for x in arrays))
    check_room("broadcast_arrays", arrays[0].backend, shape)
    return tuple(x if x.shape == shape else broadcast_to.apply(x, shape=shape) for x in arrays)


@hinted
def tile(x: Tensor, repetitions: tuple[int, ...]) -> Tensor:
    """The whole tensor side by side, `repetitions` times along each axis, of which the last ones are meant.

    Raises:
        ShapeError: a number is below 0. DtypeError: `repetitions` is no tuple of integers.
        MemoryExhaustedError: the device has not enough memory for the result.
    """
    check_tensors("tile", x)
    counts = check_integers_in("tile", "repetitions", repetitions, 0, 1 << 62)
    rank = max(len(counts), x.ndim)
    counts, sizes = (1,) * (rank - len(counts)) + counts, (1,) * (rank - x.ndim) + x.shape
    whole = tuple(n * count for n, count in zip(sizes, counts, strict=True))
    check_room("tile", x.backend, whole)
    apart = reshape.apply(x, shape=tuple(size for n in sizes for size in (1, n)))
    many = broadcast_to.apply(apart, shape=tuple(size for pair in zip(counts, sizes, strict=True) for size in pair))
    return reshape.apply(many, shape=whole)


@hinted
def repeat(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """Each value `repeats` times along an axis, or for None along the only axis of all values in a row.

    One number serves all values, because a number for each would let the shape depend on values.

    Raises:
        ShapeError: there is no such axis, or `repeats` is below 0.
        MemoryExhaustedError: the device has not enough memory for the result.
    """
    check_tensors("repeat", x)
    count = check_integer("repeat", "repeats", repeats, 0, 1 << 62)
    if axis is None:
        x, axis = reshape.apply(x, shape=(x.size,)), 0
    axis = normal_axis("repeat", axis, x.ndim)
    before, n, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1:]
    check_room("repeat", x.backend, (*before, n * count, *behind))
    apart = reshape.apply(x, shape=(*before, n, 1, *behind))
    return reshape.apply(broadcast_to.apply(apart, shape=(*before, n, count, *behind)),
                         shape=(*before, n * count, *behind))


@op
def concat(*arrays: Tensor | Sequence[Tensor] | int | None, axis: int | None = 0) -> Tensor:
    """Several tensors one after another along an axis: `concat(x, y, axis=1)` or `concat([x, y], 1)`.

    For the axis None the values of each tensor stand in a row first.

    Raises:
        ShapeError: no argument, or shapes that differ along another axis. DtypeError: several dtypes, or no tensor.
    """
    tensors, axis = _several("concat", arrays, axis)
    if axis is None:
        tensors, axis = [reshape.apply(x, shape=(x.size,)) for x in tensors], 0
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


def _concat_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    axis, sizes = saved
    before = (slice(None),) * axis
    gradients: list[Array | None] = []
    start = 0
    for size, need in zip(sizes, needs, strict=True):
        gradients.append(gout[(*before, slice(start, start + size))] if need else None)
        start += size
    return gradients


concat.add(Rule("composed", lambda be, *arrays, axis: (
    be.concat(arrays, axis=axis), (axis, [x.shape[axis] for x in arrays])), _concat_vjp, stored=EVERY))


@hinted
def stack(*arrays: Tensor | Sequence[Tensor] | int, axis: int = 0) -> Tensor:
    """Several tensors of one shape along a new axis: `stack(x, y)` or `stack([x, y])`.

    Raises:
        ShapeError: no argument, or shapes that differ. DtypeError: several dtypes, or an argument is not a tensor.
    """
    tensors, axis = _several("stack", arrays, axis)
    axis = normal_axis("stack", axis, tensors[0].ndim + 1)
    check_axes("stack", tensors[0].ndim + 1)
    forms = {(x.shape, x.dtype): x for x in tensors}
    if len(forms) > 1 and (len({shape for shape, _ in forms}) > 1 or {dtype for _, dtype in forms} not in MIXED):
        kind = ShapeError if len({shape for shape, _ in forms}) > 1 else DtypeError
        raise kind(f"[stack] expected tensors of one shape and dtype, found "
                   f"{' and '.join(f'{dtype} {shape}' for shape, dtype in forms)}")
    return concat(*(expand_dims(x, axis=axis) for x in tensors), axis=axis)


def _several(name: str, arrays: Sequence[Any], axis: Any) -> tuple[Sequence[Tensor], Any]:
    """The tensors that were given one by one, or as one list or tuple of them, behind which the axis may stand."""
    tensors: Sequence[Any] = arrays
    if arrays and isinstance(arrays[0], list | tuple) and len(arrays) <= 2:
        tensors, axis = arrays[0], arrays[1] if len(arrays) == 2 else axis
    if not tensors:
        raise ShapeError(f"[{name}] expected at least one tensor, found none")
    check_tensors(name, *tensors)
    return tensors, axis


@op("x: any")
def split(x: Tensor, parts: int | tuple[int, ...], axis: int = 0) -> tuple[Tensor, ...]:
    """Parts along an axis: a number of equal ones, or parts of the sizes that a tuple names.

    The parts' gradients are joined in one step.

    Raises:
        ShapeError: the axis does not divide evenly, or the sizes do not add up to it.
    """
    split.check(x)
    axis = normal_axis("split", axis, x.ndim)
    n = x.shape[axis]
    if isinstance(parts, tuple | list):
        sizes = check_integers_in("split", "parts", parts, 0)
        if sum(sizes) != n:
            raise ShapeError(f"[split] parts: expected sizes that add up to {n} at axis {axis}, found {sizes}")
    else:
        count = check_integer("split", "parts", parts, 1)
        if n % count:
            raise ShapeError(f"[split] expected a size divisible by {count} at axis {axis}, found shape {x.shape}")
        sizes = (n // count,) * count
    return split.apply(x, sizes=sizes, axis=axis)


def _split_forward(be: Backend, x: Array, sizes: tuple[int, ...], axis: int) -> tuple[tuple[Array, ...], Any]:
    before, ends = (slice(None),) * axis, accumulate(sizes)
    parts = tuple(x[(*before, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True))
    return parts, ([part.shape for part in parts], be.dtype(x), axis)


def _split_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> tuple[Array]:
    shapes, dtype, axis = saved
    parts = [be.zeros(shape, dtype) if g is None else g for shape, g in zip(shapes, gouts, strict=True)]
    return (be.concat(parts, axis=axis),)


split.add(Rule("composed", _split_forward, _split_vjp, stored=(0,)))


@op("x: any")
def unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, which they no longer have. Their gradients are joined in one step."""
    unstack.check(x)
    return unstack.apply(x, axis=normal_axis("unstack", axis, x.ndim))


def _unstack_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> tuple[Array]:
    shape, dtype, axis = saved
    slice_shape = (*shape[:axis], 1, *shape[axis + 1:])
    parts = [be.zeros(slice_shape, dtype) if g is None else be.reshape(g, slice_shape) for g in gouts]
    return (be.concat(parts, axis=axis),)


unstack.add(Rule("composed", lambda be, x, axis: (
    tuple(x[(*(slice(None),) * axis, i)] for i in range(x.shape[axis])), (x.shape, be.dtype(x), axis)),
    _unstack_vjp, stored=(0,)))


@hinted
def flip(x: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """The values along some axes, or along all for None, in reverse order."""
    check_tensors("flip", x)
    axes = normal_axes("flip", axis, x.ndim)
    if not axes:
        return x
    return getitem.apply(x, key=tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(x.ndim)))


@hinted
def roll(x: Tensor, shift: int | tuple[int, ...], axis: int | tuple[int, ...] | None = None) -> Tensor:
    """The values moved by `shift` places along an axis; those that leave it come in at its start.

    Several axes have a shift each. For the axis None the values move in a row, and the shape stays.

    Raises:
        ShapeError: there is no such axis, or there are not as many shifts as axes.
    """
    check_tensors("roll", x)
    if axis is None:
        return reshape.apply(_rolled(reshape.apply(x, shape=(x.size,)), 0, check_integer("roll", "shift", shift)),
                             shape=x.shape)
    axes = tuple(normal_axis("roll", a, x.ndim) for a in (axis if isinstance(axis, tuple | list) else (axis,)))
    shifts = check_integers_in("roll", "shift", shift if isinstance(shift, tuple | list) else (shift,) * len(axes))
    if len(shifts) != len(axes):
        raise ShapeError(f"[roll] expected a shift for each of {len(axes)} axes, found {len(shifts)}")
    for a, places in zip(axes, shifts, strict=True):
        x = _rolled(x, a, places)
    return x


def _rolled(x: Tensor, axis: int, shift: int) -> Tensor:
    cut = -shift % x.shape[axis] if x.shape[axis] else 0
    if not cut:
        return x
    before = (slice(None),) * axis
    return concat.apply(getitem.apply(x, key=(*before, slice(cut, None))),
                        getitem.apply(x, key=(*before, slice(None, cut))), axis=axis)


def _triangle(name: str, doc: str, keeps: Callable[[Array, Array], Array]) -> Op[..., Tensor]:
    """An op that keeps the values at some rows and columns of matrices, and puts 0 elsewhere.

    Args:
        name, doc: name and docstring of the op.
        keeps: `keeps(row + k, column)`, for arrays of int32.
    """

    def function(x: Tensor, *, k: Annotated[int, Whole(-LARGEST // 2, LARGEST // 2)] = 0) -> Tensor:
        """`doc` describes it."""

    def kept(be: Backend, x: Array, k: int) -> Array:
        rows, columns = x.shape[-2:]
        mask = keeps(be.reshape(be.arange(rows) + k, (rows, 1)), be.arange(columns))
        return be.where(mask, x, be.zeros((1,), be.dtype(x)))

    made = Op(function, "x: any[*lead, rows, columns]", name, doc)
    made.add(Rule("composed", lambda be, x, k: (kept(be, x, k), k),
                  lambda be, k, gout, needs: (kept(be, gout, k),), stored=(0,)))
    return made


tril = _triangle("tril", "The lower triangle of matrices over the last two axes, with `k` diagonals above the main "
                 "one; 0 elsewhere.", lambda row, column: column <= row)
triu = _triangle("triu", "The upper triangle of matrices over the last two axes, from the diagonal `k` above the main "
                 "one on; 0 elsewhere.", lambda row, column: column >= row)


@op("x: any")
def pad(x: Tensor, widths: tuple[tuple[int, int], ...], value: float = 0.0) -> Tensor:
    """A border of `value`, `(before, after)` wide at each axis.

    Raises:
        ShapeError: the number of pairs is wrong, or a width is below 0. DtypeError: widths or value of a wrong kind.
        MemoryExhaustedError: the device has not enough memory for the result.
    """
    pad.check(x)
    if not isinstance(widths, tuple | list):
        raise DtypeError(f"[pad] widths: expected a tuple of pairs, found {described(widths)}")
    pairs = tuple(check_integers_in("pad", "widths", pair, 0) for pair in widths)
    if len(pairs) != x.ndim or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(f"[pad] expected {x.ndim} pairs of widths, found {widths}")
    check_room("pad", x.backend, tuple(n + before + after for n, (before, after) in zip(x.shape, pairs, strict=True)))
    value = check_representable("pad", "value", check_number("pad", "value", value, NOT_NAN), x.dtype)
    return pad.apply(x, widths=pairs, value=value)


def _pad_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    shape, widths = saved
    return (gout[tuple(slice(before, before + n) for n, (before, _) in zip(shape, widths, strict=True))],)


pad.add(Rule("composed", lambda be, x, widths, value: (be.pad(x, widths, value), (x.shape, widths)), _pad_vjp,
             stored=(0,)))
