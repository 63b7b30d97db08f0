"""The sum of images and a bias for each channel on the CPU, compiled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import channels, host, native
from duoln.ops import add

_FILE = "add/add.cpp"

_add_bias = native.Function(_FILE, "add_bias", "x: real[2], bias: real[1], y: real[2], rows: int64, channels: int64, "
                                               "threads: int32")
_sum_channels = native.Function(_FILE, "sum_channels", "dy: real[2], parts: real[2], rows: int64, channels: int64, "
                                                       "threads: int32")


def _supports(be: Backend, x: Array | float, y: Array | float) -> str | None:
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.ndim > 2 and y.shape == x.shape[-1:]):
        return "it is no bias of the last of three axes or more"
    return native.failure(_FILE, x.dtype) if x.size else "there are no values"


def _forward(be: Backend, x: Array, y: Array) -> tuple[Array, None]:
    rows = host.as_rows(x)
    out = host.empty_like(rows)
    _add_bias(rows, np.ascontiguousarray(y), out, *rows.shape, native.threads_for(rows.nbytes))
    return out.reshape(x.shape), None


def _vjp(be: Backend, saved: None, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    d_bias = None
    if needs[1]:
        dy = host.as_rows(gout)
        parts = np.empty((channels.blocks(*dy.shape), dy.shape[1]), dy.dtype)
        _sum_channels(dy, parts, *dy.shape, native.threads_for(dy.nbytes))
        d_bias = host.added_up(parts)
    return gout if needs[0] else None, d_bias


def attach() -> None:
    """Add the rule to `add`."""
    add.add(Rule("compiled bias", _forward, _vjp, _supports), backend="numpy")
