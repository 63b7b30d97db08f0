"""The product of the values of two large arrays on the CPU, compiled."""

from __future__ import annotations

from collections.abc import Sequence

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.two_arrays import OfTwoArrays
from duoln.ops import multiply

_multiply = OfTwoArrays("multiply")


def _supports(be: Backend, x: Array | float, y: Array | float) -> str | None:
    return _multiply.failure(x, y)


def _forward(be: Backend, x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return _multiply(x, y), (x, y)


def _vjp(be: Backend, saved: tuple[Array, Array], gout: Array,
         needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    x, y = saved
    return _multiply(gout, y) if needs[0] else None, _multiply(gout, x) if needs[1] else None


def attach() -> None:
    """Add the rule to `multiply`."""
    multiply.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
