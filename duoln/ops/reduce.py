"""Reductions along axes, and logsumexp and softmax. Sums and logarithms of values of 16 bits are float32.

Shape:
    `axis` is an int, a tuple of ints or None for all; reduced axes are removed unless `keepdims` is set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Op, Rule, Tensor, op
from duoln.core.arguments import NOT_NAN, Finite
from duoln.core.tensor import stop_gradient
from duoln.errors import ShapeError
from duoln.ops.common import is_extreme, length_over, normal_axes, normal_axis, only_axis
from duoln.ops.creation import zeros, zeros_like
from duoln.ops.elementwise import abs, logical_and, negative, pow, square, where
from duoln.ops.shape import concat, reshape

Axis = int | tuple[int, ...] | None


def _keepdims_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _squeezed_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def _check_nonempty(name: str, x: Tensor, axes: tuple[int, ...]) -> None:
    if 0 in [x.shape[a] for a in axes]:
        raise ShapeError(f"[{name}] expected at least one value along axis {axes}, found shape {x.shape}")


def _filled_axes(name: str, x: Tensor, axis: Axis) -> tuple[int, ...]:
    axes = normal_axes(name, axis, x.ndim)
    _check_nonempty(name, x, axes)
    return axes


@op("x: any -> real")
def sum(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The sum of float or int32 values, or the number of True values.

    Raises:
        DtypeError: on NumPy, int32 does not hold a sum; on a device it is then the nearest number that int32 holds.
    """
    sum.check(x)
    return sum.apply(x, axis=normal_axes("sum", axis, len(x.data.shape)), keepdims=keepdims)


def _sum_forward(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    if not axis:
        return (be.astype(x, "int32") if be.dtype(x) == "bool" else x), (x.shape, axis)
    if x.dtype not in be.wide and be.dtype(x) == "int32":
        return be.exactly(x, name="sum", compute=partial(be.sum, axis=axis, keepdims=keepdims)), (x.shape, axis)
    return be.sum(x, axis=axis, keepdims=keepdims), (x.shape, axis)


def sum_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    """The gradient of a sum: each value that was added gets that of its sum. `saved` is the shape of x and the axes."""
    shape, axis = saved
    return (be.broadcast_to(be.reshape(gout, _keepdims_shape(shape, axis)), shape),)


sum.add(Rule("composed", _sum_forward, sum_vjp))


@op("x: real")
def mean(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Arithmetic mean.

    Raises:
        ShapeError: there are no values to average.
    """
    mean.check(x)
    axes = _filled_axes("mean", x, axis)
    return sum(x, axis=axes, keepdims=keepdims) / math.prod(x.shape[a] for a in axes)


@op("x: real")
def var(x: Tensor, axis: Axis = None, *, correction: Finite = 0.0, keepdims: bool = False) -> Tensor:
    """The variance: the sum of squared differences from the mean, divided by the number of values less `correction`.

    Raises:
        ShapeError: there are no more values than `correction`.
    """
    var.check(x)
    centred, axes, count = _centred("var", x, axis, correction)
    return sum(square(centred), axis=axes, keepdims=keepdims) / count


@op("x: real")
def std(x: Tensor, axis: Axis = None, *, correction: Finite = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation: the root of the variance. Its gradient at equal values is 0. Raises as `var`."""
    std.check(x)
    centred, axes, count = _centred("std", x, axis, correction)
    return vector_norm.apply(centred, axis=axes, keepdims=keepdims) / math.sqrt(count)


def _centred(name: str, x: Tensor, axis: Axis, correction: float) -> tuple[Tensor, tuple[int, ...], float]:
    """The differences from the mean, the axes, and the number by which a sum of their squares is divided."""
    axes = _filled_axes(name, x, axis)
    size = math.prod(x.shape[a] for a in axes)
    count = size - correction
    if not count > 0:
        raise ShapeError(f"[{name}] expected more than {correction} values along axis {axes}, found {size}")
    # The gradient through the means is 0, because the differences add up to 0. The rounding of a large mean leaves an
    # offset, which a second subtraction of the mean removes; of equal values it leaves a rest.
    differences = x
    for _ in range(2):
        differences = differences - mean(stop_gradient(differences), axis=axes, keepdims=True)
    are_equal = max(x, axis=axes, keepdims=True) == min(x, axis=axes, keepdims=True)
    fixed = stop_gradient(x)
    return where(are_equal, fixed - fixed, differences), axes, count  # 0, and NaN for infinities


@op("x: real -> real")
def vector_norm(x: Tensor, axis: Axis = None, *, keepdims: bool = False,
                ord: Annotated[float, NOT_NAN] = 2) -> Tensor:
    """The norm sum(|x|^ord)^(1 / ord) of the values along the axes as one vector; the gradient at 0 is 0.

    `ord` may be infinite, for the greatest or the smallest size, and 0, for the number of values that are not 0.

    Raises:
        ShapeError: there are no values, and `ord` is infinite.
    """
    vector_norm.check(x)
    axes = normal_axes("vector_norm", axis, x.ndim)
    if math.isinf(ord):
        _check_nonempty("vector_norm", x, axes)
        return (max if ord > 0 else min).apply(abs(x), axis=axes, keepdims=keepdims)
    if ord == 0:
        return sum(where(x == 0.0, zeros_like(x), 1.0), axis=axes, keepdims=keepdims)
    if ord == 1:
        return sum(abs(x), axis=axes, keepdims=keepdims)
    if ord == 2:
        return vector_norm.apply(x, axis=axes, keepdims=keepdims)
    return _norm_of_order(abs(x), axes, keepdims, ord)


def _norm_of_order(size: Tensor, axes: tuple[int, ...], keepdims: bool, ord: float) -> Tensor:
    """The norm of sizes, each divided by the one with the greatest power, so that no power overflows. No 0 is raised to
    a power, whose slope may be infinite.
    """
    if not size.size:
        return sum(size, axis=axes, keepdims=keepdims)
    extreme = stop_gradient((max if ord > 0 else min).apply(size, axis=axes, keepdims=True))
    unit = where(logical_and(extreme > 0.0, extreme < math.inf), extreme, 1.0)
    share = size / unit
    is_zero = share == 0.0
    powers = where(is_zero, 0.0 if ord > 0 else 1.0, pow(where(is_zero, 1.0, share), ord))
    is_none = extreme == 0.0
    total = where(is_none, 1.0, sum(powers, axis=axes, keepdims=True))
    norm = where(is_none, 0.0, pow(total, 1.0 / ord) * unit)
    return norm if keepdims else reshape(norm, shape=_squeezed_shape(norm.shape, axes))


def _norm_forward(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    kept = length_over(be, x, axis) if axis else be.abs(x)
    return _drop(be, kept, axis, keepdims), (x, kept)


def _norm_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    x, kept = saved
    return (x / be.where(kept == 0, 1.0, kept) * be.reshape(gout, kept.shape),)


vector_norm.add(Rule("composed", _norm_forward, _norm_vjp))


def _one_axis(name: str, x: Tensor, axis: int) -> int:
    shape = x.data.shape
    axis = len(shape) - 1 if type(axis) is int and axis == -1 and shape else normal_axis(name, axis, len(shape))
    if not shape[axis]:
        _check_nonempty(name, x, (axis,))
    return axis


def _reduction(name: str, doc: str, spec: str, needs_values: bool, rule: Rule) -> Op[..., Tensor]:
    """An op that reduces axes. With `needs_values` those of no values are an error."""

    def function(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
        made.check(x)
        axes = normal_axes(name, axis, x.ndim)
        if needs_values:
            _check_nonempty(name, x, axes)
        return made.apply(x, axis=axes, keepdims=keepdims)

    made = Op(function, spec, name, doc)
    made.add(rule)
    return made


def _extreme_forward(method: str, be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    kept = getattr(be, method)(x, axis=axis, keepdims=True) if axis else x
    return _drop(be, kept, axis, keepdims), (x, kept, axis)


def _drop(be: Backend, kept: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    if keepdims or not axis:
        return kept
    return be.reshape(kept, _squeezed_shape(kept.shape, axis))


def _extreme_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    x, kept, axis = saved
    chosen = is_extreme(be, x, kept)
    share = be.reshape(gout, kept.shape)
    if axis:
        share = share / be.sum(be.astype(chosen, be.dtype(x)), axis=axis, keepdims=True)
    return (be.where(chosen, share, 0.0),)


max = _reduction("max", "Greatest value; equal greatest values share the gradient evenly.", "x: real -> like x",
                 True, Rule("composed", partial(_extreme_forward, "max"), _extreme_vjp))
min = _reduction("min", "Smallest value; equal smallest values share the gradient evenly.", "x: real -> like x",
                 True, Rule("composed", partial(_extreme_forward, "min"), _extreme_vjp))
all = _reduction("all", "True if every bool along the axes is True.", "x: bool", False,
                 Rule("composed", lambda be, x, axis, keepdims: (be.all(x, axis=axis, keepdims=keepdims), None)))
any = _reduction("any", "True if at least one bool along the axes is True.", "x: bool", False,
                 Rule("composed", lambda be, x, axis, keepdims: (be.any(x, axis=axis, keepdims=keepdims), None)))


@op("x: real")
def argmax(x: Tensor, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Index of the first greatest value along one axis, or among all values for None, as int32."""
    return _arg_extreme(argmax, x, axis, keepdims)


@op("x: real")
def argmin(x: Tensor, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Index of the first smallest value along one axis, or among all values for None, as int32."""
    return _arg_extreme(argmin, x, axis, keepdims)


def _arg_extreme(extreme: Op[..., Tensor], x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    extreme.check(x)
    axes = normal_axes(extreme.name, None, x.ndim) if axis is None else (normal_axis(extreme.name, axis, x.ndim),)
    _check_nonempty(extreme.name, x, axes)
    values = negative(x) if extreme is argmin else x
    if axis is None:
        values, axes = reshape(values, shape=(x.size,)), (0,)
    place = argmax.apply(values, axis=axes[0])
    shape = _keepdims_shape(x.shape, range(x.ndim) if axis is None else axes)
    return reshape(place, shape=shape) if keepdims else place


argmax.add(Rule("composed", lambda be, x, axis: (be.argmax(x, axis=axis), None)))


@op("x: real -> real")
def cumulative_sum(x: Tensor, axis: int | None = None, *, include_initial: bool = False) -> Tensor:
    """Running sums along one axis, which only a vector may leave out; with `include_initial` they begin with 0.

    Raises:
        ShapeError: no axis is given, and there are several or none.
    """
    cumulative_sum.check(x)
    axis = only_axis("cumulative_sum", axis, x.ndim)
    if include_initial:
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1:])
        x = concat(zeros(shape, x.backend, x.dtype), x, axis=axis)
    return cumulative_sum.apply(x, axis=axis)


cumulative_sum.add(Rule("composed", lambda be, x, axis: (be.cumulative_sum(x, axis), axis),
                        lambda be, axis, gout, needs: (
                            be.flip(be.cumulative_sum(be.flip(gout, axis), axis), axis),)))


@op("x: real -> real")
def logsumexp(x: Tensor, axis: int = -1, *, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) along one axis, without overflow. That of -inf alone is -inf, and has a gradient of 0."""
    logsumexp.check(x)
    return logsumexp.apply(x, axis=_one_axis("logsumexp", x, axis), keepdims=keepdims)


def _logsumexp_forward(be: Backend, x: Array, axis: int, keepdims: bool) -> tuple[Array, Any]:
    top = be.max(x, axis=axis, keepdims=True)
    # A row whose greatest value is infinite would give inf - inf.
    shift = be.where(be.isfinite(top), top, 0.0)
    powers = be.exp(x - shift)
    total = be.sum(powers, axis=axis, keepdims=True)
    is_zero = total == 0
    divisor = be.where(is_zero, 1.0, total)
    log_total = be.where(is_zero, -math.inf, be.log(divisor))
    return _drop(be, log_total + shift, (axis,), keepdims), (powers, divisor)


def _logsumexp_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    powers, divisor = saved
    return (powers * (be.reshape(gout, divisor.shape) / divisor),)


logsumexp.add(Rule("composed", _logsumexp_forward, _logsumexp_vjp))


@op("x: real -> like x")
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along one axis."""
    softmax.check(x)
    return softmax.apply(x, axis=_one_axis("softmax", x, axis))


def _softmax_forward(be: Backend, x: Array, axis: int) -> tuple[Array, Any]:
    e = be.exp(x - be.max(x, axis=axis, keepdims=True))
    y = e / be.sum(e, axis=axis, keepdims=True)
    return y, (y, axis)


def _softmax_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    y, axis = saved
    return (y * (gout - be.sum(gout * y, axis=axis, keepdims=True)),)


softmax.add(Rule("composed", _softmax_forward, _softmax_vjp))


@op("x: real -> real")
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`x - logsumexp(x)` along one axis."""
    log_softmax.check(x)
    return log_softmax.apply(x, axis=_one_axis("log_softmax", x, axis))


def _log_softmax_forward(be: Backend, x: Array, axis: int) -> tuple[Array, Any]:
    z = x - be.max(x, axis=axis, keepdims=True)
    y = z - be.log(be.sum(be.exp(z), axis=axis, keepdims=True))
    return y, (y, axis)


def _log_softmax_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    y, axis = saved
    return (gout - be.exp(y) * be.sum(gout, axis=axis, keepdims=True),)


log_softmax.add(Rule("composed", _log_softmax_forward, _log_softmax_vjp))
