"""`linear`, and `matmul` with a matrix, of a few rows on the CPU, compiled: the weight is read once, unpacked.

BLAS copies it first.

(4 x 1000)(1000 x 1000) on two cores: 209 to 256 us by OpenBLAS; what the weight's bytes take is 60 to 120 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.linear.few_rows import FILE, MOST_ROWS, differentiate, multiply_few_rows
from duoln.kernels.product.uses import bias_gradient, weight_gradient, without_bias
from duoln.ops import linear, matmul

LEAST_WEIGHTS = 1 << 16
"""A smaller weight costs less than a call of its own saves."""


def supports(be: Backend, x: Array, weight: Array, bias: Array | None = None) -> str | None:
    """The reason why these rules cannot run; None if they can."""
    if weight.ndim != 2:
        return "the right side is no matrix"
    if weight.size < LEAST_WEIGHTS:
        return f"it is for weights of at least {LEAST_WEIGHTS} values"
    if not 0 < prod(x.shape[:-1]) <= MOST_ROWS:
        return f"it is for 1 to {MOST_ROWS} rows"
    if not weight.flags.c_contiguous:
        return "the weight is not contiguous"
    return native.refusal(FILE, x.dtype)


def _forward(be: Backend, x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
    y = host.empty((*x.shape[:-1], weight.shape[1]), x.dtype)
    multiply_few_rows(x, weight, bias, y, native.threads_for(weight.nbytes))
    return y, (x, weight)


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    x, weight = saved
    dx = d_weight = None
    if needs[0] or needs[1]:
        dx, d_weight = differentiate(x, weight, gout, native.threads_for(weight.nbytes), needs[0], needs[1])
    return dx, d_weight, bias_gradient(be, [(saved, gout)]) if needs[2] else None


def _factors(be: Backend, saved: Any, gout: Array) -> tuple[Array, Array]:
    """The weight's gradient, unmultiplied: Adam multiplies it out in the caches, and memory never holds it."""
    return host.as_rows(saved[0]), host.as_rows(gout)


def attach() -> None:
    """Add the rules to `linear` and `matmul`."""
    rule = Rule("compiled few rows", _forward, _vjp, supports, {1: weight_gradient, 2: bias_gradient},
                factors={1: _factors})
    linear.add(rule, backend="numpy")
    matmul.add(without_bias(rule), backend="numpy")
