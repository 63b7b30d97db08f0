"""The error function, and activations that need more than a line. `relu`, `tanh` and `sigmoid` are in `elementwise`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import ABOVE_0, check_choice, check_number
from duoln.ops.common import check_float
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
_BORDER, _END = 0.5, 6.0


@op
def erf(x: Tensor) -> Tensor:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x; to 4 units in the last place."""
    check_float("erf", x)
    return erf.apply(x)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    y = coefficients[0] * x + coefficients[1]
    for coefficient in coefficients[2:]:
        y = y * x + coefficient
    return y


def _ratio(table: tuple[Sequence[float], Sequence[float]], x: Array) -> Array:
    return _polynomial(table[0], x) / _polynomial(table[1], x)


def _erf(be: Backend, x: Array) -> Array:
    size = be.abs(x)
    near, far = be.minimum(size, _BORDER), be.minimum(size, _END)
    of_far = 1.0 - be.exp(-far * far) * _ratio(_FAR, far)
    return be.sign(x) * be.where(size < _BORDER, near * _ratio(_NEAR, near * near), of_far)


def _erf_vjp(be: Backend, x: Array, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    return (gout * (2 / math.sqrt(math.pi) * be.exp(-x * x)),)


erf.add(Rule("composed", lambda be, x: (_erf(be, x), x), _erf_vjp))


@op
def gelu(x: Tensor, *, approximate: GeluForm = "none") -> Tensor:
    """The value x Phi(x), where Phi is the distribution function of the standard Gaussian (Hendrycks and Gimpel 2016).

    Args:
        x: the input.
        approximate: "none" computes Phi by the error function; "tanh" is the paper's approximation,
            Phi(x) = (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, which some published models have.
    """
    check_float("gelu", x)
    return gelu.apply(x, approximate=check_choice("gelu", "approximate", approximate, get_args(GeluForm)))


_SCALE, _CUBIC = math.sqrt(2 / math.pi), 0.044715


def _phi(be: Backend, x: Array, approximate: GeluForm) -> Array:
    if approximate == "tanh":
        return 0.5 + 0.5 * be.tanh(_SCALE * (x + _CUBIC * (x * x * x)))
    return 0.5 + 0.5 * _erf(be, x * math.sqrt(0.5))


def _gelu_forward(be: Backend, x: Array, approximate: GeluForm) -> tuple[Array, Any]:
    phi = _phi(be, x, approximate)
    return x * phi, (x, phi)


def _gelu_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool], *, approximate: GeluForm) -> tuple[Array]:
    x, phi = saved
    if approximate == "tanh":
        density = 2.0 * phi * (1.0 - phi) * (_SCALE + 3 * _SCALE * _CUBIC * (x * x))
    else:
        density = be.exp(-0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))
    return (gout * (phi + x * density),)


gelu.add(Rule("composed", _gelu_forward, _gelu_vjp))


@op
def silu(x: Tensor) -> Tensor:
    """The value x sigmoid(x), also called swish (Elfwing et al. 2017)."""
    check_float("silu", x)
    return silu.apply(x)


def _silu_forward(be: Backend, x: Array) -> tuple[Array, Any]:
    gate = logistic(be, x)
    return x * gate, (x, gate)


def _silu_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    x, gate = saved
    return (gout * (gate + x * (gate * (1.0 - gate))),)


silu.add(Rule("composed", _silu_forward, _silu_vjp))


@op
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """The value x where it is positive, alpha (exp(x) - 1) elsewhere (Clevert et al. 2015)."""
    check_float("elu", x)
    return elu.apply(x, alpha=check_number("elu", "alpha", alpha, ABOVE_0))


def _elu_forward(be: Backend, x: Array, alpha: float) -> tuple[Array, Any]:
    y = be.where(x > 0, x, alpha * be.expm1(be.minimum(x, 0.0)))
    return y, y


def _elu_vjp(be: Backend, y: Array, gout: Array, needs: Sequence[bool], *, alpha: float) -> tuple[Array]:
    return (be.where(y > 0, gout, gout * (y + alpha)),)


elu.add(Rule("composed", _elu_forward, _elu_vjp))
