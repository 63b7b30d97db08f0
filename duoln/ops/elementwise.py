"""Elementwise operators.

Shape:
    Two-argument operators broadcast as NumPy does. `operands` describes which dtypes and numbers may be combined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import numpy as np

from duoln.backends.protocol import REALS, Array, Backend
from duoln.core import Op, Rule, Tensor, op
from duoln.core.arguments import ABOVE_0, FINITE, NOT_NAN, Above0, Finite, check_number
from duoln.core.pytorch_names import hinted
from duoln.core.spec import check_beside, check_float, check_tensors
from duoln.core.step.repeated import repeated
from duoln.core.tensor import Operand
from duoln.errors import ShapeError, UsageError
from duoln.ops.common import broadcast_shape, check_dtype, unbroadcast
from duoln.ops.operands import operands

Value = Callable[[Backend, Array], Array]
Slope = Callable[..., Array]


def _unary(name: str, doc: str, value: Value, keeps: Literal["x", "y", "xy", ""] = "", slope: Slope | None = None,
           spec: str = "x: real[*shape] -> like x") -> Op[[Tensor], Tensor]:
    """An op of one float tensor.

    Args:
        name, doc: name and docstring of the op.
        value: `y = value(be, x)`.
        keeps: what the tape keeps, because the slope is computed from it: the input, the output, both or nothing.
        slope: `slope(be, kept, gout)`, the gradient of x; None if there is no gradient.
        spec: the declaration of the op.
    """

    def function(x: Tensor) -> Tensor:
        """`doc` describes it."""

    def forward(be: Backend, x: Array) -> tuple[Array, Any]:
        y = value(be, x)
        return y, (x if keeps == "x" else y if keeps == "y" else (x, y) if keeps else None)

    def vjp(be: Backend, kept: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
        assert slope is not None
        return (slope(be, kept, gout),)

    made = Op(function, spec, name, doc)
    made.add(Rule("composed", forward, vjp if slope else None))
    return made


def _zero(be: Backend, kept: None, g: Array) -> Array:
    return be.zeros(g.shape, be.dtype(g))


_ENOUGH = {"float32": 88.0, "float64": 709.0}
"""No power up to that of this number is infinite."""


def logistic(be: Backend, x: Array) -> tuple[Array, Array]:
    """The sigmoid e^x / (1 + e^x) of a native array, and 1 + e^x, for a power without overflow.

    In this form it keeps its digits where it is small, and divided by 1 + e^x it is its slope, also where it is near 1.
    """
    power = be.exp(be.minimum(x, _ENOUGH[be.dtype(x)]))
    whole = power + 1.0
    return power / whole, whole


def _softplus(be: Backend, x: Array) -> Array:
    return be.maximum(x, 0.0) + be.log1p(be.exp(-be.abs(x)))


def _tanh_slope(be: Backend, x: Array, g: Array) -> Array:
    """1 / cosh(x)^2, which keeps the digits that 1 - tanh(x)^2 loses."""
    power = be.exp(-2.0 * be.abs(x))
    whole = power + 1.0
    return g * (4.0 * power / (whole * whole))


abs = _unary("abs", "Absolute value; the gradient at 0 is 0.", lambda be, x: be.abs(x),
             "x", lambda be, x, g: g * be.sign(x))
ceil = _unary("ceil", "The smallest integer that is at least x; the gradient is 0.", lambda be, x: -be.floor(-x),
              "", _zero)
cos = _unary("cos", "Cosine.", lambda be, x: be.cos(x), "x", lambda be, x, g: -g * be.sin(x))
exp = _unary("exp", "Exponential.", lambda be, x: be.exp(x), "y", lambda be, y, g: g * y)
expm1 = _unary("expm1", "exp(x) - 1, exact near 0.", lambda be, x: be.expm1(x), "x", lambda be, x, g: g * be.exp(x))
floor = _unary("floor", "The greatest integer that is at most x; the gradient is 0.", lambda be, x: be.floor(x),
               "", _zero)
log = _unary("log", "Natural logarithm.", lambda be, x: be.log(x), "x", lambda be, x, g: g / x)
log1p = _unary("log1p", "log(1 + x), exact near 0.", lambda be, x: be.log1p(x), "x", lambda be, x, g: g / (1 + x))
negative = _unary("negative", "-x.", lambda be, x: -x, "", lambda be, kept, g: -g)
relu = _unary("relu", "max(x, 0); the gradient at 0 and at NaN is 0.", lambda be, x: be.maximum(x, 0.0),
              "y", lambda be, y, g: be.where(y > 0, g, 0.0))
round = _unary("round", "The nearest integer, the even one at a tie; the gradient is 0.", lambda be, x: be.round(x),
               "", _zero)
rsqrt = _unary("rsqrt", "1 / sqrt(x).", lambda be, x: 1.0 / be.sqrt(x),
               "xy", lambda be, xy, g: -0.5 * g / xy[0] * xy[1])  # the cube of the root would overflow
sign = _unary("sign", "-1, 0 or 1; the gradient is 0.", lambda be, x: be.sign(x), "", _zero)
sin = _unary("sin", "Sine.", lambda be, x: be.sin(x), "x", lambda be, x, g: g * be.cos(x))
softplus = _unary("softplus", "log(1 + exp(x)), finite for every x.", _softplus,
                  "x", lambda be, x, g: g * logistic(be, x)[0])
sqrt = _unary("sqrt", "Square root.", lambda be, x: be.sqrt(x), "y", lambda be, y, g: 0.5 * g / y)
square = _unary("square", "x * x.", lambda be, x: x * x, "x", lambda be, x, g: 2.0 * g * x)
tanh = _unary("tanh", "Hyperbolic tangent.", lambda be, x: be.tanh(x), "x", _tanh_slope)
_TO_BOOLS = "x: real[*shape] -> bool[*shape]"
isfinite = _unary("isfinite", "True where a value is finite.", lambda be, x: be.isfinite(x), spec=_TO_BOOLS)
isinf = _unary("isinf", "True where a value is infinite.", lambda be, x: be.abs(x) == math.inf, spec=_TO_BOOLS)
isnan = _unary("isnan", "True where a value is NaN.", lambda be, x: be.logical_not(be.abs(x) <= math.inf),
               spec=_TO_BOOLS)
signbit = _unary("signbit", "True where the sign is minus, also that of -0 and of NaN.", lambda be, x: be.signbit(x),
                 spec=_TO_BOOLS)


@op("x: real[*shape] -> like x")
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), finite for every x. Small values and slopes have all their digits."""


def _sigmoid_forward(be: Backend, x: Array) -> tuple[Array, tuple[Array, Array]]:
    y, whole = logistic(be, x)
    return y, (y, whole)


sigmoid.add(Rule("composed", _sigmoid_forward, lambda be, kept, gout, needs: (gout * (kept[0] / kept[1]),)))


@op("x: real[*shape] -> like x")
def leaky_relu(x: Tensor, slope: Finite = 0.01) -> Tensor:
    """The value x where it is positive, slope * x elsewhere."""


leaky_relu.add(Rule("composed", lambda be, x, slope: (be.where(x > 0, x, slope * x), (x, slope)),
                    lambda be, kept, gout, needs: (be.where(kept[0] > 0, gout, kept[1] * gout),)))


def binary(name: str, doc: str, value: Callable[[Backend, Any, Any], Array],
            slope_x: Slope | None = None, slope_y: Slope | None = None, reads: tuple[str, str] = ("", ""),
            ) -> Op[[Operand, Operand], Tensor]:
    """An op of two broadcast arguments.

    Args:
        name, doc: name and docstring of the op.
        value: `value(be, x, y)`.
        slope_x, slope_y: `slope(be, x, y, gout)`, the gradients before they are summed over broadcast axes.
        reads: for each slope, which of x and y it reads; it gets None for an argument that it does not read, and the
            tape keeps only arguments that a slope reads.
    """

    def function(x: Operand, y: Operand) -> Tensor:
        if not (type(x) is Tensor and type(y) is Tensor and x.backend is y.backend and x.data.dtype == y.data.dtype
                and x.data.shape == y.data.shape and x.data.dtype in x.backend.wide):
            x, y = operands(name, x, y)
        return made.apply(x, y)

    made = Op(function, None, name, doc)
    made.add(_broadcast_rule(value, slope_x, slope_y, reads))
    return made


def _broadcast_rule(value: Callable[[Backend, Any, Any], Array], slope_x: Slope | None, slope_y: Slope | None,
                    reads: tuple[str, str]) -> Rule:
    """The composed rule of two broadcast arguments; the arguments are those of `binary`."""
    for_x, for_y = (tuple([name in read for name in ("x", "y")]) for read in reads)

    def forward(be: Backend, x: Array | float, y: Array | float) -> tuple[Array, Any]:
        x_shape, y_shape = getattr(x, "shape", None), getattr(y, "shape", None)
        has_x, has_y = x_shape is not None, y_shape is not None  # a number has no gradient, so nothing is kept for it
        return value(be, x, y), (x if (has_x and for_x[0]) or (has_y and for_y[0]) else None,
                                 y if (has_x and for_x[1]) or (has_y and for_y[1]) else None, x_shape, y_shape)

    def vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
        x, y, *shapes = saved
        assert slope_x is not None and slope_y is not None
        return (unbroadcast(be, slope_x(be, x, y, gout), shapes[0]) if needs[0] else None,
                unbroadcast(be, slope_y(be, x, y, gout), shapes[1]) if needs[1] else None)

    return Rule("composed", forward, vjp if slope_x else None)


def _extremum_gradient(be: Backend, mine: Array, theirs: Array | float, g: Array,
                       wins: Callable[[Any, Any], Array]) -> Array:
    """The gradient of the argument that max or min has chosen; of two equal arguments each gets half.

    Beside a NaN neither wins, and each gets all of it.
    """
    return be.where(wins(theirs, mine), 0.0, be.where(mine == theirs, 0.5 * g, g))


def _slope_of_divisor(be: Backend, x: Array | float, y: Array, g: Array) -> Array:
    """Gradient -g x / y^2. The square of y would overflow, so would g / y or g (x / y) beside the other factor: a small
    x / y is the first one, a large x / y the last one.
    """
    ratio = x / y
    is_small = be.abs(ratio) < 1.0
    return -(g * be.where(is_small, ratio, 1.0) / y * be.where(is_small, 1.0, ratio))


def _exact_int32(name: str, value: Callable[[Any, Any], Array]) -> Callable[[Backend, Any, Any], Array]:
    """`value` of two arguments, which for int32 does not wrap round."""

    def compute(be: Backend, x: Array | float, y: Array | float) -> Array:
        array: Array = x if hasattr(x, "dtype") else y
        if array.dtype in be.wide or be.dtype(array) != "int32":
            return value(x, y)
        return be.exactly(x, y, name=name, compute=value)

    return compute


add = binary("add", "x + y.", _exact_int32("add", lambda x, y: x + y), lambda be, x, y, g: g, lambda be, x, y, g: g)
subtract = binary("subtract", "x - y.", _exact_int32("subtract", lambda x, y: x - y), lambda be, x, y, g: g,
                   lambda be, x, y, g: -g)
multiply = binary("multiply", "x * y.", _exact_int32("multiply", lambda x, y: x * y), lambda be, x, y, g: g * y,
                   lambda be, x, y, g: g * x, ("y", "x"))
divide = binary("divide", "x / y.", lambda be, x, y: x / y, lambda be, x, y, g: g / y, _slope_of_divisor, ("y", "xy"))
maximum = binary("maximum", "The greater; at a tie each gets half the gradient, beside a NaN all of it.",
                  lambda be, x, y: be.maximum(x, y) if not isinstance(x, int | float) else be.maximum(y, x),
                  lambda be, x, y, g: _extremum_gradient(be, x, y, g, lambda a, b: a > b),
                  lambda be, x, y, g: _extremum_gradient(be, y, x, g, lambda a, b: a > b), ("xy", "xy"))
minimum = binary("minimum", "The smaller; at a tie each gets half the gradient, beside a NaN all of it.",
                  lambda be, x, y: be.minimum(x, y) if not isinstance(x, int | float) else be.minimum(y, x),
                  lambda be, x, y, g: _extremum_gradient(be, x, y, g, lambda a, b: a < b),
                  lambda be, x, y, g: _extremum_gradient(be, y, x, g, lambda a, b: a < b), ("xy", "xy"))
equal = binary("equal", "Where the values are equal, as bool.", lambda be, x, y: x == y)
not_equal = binary("not_equal", "Where the values differ, as bool.", lambda be, x, y: x != y)
less = binary("less", "x < y, as bool.", lambda be, x, y: x < y)
less_equal = binary("less_equal", "x <= y, as bool.", lambda be, x, y: x <= y)
greater = binary("greater", "x > y, as bool.", lambda be, x, y: x > y)
greater_equal = binary("greater_equal", "x >= y, as bool.", lambda be, x, y: x >= y)


@op
def pow(x: Operand, exponent: Operand) -> Tensor:
    """The power x ** exponent of float tensors, of which one may be a number.

    Below 0 a power is NaN unless the exponent is an integer, and there and at 0 the exponent's gradient is 0.

    Raises:
        DtypeError: they are not floats of one dtype. UsageError: the base is a number, but not above 0, or the exponent
            is one that is not finite. ShapeError: the shapes do not broadcast.
    """
    if not isinstance(exponent, Tensor):
        exponent = check_number("pow", "exponent", exponent, FINITE)
    if not isinstance(x, Tensor):
        x = check_number("pow", "base", x, ABOVE_0)
    x, exponent = operands("pow", x, exponent)
    if type(exponent) is float and exponent == 2.0:
        return square.apply(x)
    return pow.apply(x, exponent)


def _slope_of_base(be: Backend, x: Array, y: Array | float, g: Array) -> Array:
    """Gradient y x^(y - 1); for an exponent of 0 it is 0, also at x = 0."""
    if isinstance(y, int | float):
        return be.zeros(g.shape, be.dtype(g)) if y == 0 else g * (y * x ** (y - 1))
    return g * (y * x ** (be.where(y == 0.0, 1.0, y) - 1.0))


def _slope_of_exponent(be: Backend, x: Array | float, y: Array, g: Array) -> Array:
    """Gradient x^y log(x) where x is above 0."""
    if isinstance(x, int | float):
        return g * (x ** y * math.log(x))
    base = be.where(x <= 0.0, 1.0, x)  # 0 to a power below 0 is infinite, and 0 times that is not 0
    return g * (base ** y * be.log(base))


def _power(be: Backend, x: Array | float, y: Array | float) -> Array:
    if isinstance(y, float) and y == 0.5:  # NumPy takes the square root, which for -0 and -inf is another one
        return cast(Array, be.where(x == -math.inf, math.inf, x) ** y + 0.0)
    return cast(Array, x ** y)


pow.add(_broadcast_rule(_power, _slope_of_base, _slope_of_exponent, ("xy", "xy")))


def _bools(name: str, x: Operand, y: Operand) -> tuple[Operand, Operand]:
    for role, value, second in (("x", x, y), ("y", y, x)):
        if not isinstance(value, bool | np.bool_):
            like = second if isinstance(second, Tensor) else value
            check_beside(name, role, cast(Tensor, value), "bool", cast(Tensor, like))
    return operands(name, x, y)


@op
def logical_and(x: Operand, y: Operand) -> Tensor:
    """True where both of two bool tensors are True; one of them may be True or False."""
    return logical_and.apply(*_bools("logical_and", x, y))


@op
def logical_or(x: Operand, y: Operand) -> Tensor:
    """True where at least one of two bool tensors is True; one of them may be True or False."""
    return logical_or.apply(*_bools("logical_or", x, y))


@op("x: bool[*shape]")
def logical_not(x: Tensor) -> Tensor:
    """True where a bool tensor is False."""


logical_and.add(Rule("composed", lambda be, x, y: (be.logical_and(x, y), None)))
logical_or.add(Rule("composed", lambda be, x, y: (be.logical_or(x, y), None)))
logical_not.add(Rule("composed", lambda be, x: (be.logical_not(x), None)))


@hinted
def clip(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Values below `min` become `min`, and values above `max` become `max`; None is no bound.

    A bound is a number, or a float tensor that broadcasts to the shape of `x`. The gradient of `x` is 0 outside the
    bounds and half of `gout` at a bound; that of a tensor that bounds is the rest.

    Raises:
        DtypeError: `x` is not a float tensor, or a bound is neither a number nor such a tensor.
        UsageError: of two numbers `min` is above `max`, or one is NaN. ShapeError: a bound's shape does not fit.
    """
    check_float("clip", x)
    low, high = _bound("min", x, min), _bound("max", x, max)
    if isinstance(low, float) and isinstance(high, float) and low > high:
        raise UsageError(f"[clip] expected min of at most max, found {low} and {high}")
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def _bound(role: str, x: Tensor, bound: Operand | None) -> Tensor | float | None:
    """A bound of `clip` after its checks; None if it bounds nothing."""
    if not isinstance(bound, Tensor):
        number = None if bound is None else float(check_number("clip", role, bound, NOT_NAN))
        return None if number in (None, -math.inf if role == "min" else math.inf) else number
    check_float("clip", x, bound)
    if broadcast_shape("clip", x.shape, bound.shape) != x.shape:
        raise ShapeError(f"[clip] {role}: expected a shape that broadcasts to {x.shape}, found {bound.shape}")
    return bound


@op
def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """`x` where the bool `condition` is True, else `y`; gradients flow to the chosen argument only.

    The other one gets the gradient 0, which an operator before it multiplies by its slope: where that is infinite, as
    log's at 0, the product is NaN. Choose before such an operator too: where(x > 0, log(where(x > 0, x, 1.0)), 0.0).
    """
    x, y = operands("where", x, y)
    check_beside("where", "condition", condition, "bool", x if isinstance(x, Tensor) else cast(Tensor, y))
    broadcast_shape("where", *(a.shape for a in (condition, x, y) if isinstance(a, Tensor)))
    return where.apply(condition, x, y)


def _where_forward(be: Backend, condition: Array, x: Array | float, y: Array | float) -> tuple[Array, Any]:
    shapes = [getattr(a, "shape", None) for a in (x, y)]
    return be.where(condition, x, y), (condition, shapes)


def _where_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    condition, (x_shape, y_shape) = saved
    return (None,
            unbroadcast(be, be.where(condition, gout, 0.0), x_shape) if needs[1] else None,
            unbroadcast(be, be.where(condition, 0.0, gout), y_shape) if needs[2] else None)


where.add(Rule("composed", _where_forward, _where_vjp))


@op
def astype(x: Tensor, dtype: str) -> Tensor:
    """The values as another dtype; a gradient flows between float dtypes only. Floats lose their fractions in int32.

    Raises:
        DtypeError: the backend has no such dtype; on NumPy, int32 does not hold a value, as NaN. On a device that would
            have to wait, NaN is then 0, and another value the nearest number that int32 holds.
    """
    check_tensors("astype", x)
    dtype = check_dtype("astype", dtype, x.backend)
    if x.dtype == dtype:
        return x
    if x.dtype in REALS and dtype in REALS:
        return astype.apply(x, dtype=dtype)
    return Tensor(repeated(x.backend.astype, x.data, dtype), x.backend)


def widened(x: Tensor) -> Tensor:
    """The values in float32 if they are stored in 16 bits, else as they are."""
    return astype.apply(x, dtype="float32") if x.data.dtype in x.backend.narrow else x


def stored_as(x: Tensor, like: Tensor) -> Tensor:
    """The floats in the dtype of another tensor."""
    return x if x.data.dtype == like.data.dtype else astype.apply(x, dtype=like.dtype)


astype.add(Rule("composed", lambda be, x, dtype: (be.astype(x, dtype), be.dtype(x)),
                lambda be, before, gout, needs: (be.astype(gout, before),), stored=(0,)))


@op("x: real[*shape] -> like x")
def clip_gradient(x: Tensor, *, limit: Above0) -> Tensor:
    """`x` itself, with each entry of its gradient kept within -limit .. limit.

    Between the time steps of a recurrent network it bounds the gradient that flows back in time, as in Graves (2013,
    section 2.1). It differs from the clipping of weight gradients after the pullback (see `duoln.optim`). Where the
    limit is reached, the result is not the derivative of a function.

    Shape:
        x (...) -> the same.

    Raises:
        UsageError: the limit is not a finite number above 0.
    """


clip_gradient.add(Rule("composed", lambda be, x, limit: (x, limit),
                       lambda be, limit, gout, needs: (be.minimum(be.maximum(gout, -limit), limit),)))
