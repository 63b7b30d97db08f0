"""Layer norm on the CPU, compiled: each row is read once from memory, and nothing is kept for it but three numbers."""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.kernels.layer_norm.numpy import supports
from duoln.kernels.layer_norm.passes import FILE, LAYER, Saved
from duoln.ops import layer_norm


def _supports(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float = 1e-5,
              activation: str | None = None) -> str | None:
    return supports(be, x, gain, bias, eps, activation) or native.failure(FILE, x.dtype)


def _forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
             activation: str | None = None) -> tuple[Array, Saved]:
    return LAYER.forward(x, gain, bias, eps, activation)


def _vjp(be: Backend, saved: Saved, gout: Array, needs: Sequence[bool]) -> Sequence[Array | None]:
    return LAYER.backward(saved, gout, None, needs)


def attach() -> None:
    """Add the rule to `layer_norm`."""
    layer_norm.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
