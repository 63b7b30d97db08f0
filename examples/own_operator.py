"""An operator of one's own, log(cosh(x)): a composed rule with its gradient, and a faster rule for NumPy arrays.

    python -m duoln.examples.own_operator
"""
from __future__ import annotations

from typing import Any

import numpy as np

import duoln
from duoln import extend, testing


@extend.op("x: real[*shape] -> like x")
def log_cosh(x: extend.Tensor) -> extend.Tensor:
    """log(cosh(x)) of each value: x^2 / 2 near 0, |x| - log(2) far from it."""


def forward(be: extend.Backend, x: Any) -> tuple[Any, Any]:
    """The value, and what the gradient needs. cosh(x) would overflow; exp(-2 |x|) cannot."""
    size = be.abs(x)
    return size + be.log1p(be.exp(-2.0 * size)) - float(np.log(2.0)), be.tanh(x)


def vjp(be: extend.Backend, tanh: Any, gout: Any, needs: Any) -> tuple[Any]:
    """A gradient for each array argument: gout times the derivative, tanh(x)."""
    return (gout * tanh,)


def in_place(be: extend.Backend, x: Any) -> tuple[Any, Any]:
    """The same on NumPy arrays with fewer temporary ones; a rule writes into its own arrays alone."""
    size = np.abs(x)
    value = np.multiply(size, -2.0)
    np.log1p(np.exp(value, out=value), out=value)
    return np.add(value, size - float(np.log(2.0)), out=value), np.tanh(x)


FAST = extend.Rule("in place", in_place, vjp, lambda be, x: None if x.ndim else "a single value")
log_cosh.add(extend.Rule("composed", forward, vjp))  # every backend can run it
log_cosh.add(FAST, backend="numpy")  # tried first; where it gives a reason why not, the composed rule runs


def main() -> float:
    """Check the operator and its rule, and find with them where log(cosh(x - 3)) is least."""
    backend, points = duoln.backend("numpy"), np.linspace(-4, 4, 35).reshape(5, 7)
    for dtype in extend.FLOATS:
        testing.check_op(log_cosh, [points], lambda x: np.log(np.cosh(x)), backend, dtype=dtype)
    testing.check_rule(log_cosh, FAST, [points.astype(np.float32)], backend)
    x = duoln.tensor([0.0], backend)
    for _ in range(60):
        x = x - 0.5 * duoln.value_and_grad(lambda x: log_cosh(x - 3.0).sum())(x)[1]
    print(f"rules: {log_cosh.explain(x)}; log(cosh(x - 3)) is least at {x.item():.4f}")
    return x.item()


if __name__ == "__main__":
    main()
