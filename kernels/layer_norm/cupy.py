"""Layer norm on CUDA: a row is read once and stays in registers; the gradient reads x and dy once.

For the gradient the rule keeps x and three floats per row.
"""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import launch
from duoln.kernels.layer_norm import cuda
from duoln.kernels.layer_norm.variant import LAYER
from duoln.ops import layer_norm


def _supports(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float = 1e-5,
              activation: str | None = None) -> str | None:
    return cuda.supports(be, x)


def _forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
             activation: str | None = None) -> tuple[Array, cuda.Kept]:
    gain, bias = launch.packed(gain, bias)
    y, kept = cuda.forward(LAYER, cuda.as_rows(x), gain, bias, eps, activation)
    return y.reshape(x.shape), kept


def _vjp(be: Backend, saved: cuda.Kept, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    dx, d_gain, d_bias = cuda.backward(LAYER, saved, cuda.as_rows(gout), needs)
    return None if dx is None else dx.reshape(gout.shape), d_gain, d_bias


def attach() -> None:
    """Add the rule to `layer_norm`."""
    layer_norm.add(Rule("cuda row", _forward, _vjp, _supports, stored=(0,)), backend="cupy")
