"""RMS norm on CUDA, by the kernels of layer norm.

For the gradient the rule keeps x and one float per row.
"""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import launch
from duoln.kernels.layer_norm import cuda
from duoln.kernels.layer_norm.variant import RMS
from duoln.ops import rms_norm


def _supports(be: Backend, x: Array, gain: Array | None, eps: float = 1e-5) -> str | None:
    return cuda.supports(be, x)


def _forward(be: Backend, x: Array, gain: Array | None, eps: float) -> tuple[Array, cuda.Kept]:
    (gain,) = launch.packed(gain)
    y, kept = cuda.forward(RMS, cuda.as_rows(x), gain, None, eps)
    return y.reshape(x.shape), kept


def _vjp(be: Backend, saved: cuda.Kept, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    dx, d_gain, _ = cuda.backward(RMS, saved, cuda.as_rows(gout), (*needs, False))
    return None if dx is None else dx.reshape(gout.shape), d_gain


def attach() -> None:
    """Add the rule to `rms_norm`."""
    rms_norm.add(Rule("cuda row", _forward, _vjp, _supports, stored=(0,)), backend="cupy")
