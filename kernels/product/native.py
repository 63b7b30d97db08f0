"""`linear`, and `matmul` with a matrix, of more than a few rows on the CPU, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.linear import native as few_rows
from duoln.kernels.product.multiply import failure, multiply
from duoln.ops import linear, matmul


def _supports(be: Backend, x: Array, weight: Array, bias: Array | None) -> str | None:
    if few_rows.supports(be, x, weight, bias) is None:
        return "a rule for few rows runs"
    return failure(prod(x.shape[:-1]) * weight.size)


def _forward(be: Backend, x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
    y = multiply(_rows(x), weight, bias=bias)
    return y.reshape(*x.shape[:-1], weight.shape[1]), (x, weight)


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    x, weight = saved
    return (
        multiply(_rows(gout), weight.T).reshape(x.shape) if needs[0] else None,
        _weight_gradient(be, [(saved, gout)]) if needs[1] else None,
        _bias_gradient(be, [(saved, gout)]) if needs[2] else None,
    )


def _weight_gradient(be: Backend, uses: Sequence[tuple[Any, Array]]) -> Array:
    """One product over the rows of all uses."""
    return multiply(_joined([saved[0] for saved, _ in uses]).T, _joined([gout for _, gout in uses]))


def _bias_gradient(be: Backend, uses: Sequence[tuple[Any, Array]]) -> Array:
    gouts = _joined([gout for _, gout in uses])
    return multiply(np.ones((1, len(gouts)), gouts.dtype), gouts)[0]


def _joined(arrays: Sequence[Array]) -> Array:
    return _rows(arrays[0]) if len(arrays) == 1 else np.concatenate([_rows(a) for a in arrays])


def _rows(x: Array) -> Array:
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _matmul_supports(be: Backend, x: Array, y: Array) -> str | None:
    return _supports(be, x, y, None) if y.ndim == 2 else "the right side is no matrix"


def _matmul_forward(be: Backend, x: Array, y: Array) -> tuple[Array, Any]:
    return _forward(be, x, y, None)


def _matmul_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    return _vjp(be, saved, gout, (*needs, False))[:2]


def attach() -> None:
    """Add the rules to `linear` and `matmul`."""
    matmul.add(Rule("compiled product", _matmul_forward, _matmul_vjp, _matmul_supports, pooled={1: _weight_gradient}),
               backend="numpy")
    linear.add(Rule("compiled product", _forward, _vjp, _supports, pooled={1: _weight_gradient, 2: _bias_gradient}),
               backend="numpy")
