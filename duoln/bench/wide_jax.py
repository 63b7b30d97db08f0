"""The peer of `duoln bench wide`: the same formulas in JAX, by `jax.jit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from duoln.bench import wide
from duoln.bench.records import Work

if TYPE_CHECKING:
    from duoln.bench.wide import Row


def prepare(row: Row, arrays: Mapping[str, np.ndarray], peer: str, backend: str) -> Work:
    """The work of a row on JAX's own device."""
    import jax

    functions = _functions(jax)
    values = [jax.numpy.asarray(array) for array in arrays.values()]

    def function(*values: Any) -> Any:
        return row.formula(functions, *values)

    if row.wanted:
        gradient = jax.jit(jax.value_and_grad(function, tuple(range(row.wanted))))

        def call() -> list[Any]:
            value, gradients = gradient(*values)
            return [value, *gradients]
    else:
        forward = jax.jit(function)

        def call() -> list[Any]:
            return [forward(*values)]

    facts = {"library": f"jax {jax.__version__}", "device": str(jax.devices()[0])}
    return wide.work(call, row.calls, np.asarray, jax.block_until_ready, facts)


def _functions(jax: Any) -> wide.Functions:
    of = jax.numpy

    def gelu(x: Any, approximate: str = "none") -> Any:
        return jax.nn.gelu(x, approximate=approximate == "tanh")

    def huber_loss(x: Any, y: Any) -> Any:
        size = of.abs(x - y)
        return of.mean(of.where(size < 1, 0.5 * size * size, size - 0.5))

    def bce_with_logits(x: Any, y: Any) -> Any:
        return of.mean(of.maximum(x, 0) - x * y + of.log1p(of.exp(-of.abs(x))))

    return wide.Functions(of, jax.nn, jax.scipy.special, gelu=gelu, huber_loss=huber_loss,
                          bce_with_logits=bce_with_logits, mse_loss=lambda x, y: of.mean(of.square(x - y)))
