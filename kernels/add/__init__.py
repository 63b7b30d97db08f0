"""The sum of images and a bias for each channel on the CPU, compiled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.kernels import channels, native
from duoln.kernels.launch import Launch, fused
from duoln.ops import add

_TEXT = "add/add"

_add_bias = Launch(_TEXT, "add_bias", "x: real[*rows, channels], bias: real[channels] -> y: like x")
_sum_channels = Launch(_TEXT, "sum_channels", "dy: real[*rows, channels] -> d_bias: sum[channels]",
                       block=channels.blocks)
_LEAST = 1 << 10
"""Values below which NumPy takes less time."""


def _supports(be: Backend, x: Array | float, y: Array | float) -> str | None:
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.ndim > 2 and y.shape == x.shape[-1:]):
        return "it is no bias of the last of three axes or more"
    return native.refusal(f"{_TEXT}.cpp", x.dtype) if x.size else "there are no values"


def _forward(be: Backend, x: Array, y: Array) -> tuple[Array, None]:
    return _add_bias[be.name](x, y), None


def _vjp(be: Backend, saved: None, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    return gout if needs[0] else None, _sum_channels[be.name](gout) if needs[1] else None


attach = fused(add, _forward, _vjp, _add_bias, _supports, {"numpy": "compiled bias"}, least=_LEAST)
