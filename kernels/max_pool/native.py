"""Max pooling on the CPU, compiled: each pixel is read and written once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.ops import max_pool2d
from duoln.ops.conv import Pair, Sizes

_FILE = "max_pool/max_pool.cpp"
_SIZES = ("batch: int64, height: int64, width: int64, channels: int64, rows: int64, columns: int64, size: int64, "
          "stride: int64, threads: int32")

_pool = native.Function(_FILE, "max_pool2d_forward", f"x: real[4], y: real[4], {_SIZES}")
_spread = native.Function(_FILE, "max_pool2d_backward", f"x: real[4], y: real[4], dy: real[4], dx: real[4], {_SIZES}")


class _Saved(NamedTuple):
    x: Array
    y: Array
    sizes: tuple[int, ...]
    """The numbers that an entry takes after its arrays."""
    attrs: dict[str, Any]


def _supports(be: Backend, x: Array, size: Sizes, stride: Sizes, border: Pair = (0, 0)) -> str | None:
    if isinstance(size, tuple) or isinstance(stride, tuple):
        return "its windows are squares with one stride"
    return native.failure(_FILE, x.dtype) if x.size else "there are no values"


def _forward(be: Backend, x: Array, size: int, stride: int, border: Pair = (0, 0)) -> tuple[Array, _Saved]:
    x = np.ascontiguousarray(x)
    rows, columns = ((n - size) // stride + 1 for n in x.shape[1:3])
    y = host.empty((len(x), rows, columns, x.shape[3]), x.dtype)
    sizes = (*x.shape, rows, columns, size, stride, native.threads_for(x.nbytes))
    _pool(x, y, *sizes)
    return y, _Saved(x, y, sizes, {"size": size, "stride": stride, "border": border})


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    if any(saved.attrs["border"]) and not (saved.y > -np.inf).all():  # the entry knows no border
        composed = max_pool2d.rules("numpy")[-1]
        assert composed.vjp is not None
        return tuple(composed.vjp(be, composed.forward(be, saved.x, **saved.attrs)[1], gout, needs))
    dx = host.empty_like(saved.x)
    _spread(saved.x, saved.y, np.ascontiguousarray(gout), dx, *saved.sizes)
    return (dx,)


def attach() -> None:
    """Add the rule to `max_pool2d`."""
    max_pool2d.add(Rule("compiled", _forward, _vjp, _supports), backend="numpy")
