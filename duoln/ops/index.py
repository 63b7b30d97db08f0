"""Operators that select entries. Shapes never depend on values: use `where` and masks for conditions.

An index out of range is an error on NumPy. A device would have to wait for it, so there it gives NaN, and no gradient;
integers and bools, which have no NaN, are then those at index 0. Check indices on the host, with
`duoln.tensor(x, within=(0, n))` or `duoln.data.Batches(..., within=...)`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import Array, Backend, Shape
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import LARGEST, AtLeast1, check_axes, check_integer, described
from duoln.core.storage import in_float32
from duoln.core.tensor import stop_gradient
from duoln.errors import AxisIndexError, DtypeError, ShapeError
from duoln.ops.common import (
    broadcast_shape,
    check_dtype,
    check_indices,
    check_room,
    in_index_range,
    indices_unchecked,
    nan_outside,
    normal_axis,
    only_axis,
)
from duoln.ops.elementwise import where

_PLAIN = 1 << 30
"""The largest bound of a slice with which no library's sums overflow."""


@op("x: any")
def getitem(x: Tensor, key: Any) -> Tensor:
    """`x[key]` for integers, slices, `...` and None; or for an integer or an int32 tensor at every axis.

    The tensors broadcast, and each of their positions gives one entry. One tensor at the first axis may stand alone.

    Raises:
        DtypeError: `key` holds an array or a mask; the message names the operator to use.
        AxisIndexError: there are too many indices, or one is out of range; it is a ShapeError and an IndexError.
        ShapeError: tensors that do not broadcast, or beside slices.
    """
    getitem.check(x)
    given = key if isinstance(key, tuple) else (key,)
    if Tensor in map(type, given) and any(isinstance(k, Tensor) and k.ndim for k in given):
        return _tensor_index(x, given)
    keys = [_plain_index(k) for k in given]
    counted = [k for k in keys if k is not None and k is not Ellipsis]
    if len(counted) > x.ndim:
        raise AxisIndexError(f"[getitem] expected at most {x.ndim} indices for shape {x.shape}, found {len(counted)}")
    if keys.count(Ellipsis) > 1:
        raise ShapeError(f"[getitem] expected ... at most once, found it {keys.count(Ellipsis)} times")
    check_axes("getitem", x.ndim + keys.count(None) - sum(isinstance(k, int) for k in keys))
    axis = 0
    for position, k in enumerate(keys):
        if k is Ellipsis:
            axis = x.ndim - sum(1 for later in keys[position + 1:] if later is not None)
        elif k is not None:
            if isinstance(k, int) and not -x.shape[axis] <= k < x.shape[axis]:
                raise AxisIndexError(f"[getitem] expected an index below {x.shape[axis]} at axis {axis}, found {k}")
            if isinstance(k, slice) and k.step is not None:
                keys[position] = _bounded(k, x.shape[axis] + 1)
            axis += 1
    return getitem.apply(x, key=tuple(keys) if isinstance(key, tuple) else keys[0])


def _tensor_index(x: Tensor, keys: tuple[Any, ...]) -> Tensor:
    """`x[keys]`, where some keys are tensors."""
    if not x.ndim or len(keys) not in (1, x.ndim):
        raise ShapeError(f"[getitem] expected one int32 tensor, or an integer or int32 tensor at each of {x.ndim} "
                         f"axes, found {len(keys)} indices")
    for axis, key in enumerate(keys):
        if isinstance(key, slice) or key is None or key is Ellipsis:
            raise ShapeError("[getitem] expected no slices, ... or None beside tensors, found one; index by slices "
                             "first, or use take along one axis")
        if isinstance(key, Tensor) and key.dtype == "bool":
            raise DtypeError("[getitem] expected int32 indices, found a mask of bools: the shape would depend on its "
                             "values; where(mask, x, y) keeps the shape")
        if isinstance(key, Tensor):
            check_indices("getitem", "key", key, x.shape[axis], x, low=-x.shape[axis])
        elif not -x.shape[axis] <= check_integer("getitem", "key", key) < x.shape[axis]:
            raise AxisIndexError(f"[getitem] expected an index below {x.shape[axis]} at axis {axis}, found {key}")
    broadcast_shape("getitem", *(k.shape for k in keys if isinstance(k, Tensor)))
    if len(keys) < x.ndim:
        check_axes("getitem", x.ndim - 1 + keys[0].ndim)
        return take.apply(x, keys[0], axis=0)
    return getitem.apply(x, *(k if isinstance(k, Tensor) else operator.index(k) for k in keys), key=None)


def _plain_index(key: Any) -> Any:
    """One index of `getitem` in Python integers, which every library reads in the same way."""
    if key is None or key is Ellipsis or (type(key) is int and abs(key) <= LARGEST):
        return key
    if isinstance(key, slice):
        start, stop = key.start, key.stop
        if key.step is None and (start is None or (type(start) is int and abs(start) <= _PLAIN)) and (
                stop is None or (type(stop) is int and abs(stop) <= _PLAIN)):
            return key  # the usual case
        step = 1 if key.step is None else _slice_part(key.step)
        if step == 0:  # MLX would end the process
            raise ShapeError("[getitem] expected a step other than 0, found 0")
        return slice(None if start is None else _slice_part(start), None if stop is None else _slice_part(stop), step)
    try:
        return check_integer("getitem", "key", key)
    except DtypeError:
        raise DtypeError(f"[getitem] expected integers, slices, ... or None, found {described(key)}; "
                         "use take for integer arrays, where for masks") from None


def _slice_part(part: Any) -> int:
    try:
        return operator.index(part)
    except TypeError:
        raise DtypeError(f"[getitem] expected integers in a slice, found {described(part)}") from None


def _bounded(key: slice, beyond: int) -> slice:
    """The same slice of an axis shorter than `beyond`. Larger bounds are cut, because MLX adds bounds and steps."""
    return slice(*(None if part is None else min(max(part, -beyond), beyond)
                   for part in (key.start, key.stop, key.step)))


def _getitem_forward(be: Backend, x: Array, *indices: Array | int, key: Any) -> tuple[Array, Any]:
    if not indices:
        return x[key], (x.shape, key, 0)
    flat: Any = 0
    inside: Any = None
    for axis, index in enumerate(indices):
        n, stride = x.shape[axis], prod(x.shape[axis + 1:])
        flat = flat + (index % n if isinstance(index, int) else from_front(be, index, n)) * stride
        if indices_unchecked(be) and not isinstance(index, int):
            fits = in_index_range(be, index, -n, n)
            inside = fits if inside is None else be.logical_and(inside, fits)
    if inside is not None:
        flat = be.where(inside, flat, be.full((), x.size, "int32"))
    return gathered(be, "take", be.reshape(x, (prod(x.shape),)), flat, 0), (x.shape, flat, len(indices))


def _getitem_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    shape, key, indices = saved
    if indices:
        dx = in_float32(be, gout, lambda g: be.reshape(_scatter_add_rows(be, g, (prod(shape),), key, 0), shape))
        return dx, *(None,) * indices
    # A new axis is a 1 in a shape.
    plain = tuple(k for k in (key if isinstance(key, tuple) else (key,)) if k is not None)

    def added(g: Array) -> Array:
        zeros = be.zeros(shape, be.dtype(g))
        return be.slice_add(zeros, plain, be.reshape(g, zeros[plain].shape))

    return (in_float32(be, gout, added),)


getitem.add(Rule("composed", _getitem_forward, _getitem_vjp, stored=(0,)))


@op("x: any, indices: int32")
def take(x: Tensor, indices: Tensor, axis: int | None = None) -> Tensor:
    """Entries along one axis, which only a vector may leave out, by int32 indices.

    Shape:
        x (..., n, ...), indices (k...) -> (..., k..., ...). Indices lie in -n .. n - 1; a negative one counts from
        the end.

    Raises:
        DtypeError: indices are not an int32 tensor. ShapeError: no such axis; on NumPy, an index is out of range,
            which gives NaN on a device.
    """
    take.check(x, indices)
    axis = only_axis("take", axis, x.ndim)
    check_indices("take", "indices", indices, x.shape[axis], x, low=-x.shape[axis])
    check_axes("take", x.ndim - 1 + indices.ndim)
    return take.apply(x, indices, axis=axis)


def from_front(be: Backend, indices: Array, size: int) -> Array:
    """The same indices, counted from the start of the axis: a sum over equal indices needs this form.

    One that is out of range on a device is `size`.
    """
    front = be.where(indices < 0, indices + size, indices)
    if not indices_unchecked(be):
        return front
    return be.where(in_index_range(be, front, 0, size), front, be.full((), size, "int32"))


def gathered(be: Backend, method: str, x: Array, indices: Array, axis: int) -> Array:
    """The result of the backend's `take` or `take_along_axis`; on a device, NaN where an index is out of range."""
    select, size = getattr(be, method), x.shape[axis]
    if not indices_unchecked(be):
        return select(x, indices, axis)
    inside = in_index_range(be, indices, -size, size)
    y = select(x, be.where(inside, indices, be.zeros((), "int32")), axis)
    after = x.shape[axis + 1:] if method == "take" else ()
    return nan_outside(be, be.reshape(inside, (*indices.shape, *(1 for _ in after))), y)


def _without_last(be: Backend, rows: Array) -> Array:
    """The sums of a gradient's rows without the one after them, where a device adds what is out of range."""
    return rows[:-1] if indices_unchecked(be) else rows


def _queue_remark(be: Backend) -> str | None:
    """The remark about backends with queues, which wait for the host in the gradient; None for others."""
    return ("the host counts the rows of its gradient, so a compiled step with it runs operator by operator, not as "
            "one CUDA graph") if be.queues else None


def _gather_rule(method: str, added: Callable[..., Array]) -> Rule:
    """The composed rule of a method of backends that selects entries along an axis.

    `added(be, gout, shape, indices, axis)` are the sums of the gradients of equal indices, at their places in x.
    """

    def forward(be: Backend, x: Array, indices: Array, axis: int) -> tuple[Array, Any]:
        return gathered(be, method, x, indices, axis), (x.shape, indices, axis)

    def vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array, None]:
        return in_float32(be, gout, lambda g: added(be, g, *saved)), None

    return Rule("composed", forward, vjp, stored=(0,), remark=_queue_remark)


def _scatter_add_rows(be: Backend, gout: Array, shape: Shape, indices: Array, axis: int) -> Array:
    flat = from_front(be, be.reshape(indices, (prod(indices.shape),)), shape[axis])
    before, after = shape[:axis], shape[axis + 1:]
    k = flat.shape[0]
    rows = be.permute_dims(be.reshape(gout, (prod(before), k, prod(after))), (1, 0, 2))
    rows = be.reshape(rows, (k, prod(before) * prod(after)))
    zeros = be.zeros((shape[axis] + indices_unchecked(be), prod(before) * prod(after)), be.dtype(gout))
    added = _without_last(be, be.index_add(zeros, flat, rows))
    added = be.permute_dims(be.reshape(added, (shape[axis], prod(before), prod(after))), (1, 0, 2))
    return be.reshape(added, shape)


take.add(_gather_rule("take", _scatter_add_rows))


@op("table: any[words, width], ids: int32")
def embedding(table: Tensor, ids: Tensor, *, padding_idx: int | None = None) -> Tensor:
    """Rows of a table. The row `padding_idx` gets no gradient.

    Shape:
        table (words, width), ids int32 (...) -> (..., width).

    Raises:
        ShapeError: the table is no matrix, or it has no row `padding_idx`; on NumPy, an id is out of range, which
            gives a row of NaN on a device.
    """
    embedding.check(table, ids)
    check_indices("embedding", "ids", ids, table.shape[0], table)
    check_axes("embedding", ids.ndim + 1)
    if indices_unchecked(ids.backend):  # `take` would count a negative one from the end
        rows = take.apply(table, where(ids < 0, table.shape[0], ids), axis=0)
    else:
        rows = take.apply(table, ids, axis=0)
    if padding_idx is None:
        return rows
    padding = check_integer("embedding", "padding_idx", padding_idx, 0, table.shape[0] - 1)
    return where(getitem.apply(ids != padding, key=(..., None)), rows, stop_gradient(rows))


@op("x: any, indices: int32")
def take_along_axis(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """One entry along `axis` for each position of `indices`.

    Shape:
        x (..., n, ...), int32 indices (..., k, ...) like x except at `axis` -> shape of indices. Indices lie in
        -n .. n - 1; a negative one counts from the end.
    """
    take_along_axis.check(x, indices)
    axis = normal_axis("take_along_axis", axis, x.ndim)
    if indices.ndim != x.ndim or any(i != axis and a != b for i, (a, b) in
                                     enumerate(zip(x.shape, indices.shape, strict=True))):
        raise ShapeError(f"[take_along_axis] expected indices like {x.shape} but at axis {axis}, "
                         f"found {indices.shape}")
    check_indices("take_along_axis", "indices", indices, x.shape[axis], x, low=-x.shape[axis])
    return take_along_axis.apply(x, indices, axis=axis)


def _added_entries(be: Backend, gout: Array, shape: Shape, indices: Array, axis: int) -> Array:
    # The position of each value's source in the flattened tensor.
    stride = prod(shape[axis + 1:])
    source = from_front(be, indices, shape[axis]) * stride
    for i, n in enumerate(indices.shape):
        if i != axis:
            ramp = be.arange(n) * prod(shape[i + 1:])
            source = source + be.reshape(ramp, tuple(n if j == i else 1 for j in range(len(shape))))
    if indices_unchecked(be):
        is_inside = in_index_range(be, indices, -shape[axis], shape[axis])
        source = be.where(is_inside, source, be.full((), prod(shape), "int32"))
    count = prod(indices.shape)
    zeros = be.zeros((prod(shape) + indices_unchecked(be), 1), be.dtype(gout))
    added = be.index_add(zeros, be.reshape(source, (count,)), be.reshape(gout, (count, 1)))
    return be.reshape(_without_last(be, added), shape)


take_along_axis.add(_gather_rule("take_along_axis", _added_entries))


@op("ids: int32[*rows]")
def one_hot(ids: Tensor, size: AtLeast1, dtype: str = "float32") -> Tensor:
    """1 at each id, 0 elsewhere.

    Shape:
        ids int32 (...) -> (..., size). An id outside 0 .. size - 1 gives a row of zeros.
    """
    one_hot.check(ids)
    be = ids.backend
    dtype = check_dtype("one_hot", dtype, be)
    check_room("one_hot", be, (*ids.shape, size))
    return one_hot.apply(ids, size=size, dtype=dtype)


one_hot.add(Rule("composed", lambda be, ids, size, dtype: (
    be.astype(be.expand_dims(ids, -1) == be.arange(size), dtype), None)))
