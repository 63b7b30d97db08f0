"""Operators of two arguments that need more than a line. `add` and `divide` are in `elementwise`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Op, Tensor
from duoln.core.tensor import Operand
from duoln.errors import DtypeError
from duoln.ops.common import scale_of
from duoln.ops.elementwise import binary, logistic


def _numbers_to_arrays(value: Callable[..., Array]) -> Callable[..., Array]:
    """`value(be, x, y)`, or a slope with `gout` too, for two arguments of which one may be a number."""

    def compute(be: Backend, x: Array | float, y: Array | float, *gout: Array) -> Array:
        if not hasattr(x, "dtype"):
            x = be.full((), x, be.dtype(y))
        return value(be, x, y if hasattr(y, "dtype") else be.full((), y, be.dtype(x)), *gout)

    return compute


def _parts_of_quotient(be: Backend, x: Array, y: Array) -> tuple[Array, Array]:
    """The remainder of x / y for a quotient that is rounded towards 0, and where floor division takes one more away."""
    rest = be.fmod(x, y)
    return rest, be.logical_and(rest != 0.0, (rest < 0.0) != (y < 0.0))


def _floor_quotient(be: Backend, x: Array, y: Array) -> Array:
    """The floor of x / y. The rounded x / y may be the integer above it, so the remainder is taken away first."""
    rest, is_below = _parts_of_quotient(be, x, y)
    quotient, ratio = (x - rest) / y, x / y
    whole = be.round(be.where(is_below, quotient - 1.0, quotient))
    whole = be.where(whole == 0.0, be.where(x == 0.0, ratio, 0.0), whole)
    is_plain = be.logical_and(be.logical_and(be.isfinite(x), be.isfinite(y)), y != 0.0)
    return be.where(is_plain, whole, be.floor(ratio))


def _remainder(be: Backend, x: Array, y: Array) -> Array:
    rest, is_below = _parts_of_quotient(be, x, y)
    zero = be.where(be.signbit(y), -0.0, 0.0)
    return be.where(rest == 0.0, be.astype(zero, be.dtype(x)), be.where(is_below, rest + y, rest))


def _division_value(name: str, of_floats: Callable[..., Array], of_integers: Callable[[Any, Any], Array],
             ) -> Callable[[Backend, Any, Any], Array]:
    """A division of two arguments, whose divisor of int32 must not be 0."""
    floats = _numbers_to_arrays(of_floats)

    def compute(be: Backend, x: Array | float, y: Array | float) -> Array:
        if be.dtype(x if hasattr(x, "dtype") else y) != "int32":
            return floats(be, x, y)
        if isinstance(y, int) and y:
            return be.exactly(x, y, name=name, compute=of_integers)
        is_zero = y == 0
        if is_zero is True or be.stray_index(be.astype(is_zero, "int32"), 0, 1) is not None:
            raise DtypeError(f"[{name}] expected divisors of int32 other than 0, found 0; convert to a float dtype "
                             "with astype")
        quotient = be.exactly(x, be.where(is_zero, be.ones((), "int32"), y), name=name, compute=of_integers)
        return be.where(is_zero, be.zeros((), "int32"), quotient)

    return compute


floor_divide = binary(
    "floor_divide", "The greatest integer that is at most x / y; the gradient is 0. A divisor 0 of int32 is refused "
    "by NumPy, and gives 0 on a device.",
    _division_value("floor_divide", _floor_quotient, lambda x, y: x // y),
    lambda be, x, y, g: be.zeros(g.shape, be.dtype(g)), lambda be, x, y, g: be.zeros(g.shape, be.dtype(g)))
remainder = binary(
    "remainder", "x - y * floor_divide(x, y), with the sign of y, as Python's x % y. A divisor 0 of int32 is refused "
    "by NumPy, and gives 0 on a device.", _division_value("remainder", _remainder, lambda x, y: x % y),
    lambda be, x, y, g: g, lambda be, x, y, g: -g * _numbers_to_arrays(_floor_quotient)(be, x, y), ("", "xy"))


def _hypotenuse(be: Backend, x: Array, y: Array) -> Array:
    """The length of (x, y). The greater size is taken out, because squares overflow or vanish."""
    x, y = be.abs(x), be.abs(y)
    greatest, least = be.maximum(x, y), be.minimum(x, y)
    ratio = least / scale_of(be, greatest)
    is_infinite = be.logical_or(x == math.inf, y == math.inf)
    return be.where(is_infinite, math.inf, greatest * be.sqrt(1.0 + ratio * ratio))


def _slope_of_leg(be: Backend, x: Array, y: Array, g: Array) -> Array:
    """The gradient g x / hypot(x, y), 0 where both are 0."""
    length = _hypotenuse(be, x, y)
    return g * be.where(be.abs(x) == length, be.sign(x), x / be.where(length == 0.0, 1.0, length))


def _log_of_sum(be: Backend, x: Array, y: Array) -> Array:
    is_equal = x == y  # also two infinities, whose difference is NaN
    distance = be.abs(be.where(is_equal, 0.0, x) - be.where(is_equal, 0.0, y))
    return be.maximum(x, y) + be.log1p(be.exp(-distance))


def _logaddexp_slope(be: Backend, x: Array, y: Array, g: Array) -> Array:
    """The gradient g e^x / (e^x + e^y), 0 where both powers are 0."""
    is_equal = x == y
    share = logistic(be, be.where(is_equal, 0.0, x) - be.where(is_equal, 0.0, y))[0]
    return g * be.where(be.maximum(x, y) == -math.inf, 0.0, share)


hypot = binary(
    "hypot", "The square root of x^2 + y^2, without overflow of the squares; the gradient at (0, 0) is 0.",
    _numbers_to_arrays(_hypotenuse), _numbers_to_arrays(_slope_of_leg),
    _numbers_to_arrays(lambda be, x, y, g: _slope_of_leg(be, y, x, g)), ("xy", "xy"))
logaddexp = binary(
    "logaddexp", "log(exp(x) + exp(y)), without overflow of the powers.",
    _numbers_to_arrays(_log_of_sum), _numbers_to_arrays(_logaddexp_slope),
    _numbers_to_arrays(lambda be, x, y, g: _logaddexp_slope(be, y, x, g)), ("xy", "xy"))

_MADE_HERE: tuple[Op[[Operand, Operand], Tensor], ...] = (floor_divide, remainder, hypot, logaddexp)
for each in _MADE_HERE:  # so that they pickle by their name here
    each.__module__ = __name__
