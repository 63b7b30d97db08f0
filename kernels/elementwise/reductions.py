"""Sums, greatest and least values and running sums along neighbouring axes, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.kernels.elementwise.engine import ENGINE, GREATEST, LEAST, SUM, TEXT, Chain, formula_function
from duoln.kernels.elementwise.passes import LEAST_VALUES, PLAIN, are_neighbours, reduce_axes
from duoln.kernels.launch import Launch
from duoln.ops import cumulative_sum, max, min, sum
from duoln.ops.reduce import sum_vjp

_SCAN = "elementwise/scan"
_IS_EXTREME = Chain.of("is_extreme")
_running = Launch(_SCAN, "cumulative_sum", "x: real[*rows, width] -> y: like x")


def _supports(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> str | None:
    if not x.size or not axis:
        return "there are no values or no axes"
    if not are_neighbours(x.shape, axis):
        return "it is for axes beside each other"
    return native.refusal(ENGINE, x.dtype) or native.refusal(TEXT, x.dtype)


def _reduced(how: int, chain: Chain, axis: Sequence[int], *given: Array) -> Array:
    """The sums, or greatest or least, with axes of length 1 in the place of those that went."""
    shape = given[0].shape
    values, _ = reduce_axes(how, chain, shape, axis, *given)
    return values.reshape([1 if k in axis else n for k, n in enumerate(shape)])


def _dropped(kept: Array, axis: Sequence[int], keepdims: bool) -> Array:
    return kept if keepdims else kept.reshape([n for k, n in enumerate(kept.shape) if k not in axis])


def _sum_forward(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    return _dropped(_reduced(SUM, PLAIN, axis, x), axis, keepdims), (x.shape, axis)


def _extreme(how: int) -> Rule:
    """The rule of `max` or `min`, which is one pass, and whose gradient is two."""

    def forward(be: Backend, x: Array, axis: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
        kept = _reduced(how, PLAIN, axis, x)
        return _dropped(kept, axis, keepdims), (x, kept, axis)

    def vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
        x, kept, axis = saved
        share = gout.reshape(kept.shape) / _reduced(SUM, _IS_EXTREME, axis, x, kept)
        return (formula_function("share")(x, kept, share),)

    return Rule("compiled", forward, vjp, _supports, least=LEAST_VALUES)


def _running_supports(be: Backend, x: Array, axis: int) -> str | None:
    if not x.size or axis != x.ndim - 1:
        return "it is for values along the last axis"
    return native.refusal(f"{_SCAN}.cpp", x.dtype)


def _running_forward(be: Backend, x: Array, axis: int) -> tuple[Array, int]:
    return _running[be.name](x), axis


def _running_vjp(be: Backend, axis: int, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (be.flip(_running[be.name](be.flip(gout, axis)), axis),)


SUM_RULE = Rule("compiled", _sum_forward, sum_vjp, _supports, least=LEAST_VALUES)


def attach() -> None:
    """Add the rules."""
    sum.add(SUM_RULE, backend="numpy")
    max.add(_extreme(GREATEST), backend="numpy")
    min.add(_extreme(LEAST), backend="numpy")
    cumulative_sum.add(Rule("compiled", _running_forward, _running_vjp, _running_supports, least=LEAST_VALUES),
                       backend="numpy")
