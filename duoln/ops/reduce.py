"""Reductions along axes, and logsumexp and softmax. Sums and logarithms of values of 16 bits are float32.

Shape:
    `axis` is an int, a tuple of ints or None for all; reduced axes are removed unless `keepdims` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import check_flag
from duoln.core.miscalled import explained
from duoln.errors import ShapeError
from duoln.ops.common import check_beside, check_float, check_tensors, normal_axes, normal_axis

Axis = int | tuple[int, ...] | None


def _kept(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _check_nonempty(name: str, x: Tensor, axes: tuple[int, ...]) -> None:
    if 0 in [x.shape[a] for a in axes]:
        raise ShapeError(f"[{name}] expected at least one value along axis {axes}, found shape {x.shape}")


@op(like=(None,))
def sum(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The sum of float or int32 values, or the number of True values."""
    check_tensors("sum", x)
    axes = normal_axes("sum", axis, x.ndim)
    return sum.apply(x, axis=axes, keepdims=check_flag("sum", "keepdims", keepdims))


def _sum_forward(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    if not axis:
        return (be.astype(x, "int32") if be.dtype(x) == "bool" else x), (x.shape, axis)
    return be.sum(x, axis=axis, keepdims=keepdims), (x.shape, axis)


def _sum_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    shape, axis = saved
    return (be.broadcast_to(be.reshape(gout, _kept(shape, axis)), shape),)


sum.add(Rule("composed", _sum_forward, _sum_vjp))


@explained
def mean(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Arithmetic mean.

    Raises:
        ShapeError: there are no values to average.
    """
    check_float("mean", x)
    check_flag("mean", "keepdims", keepdims)
    axes = normal_axes("mean", axis, x.ndim)
    _check_nonempty("mean", x, axes)
    return sum(x, axis=axes, keepdims=keepdims) * (1.0 / prod(x.shape[a] for a in axes))


def _extreme(name: str, x: Tensor, axis: Axis, keepdims: bool = False) -> tuple[int, ...]:
    check_float(name, x)
    check_flag(name, "keepdims", keepdims)
    axes = normal_axes(name, axis, x.ndim)
    _check_nonempty(name, x, axes)
    return axes


def _one_axis(name: str, x: Tensor, axis: int, keepdims: bool = False) -> int:
    check_float(name, x)
    check_flag(name, "keepdims", keepdims)
    axis = normal_axis(name, axis, x.ndim)
    _check_nonempty(name, x, (axis,))
    return axis


@op
def max(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Greatest value; equal greatest values share the gradient evenly."""
    return max.apply(x, axis=_extreme("max", x, axis, keepdims), keepdims=keepdims)


@op
def min(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Smallest value; equal smallest values share the gradient evenly."""
    return min.apply(x, axis=_extreme("min", x, axis, keepdims), keepdims=keepdims)


def _max_forward(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    kept = be.max(x, axis=axis, keepdims=True) if axis else x
    return _drop(be, kept, axis, keepdims), (x, kept, axis)


def _min_forward(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    kept = be.min(x, axis=axis, keepdims=True) if axis else x
    return _drop(be, kept, axis, keepdims), (x, kept, axis)


def _drop(be: Backend, kept: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    if keepdims or not axis:
        return kept
    return be.reshape(kept, tuple(n for i, n in enumerate(kept.shape) if i not in axis))


def _extreme_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    x, kept, axis = saved
    chosen = be.astype(x == kept, be.dtype(x))
    count = be.sum(chosen, axis=axis, keepdims=True) if axis else chosen
    return (chosen * (be.reshape(gout, kept.shape) / count),)


max.add(Rule("composed", _max_forward, _extreme_vjp))
min.add(Rule("composed", _min_forward, _extreme_vjp))


@op
def all(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Whether every bool along the axes is True."""
    check_beside("all", "x", x, "bool", x)
    check_flag("all", "keepdims", keepdims)
    return all.apply(x, axis=normal_axes("all", axis, x.ndim), keepdims=keepdims)


all.add(Rule("composed", lambda be, x, axis, keepdims: (be.all(x, axis=axis, keepdims=keepdims), None)))


@op
def any(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Whether at least one bool along the axes is True."""
    check_beside("any", "x", x, "bool", x)
    check_flag("any", "keepdims", keepdims)
    return any.apply(x, axis=normal_axes("any", axis, x.ndim), keepdims=keepdims)


any.add(Rule("composed", lambda be, x, axis, keepdims: (be.any(x, axis=axis, keepdims=keepdims), None)))


@op
def argmax(x: Tensor, axis: int = -1) -> Tensor:
    """Index of the first greatest value along one axis, as int32."""
    return argmax.apply(x, axis=_one_axis("argmax", x, axis))


argmax.add(Rule("composed", lambda be, x, axis: (be.argmax(x, axis=axis), None)))


@op(like=(None,))
def cumsum(x: Tensor, axis: int) -> Tensor:
    """Running sum along one axis."""
    check_float("cumsum", x)
    return cumsum.apply(x, axis=normal_axis("cumsum", axis, x.ndim))


def _cumsum_forward(be: Backend, x: Array, axis: int) -> tuple[Array, Any]:
    return be.cumulative_sum(x, axis), axis


def _cumsum_vjp(be: Backend, axis: int, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (be.flip(be.cumulative_sum(be.flip(gout, axis), axis), axis),)


cumsum.add(Rule("composed", _cumsum_forward, _cumsum_vjp))


@op(like=(None,))
def logsumexp(x: Tensor, axis: int = -1, *, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) along one axis, without overflow."""
    axis = _one_axis("logsumexp", x, axis, keepdims)
    return logsumexp.apply(x, axis=axis, keepdims=keepdims)


def _logsumexp_forward(be: Backend, x: Array, axis: int, keepdims: bool) -> tuple[Array, Any]:
    top = be.max(x, axis=axis, keepdims=True)
    # A row whose greatest value is infinite would give inf - inf.
    shift = be.where(be.isfinite(top), top, 0.0)
    powers = be.exp(x - shift)
    total = be.sum(powers, axis=axis, keepdims=True)
    log_total = be.where(total > 0, be.log(be.where(total > 0, total, 1.0)), -inf)
    return _drop(be, log_total + shift, (axis,), keepdims), (powers, total)


def _logsumexp_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    powers, total = saved
    return (powers * (be.reshape(gout, total.shape) / total),)


logsumexp.add(Rule("composed", _logsumexp_forward, _logsumexp_vjp))


@op
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along one axis."""
    return softmax.apply(x, axis=_one_axis("softmax", x, axis))


def _softmax_forward(be: Backend, x: Array, axis: int) -> tuple[Array, Any]:
    e = be.exp(x - be.max(x, axis=axis, keepdims=True))
    y = e / be.sum(e, axis=axis, keepdims=True)
    return y, (y, axis)


def _softmax_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    y, axis = saved
    return (y * (gout - be.sum(gout * y, axis=axis, keepdims=True)),)


softmax.add(Rule("composed", _softmax_forward, _softmax_vjp))


@op(like=(None,))
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`x - logsumexp(x)` along one axis."""
    return log_softmax.apply(x, axis=_one_axis("log_softmax", x, axis))


def _log_softmax_forward(be: Backend, x: Array, axis: int) -> tuple[Array, Any]:
    z = x - be.max(x, axis=axis, keepdims=True)
    y = z - be.log(be.sum(be.exp(z), axis=axis, keepdims=True))
    return y, (y, axis)


def _log_softmax_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    y, axis = saved
    return (gout - be.exp(y) * be.sum(gout, axis=axis, keepdims=True),)


log_softmax.add(Rule("composed", _log_softmax_forward, _log_softmax_vjp))
