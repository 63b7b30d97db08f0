"""MLX's own kernels of norms: whether one is accurate on the machine at hand, and its gradients.

Some builds subtract the mean only once, or compute the variance as a difference, or add up long rows one value behind
another, and lose digits. So each process measures a kernel once, on rows with means that grow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.ops.moments import LEAST_EPS
from duoln.randomness import Stream

TINY = f"epsilon is below {LEAST_EPS:g}"
"""Why MLX's kernels do not take such an epsilon: they square values as they are."""
_MEANS = (0.0, 1e2, 1e3, 1e4)
_SHAPE = (64, 1000)
_EPS = 1e-5


class Figure(NamedTuple):
    """The largest error of normalised rows of one mean, against float64."""

    mean: float
    fast: float
    """The error of MLX's kernel."""
    composed: float
    """The error of duoln's formula on MLX."""
    allowed: float
    """Twice the error of the two-pass formula in float32 NumPy."""


class Gate:
    """The measurement of one kernel, made when it is first asked for.

    Args:
        name: of MLX's function.
        fast: that function, without gain and bias: of rows and epsilon.
        composed: duoln's formula on MLX, of a backend, rows and epsilon.
        centred: whether the norm subtracts the mean.
    """

    def __init__(self, name: str, fast: Callable[[Array, float], Array],
                 composed: Callable[[Backend, Array, float], Array], centred: bool) -> None:
        self._name, self._fast, self._composed, self._centred = name, fast, composed, centred
        self._measured: list[Figure] = []

    def figures(self, be: Backend) -> list[Figure]:
        """Errors of MLX's kernel and of duoln's formula on rows of width 1000, deviation 1, growing means."""
        if not self._measured:
            self._measured.extend(self._measure(be, mean) for mean in _MEANS)
        return self._measured

    def _measure(self, be: Backend, mean: float) -> Figure:
        x = (Stream(0, "large means").gaussian(_SHAPE) + mean).astype(np.float32)
        exact, native = self._formula(x.astype(np.float64)), mx.array(x)
        results = self._fast(native, _EPS), self._composed(be, native, _EPS), self._formula(x)
        fast, own, two_pass = (float(np.abs(np.asarray(y, np.float64) - exact).max()) for y in results)
        return Figure(mean, fast, own, 2 * two_pass + 4e-7)

    def _formula(self, x: np.ndarray) -> np.ndarray:
        """In the dtype of `x`."""
        values = x - x.mean(-1, keepdims=True) if self._centred else x
        normalised: np.ndarray = values / np.sqrt((values ** 2).mean(-1, keepdims=True) + x.dtype.type(_EPS))
        return normalised

    def inaccurate(self, be: Backend) -> str | None:
        """The reason why MLX's kernel is not used; None if its errors are within the limits."""
        bad = [f for f in self.figures(be) if not f.fast <= f.allowed]
        if not bad:
            return None
        return f"at a mean of {bad[0].mean:g} its error is {bad[0].fast:.1e}; {bad[0].allowed:.1e} is allowed"

    def remark(self, be: Backend) -> str:
        """What `duoln doctor --ops` says of it."""
        figures = "; ".join(f"mean {f.mean:g}: {f.fast:.1e}, ours {f.composed:.1e}" for f in self.figures(be))
        verdict = "it is not used" if self.inaccurate(be) else "it is used"
        return f"largest error of {self._name} against float64 on rows of {_SHAPE[1]}, {figures}. So {verdict}"

    def supports(self, be: Backend, x: Array) -> str | None:
        """The reason why MLX's kernel does not take rows; None if it does."""
        if x.dtype != mx.float32 or not x.size:
            return "there are no values" if not x.size else f"it was measured for float32, not for {x.dtype}"
        return self.inaccurate(be)


def gradients(function: Callable[..., Array], arrays: Sequence[Array | None], gout: Array,
              needs: Sequence[bool]) -> list[Array | None]:
    """MLX's own gradients of `function(*arrays)` with respect to the arrays that `needs` requests."""
    asked = [i for i, need in enumerate(needs) if need]

    def of_asked(*some: Array) -> Array:
        every = list(arrays)
        for i, a in zip(asked, some, strict=True):
            every[i] = a
        return function(*every)

    primals: list[Any] = [arrays[i] for i in asked]
    _, made = mx.vjp(of_asked, primals, [gout])
    by_place = dict(zip(asked, made, strict=True))
    return [by_place.get(i) for i in range(len(needs))]
