"""Convolution on MLX by its own kernels, if they are as accurate as sums of products in float32.

On a GPU MLX uses Winograd's transform for some sizes, which has larger rounding errors. Each process measures the error
once, at such a size. `duoln doctor --ops` shows the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.ops import conv2d
from duoln.ops.conv import Sizes
from duoln.randomness import Stream

_SIDE, _CHANNELS, _IMAGES = 32, 128, 4
_POSITIONS = 200
"""Output positions at which the error is measured."""
_MOST_POSITIONS = 1 << 16
"""On a CPU, of the images."""
_ALLOWED = float(np.finfo(np.float32).eps * np.sqrt(9 * _CHANNELS))
"""A sum of n products in float32, added one after another, has an error of about eps sqrt(n) / 5 of its own spread.

No order of addition is worse, so this limit holds for every library and CPU. The error of Winograd's F(6 x 6, 3 x 3) is
three times as large.
"""


class Figure(NamedTuple):
    """Errors against float64, as a share of the largest value."""

    error: float
    """The error of `mx.conv2d`."""
    allowed: float
    """The error that sums of products in float32 may have: eps sqrt(n) for sums of n."""


_measured: list[Figure] = []


def accuracy() -> Figure:
    """The error of a 3 x 3 convolution of 128 channels; it is measured once."""
    if not _measured:
        _measured.append(_measure())
    return _measured[0]


def _measure() -> Figure:
    rng = Stream(0, "convolution")
    x = rng.gaussian((_IMAGES, _SIDE, _SIDE, _CHANNELS)).astype(np.float32)
    weight = rng.gaussian((3, 3, _CHANNELS, _CHANNELS)).astype(np.float32)
    places = rng.integers(_IMAGES * (_SIDE - 2) ** 2, (_POSITIONS,))
    image, row, column = np.unravel_index(places, (_IMAGES, _SIDE - 2, _SIDE - 2))
    patches = np.stack([x[i, r:r + 3, c:c + 3].reshape(-1) for i, r, c in zip(image, row, column, strict=True)])
    exact = patches.astype(np.float64) @ weight.reshape(-1, _CHANNELS).astype(np.float64)
    convolved = np.asarray(_convolve(mx.array(x), mx.array(weight), 1, 0))[image, row, column]
    return Figure(float(np.abs(convolved - exact).max() / np.abs(exact).max()), _ALLOWED)


class _Saved(NamedTuple):
    x: Array
    weight: Array
    stride: Sizes
    padding: Sizes
    dilation: Sizes


def _convolve(x: Array, weight: Array, stride: Sizes, padding: Sizes, dilation: Sizes = 1) -> Array:
    return mx.conv2d(x, mx.transpose(weight, (3, 0, 1, 2)), stride, padding, dilation)


def _forward(be: Backend, x: Array, weight: Array, stride: Sizes, padding: Sizes, dilation: Sizes = 1, groups: int = 1,
             ) -> tuple[Array, _Saved]:
    return _convolve(x, weight, stride, padding, dilation), _Saved(x, weight, stride, padding, dilation)


def _vjp(be: Backend, saved: _Saved, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    x, weight, stride, padding, dilation = saved
    dx = d_weight = None
    if needs[0]:
        dx = mx.vjp(lambda a: _convolve(a, weight, stride, padding, dilation), [x], [gout])[1][0]
    if needs[1]:
        d_weight = mx.vjp(lambda a: _convolve(x, a, stride, padding, dilation), [weight], [gout])[1][0]
    return [dx, d_weight]


def _supports(be: Backend, x: Array, weight: Array, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1,
              groups: int = 1) -> str | None:
    if groups != 1:
        return "its gradients of groups are not measured"
    if not x.size or not weight.size:
        return "there are no values"
    if mx.default_device() == mx.Device(mx.cpu) and x.size // x.shape[-1] > _MOST_POSITIONS:
        return "a CPU adds the weight's gradient of many positions one after another"
    if x.dtype != mx.float32:
        return f"it was measured for float32, not for {x.dtype}"
    figure = accuracy()
    return None if figure.error <= figure.allowed else \
        f"the error of mx.conv2d is {figure.error:.1e}; {figure.allowed:.1e} is allowed"


def _remark(be: Backend) -> str:
    figure = accuracy()
    return (f"largest error of mx.conv2d against float64, 3 x 3 and {_CHANNELS} channels: {figure.error:.1e}; "
            f"{figure.allowed:.1e} is allowed. So it is {'' if figure.error <= figure.allowed else 'not '}used")


def attach() -> None:
    """Add the rule to `conv2d`."""
    conv2d.add(Rule("mx.conv2d", _forward, _vjp, _supports, remark=_remark), backend="mlx")
