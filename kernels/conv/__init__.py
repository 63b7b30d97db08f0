"""Max pooling on the CPU, compiled: each pixel is read and written once."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from duoln.backends.protocol import Array, Backend
from duoln.kernels import native
from duoln.kernels.launch import Launch, fused
from duoln.ops import max_pool2d
from duoln.ops.conv import Pair, Sizes

_TEXT = "conv/max_pool"
_IMAGES = "x: real[batch, height, width, channels]"

_pool = Launch(_TEXT, "max_pool2d_forward", f"{_IMAGES}, rows: int64, columns: int64, size: int64, stride: int64 "
                                            "-> y: real[batch, rows, columns, channels]")
_spread = Launch(_TEXT, "max_pool2d_backward", f"{_IMAGES}, y: real[batch, rows, columns, channels], dy: like y, "
                                               "size: int64, stride: int64 -> dx: like x")


class _Saved(NamedTuple):
    x: Array
    y: Array
    attrs: dict[str, Any]


def _supports(be: Backend, x: Array, size: Sizes, stride: Sizes, border: Pair = (0, 0)) -> str | None:
    if isinstance(size, tuple) or isinstance(stride, tuple):
        return "its windows are squares with one stride"
    return native.refusal(f"{_TEXT}.cpp", x.dtype) if x.size else "there are no values"


def _forward(be: Backend, x: Array, size: int, stride: int, border: Pair = (0, 0)) -> tuple[Array, _Saved]:
    rows, columns = ((n - size) // stride + 1 for n in x.shape[1:3])
    y = _pool[be.name](x, rows, columns, size, stride)
    return y, _Saved(x, y, {"size": size, "stride": stride, "border": border})


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    if any(saved.attrs["border"]) and not (saved.y > -inf).all():  # the entry knows no border
        composed = max_pool2d.rules("numpy")[-1]
        assert composed.vjp is not None
        return tuple(composed.vjp(be, composed.forward(be, saved.x, **saved.attrs)[1], gout, needs))
    return (_spread[be.name](saved.x, saved.y, gout, saved.attrs["size"], saved.attrs["stride"]),)


attach = fused(max_pool2d, _forward, _vjp, _pool, _supports)
