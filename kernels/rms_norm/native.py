"""RMS norm on the CPU, compiled from layer norm's own text: each row is read once, and one number is kept for it."""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.kernels.layer_norm.passes import FILE, RMS, Saved
from duoln.ops import rms_norm


def _supports(be: Backend, x: Array, gain: Array | None, eps: float) -> str | None:
    return native.failure(FILE, x.dtype) if x.size else "there are no values"


def _forward(be: Backend, x: Array, gain: Array | None, eps: float) -> tuple[Array, Saved]:
    return RMS.forward(x, gain, None, eps)


def _vjp(be: Backend, saved: Saved, gout: Array, needs: Sequence[bool]) -> Sequence[Array | None]:
    return RMS.backward(saved, gout, None, (*needs, False))[:2]


def attach() -> None:
    """Add the rule to `rms_norm`."""
    rms_norm.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
