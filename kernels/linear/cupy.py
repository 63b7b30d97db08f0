"""`linear` on CUDA: products by cuBLAS, and the gradient of the bias in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import cupy

from duoln.backends import cublas
from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.launch import cuda as launch
from duoln.ops import linear
from duoln.ops.linalg import weight_gradient


def _supports(be: Backend, x: Array, weight: Array, bias: Array | None) -> str | None:
    if be.dtype(x) != "float32":
        return f"the kernel is for float32, not {be.dtype(x)}"
    return launch.too_large(x) if x.size and weight.size else "there are no values"


def _forward(be: Backend, x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
    y = cublas.multiply(_rows(x), weight)
    if bias is not None:
        y += bias
    return y.reshape(*x.shape[:-1], weight.shape[1]), (x, weight)


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    x, weight = saved
    return (
        cublas.multiply(_rows(gout), weight.T).reshape(x.shape) if needs[0] else None,
        weight_gradient(be, [(saved, gout)]) if needs[1] else None,
        _bias_gradient(be, [(saved, gout)]) if needs[2] else None,
    )


def _bias_gradient(be: Backend, uses: Sequence[tuple[Any, Array]]) -> Array:
    gouts = [_rows(gout) for _, gout in uses]
    return launch.sum_columns(cupy.ascontiguousarray(gouts[0]) if len(gouts) == 1 else be.concat(gouts))[0]


def _rows(x: Array) -> Array:
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


def attach() -> None:
    """Add the rule to `linear`."""
    linear.add(Rule("cuda bias", _forward, _vjp, _supports, pooled={1: weight_gradient, 2: _bias_gradient}),
               backend="cupy")
