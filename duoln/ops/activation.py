"""The error function, and activations that need more than a line. `relu`, `tanh` and `sigmoid` are in `elementwise`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import Above0
from duoln.ops.elementwise import logistic

GeluForm = Literal["none", "tanh"]

# Cody 1969, Rational Chebyshev approximations for the error function, the two of its tables that erf needs; highest
# power first. The second one goes on from 4 to 6, where 1 - erf is below a unit in the last place of float64.
_NEAR = ((1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
          3.20937758913846947e3),
         (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3))
_FAR = ((2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
         2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
         1.23033935479799725e3),
        (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
         3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3))
_BORDER, _END = 0.5, 27.0


@op("x: real[*shape] -> like x")
def erf(x: Tensor) -> Tensor:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x; to 4 units in the last place."""


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    y = coefficients[0] * x + coefficients[1]
    for coefficient in coefficients[2:]:
        y = y * x + coefficient
    return y


def _ratio(table: tuple[Sequence[float], Sequence[float]], x: Array) -> Array:
    return _polynomial(table[0], x) / _polynomial(table[1], x)


def _bell(be: Backend, x: Array, width: float) -> Array:
    """exp(-width x^2). The rounding of a large square would cost digits, so x is split: the square of its part in
    multiples of 1/256 is exact.
    """
    size = be.minimum(be.abs(x), 2 * _END)
    part = be.round(size * 256.0) * 0.00390625
    return be.exp(-width * (part * part)) * be.exp(-width * ((size - part) * (size + part)))


def _near_and_far(be: Backend, size: Array, bell: Array) -> tuple[Array, Array]:
    """From |x| and exp(-x^2): erf where |x| is below the border, and 1 - erf above it, with all its digits."""
    near = be.minimum(size, _BORDER)
    return near * _ratio(_NEAR, near * near), bell * _ratio(_FAR, be.minimum(size, _END))


def _erf_forward(be: Backend, x: Array) -> tuple[Array, Array]:
    size, bell = be.abs(x), _bell(be, x, 1.0)
    near, rest = _near_and_far(be, size, bell)
    return be.sign(x) * be.where(size < _BORDER, near, 1.0 - rest), bell


erf.add(Rule("composed", _erf_forward,
             lambda be, bell, gout, needs: (gout * (2 / math.sqrt(math.pi) * bell),)))


@op("x: real[*shape] -> like x")
def gelu(x: Tensor, *, approximate: GeluForm = "none") -> Tensor:
    """The value x Phi(x), where Phi is the distribution function of the standard Gaussian (Hendrycks and Gimpel 2016).

    Args:
        x: the input.
        approximate: "none" computes Phi by the error function; "tanh" is the paper's approximation,
            Phi(x) = (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, which some published models have. Its small
            values have the relative error of the cube's rounding, which grows with the cube.
    """


_SCALE, _CUBIC = math.sqrt(2 / math.pi), 0.044715
_ZERO_BELOW = -1e4
"""Below it a distribution function is 0. The product of an infinite x and 0 would be NaN."""


def _gelu_forward(be: Backend, x: Array, approximate: GeluForm) -> tuple[Array, Any]:
    x = be.maximum(x, _ZERO_BELOW)
    if approximate == "tanh":  # (1 + tanh(u)) / 2 is the sigmoid of 2 u
        phi, of_slope = logistic(be, 2 * _SCALE * (x + _CUBIC * (x * x * x)))
    else:
        of_slope = _bell(be, x, 0.5)
        size = be.abs(x) * math.sqrt(0.5)
        near, rest = _near_and_far(be, size, of_slope)
        far = 0.5 * rest
        phi = be.where(size < _BORDER, 0.5 + 0.5 * be.sign(x) * near, be.where(x < 0, far, 1.0 - far))
    return x * phi, (x, phi, of_slope)


def _gelu_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool], *, approximate: GeluForm) -> tuple[Array]:
    x, phi, of_slope = saved
    x = be.minimum(x, -_ZERO_BELOW)
    if approximate == "tanh":
        density = phi / of_slope * (2 * _SCALE + 6 * _SCALE * _CUBIC * (x * x))
    else:
        density = of_slope * (1 / math.sqrt(2 * math.pi))
    return (gout * (phi + x * density),)


gelu.add(Rule("composed", _gelu_forward, _gelu_vjp))


@op("x: real[*shape] -> like x")
def silu(x: Tensor) -> Tensor:
    """The value x sigmoid(x), also called swish (Elfwing et al. 2017)."""


def _silu_forward(be: Backend, x: Array) -> tuple[Array, Any]:
    x = be.maximum(x, _ZERO_BELOW)
    gate, whole = logistic(be, x)
    return x * gate, (x, gate, whole)


def _silu_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    x, gate, whole = saved
    return (gout * (gate + be.minimum(x, -_ZERO_BELOW) * (gate / whole)),)


silu.add(Rule("composed", _silu_forward, _silu_vjp))


@op("x: real[*shape] -> like x")
def elu(x: Tensor, alpha: Above0 = 1.0) -> Tensor:
    """The value x where it is positive, alpha (exp(x) - 1) elsewhere (Clevert et al. 2015)."""


elu.add(Rule("composed", lambda be, x, alpha: (be.where(x > 0, x, alpha * be.expm1(be.minimum(x, 0.0))), x),
             lambda be, x, gout, needs, *, alpha: (
                 be.where(x > 0, gout, gout * (alpha * be.exp(be.minimum(x, 0.0)))),)))
