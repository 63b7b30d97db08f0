"""Convolution and pooling over images with channels last, as products over shifted slices.

Shape:
    Images are (batch, height, width, channels); convolution weights (kernel height, kernel width, in, out).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import Array, Backend, Shape
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import check_integer
from duoln.errors import ShapeError
from duoln.ops.common import check_float, check_room


def _windows(shape: Shape, kernel: tuple[int, int], stride: int) -> Iterator[tuple[slice, ...]]:
    """For each entry of the kernel, the slice of the image that it multiplies over all output positions."""
    height, width = _out_size(shape, kernel, stride)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            yield (slice(None), slice(i, i + stride * (height - 1) + 1, stride),
                   slice(j, j + stride * (width - 1) + 1, stride))


def _out_size(shape: Shape, kernel: tuple[int, int], stride: int) -> tuple[int, int]:
    return (shape[1] - kernel[0]) // stride + 1, (shape[2] - kernel[1]) // stride + 1


def _check_image(name: str, x: Tensor, kernel: tuple[int, int], padding: int = 0) -> None:
    if x.ndim != 4:
        raise ShapeError(f"[{name}] expected (batch, height, width, channels), found shape {x.shape}")
    if min(kernel) < 1:
        raise ShapeError(f"[{name}] expected a kernel of at least 1, found {kernel}")
    if x.shape[1] + 2 * padding < kernel[0] or x.shape[2] + 2 * padding < kernel[1]:
        raise ShapeError(f"[{name}] expected an image of at least {kernel}, found {x.shape[1:3]} "
                         f"with padding {padding}")


@op
def conv2d(x: Tensor, weight: Tensor, *, stride: int = 1, padding: int = 0) -> Tensor:
    """Two-dimensional convolution: a cross-correlation, as is usual for neural networks.

    Shape:
        x (B, H, W, in), weight (KH, KW, in, out) -> (B, (H + 2 padding - KH) // stride + 1, ..., out).

    Raises:
        ShapeError: the channels differ, or the kernel is larger than the padded image.
    """
    check_float("conv2d", x, weight)
    if weight.ndim != 4:
        raise ShapeError(f"[conv2d] expected weight (KH, KW, in, out), found shape {weight.shape}")
    stride, padding = check_integer("conv2d", "stride", stride, 1), check_integer("conv2d", "padding", padding, 0)
    _check_image("conv2d", x, (weight.shape[0], weight.shape[1]), padding)
    if x.shape[3] != weight.shape[2]:
        raise ShapeError(f"[conv2d] expected {weight.shape[2]} channels as weight {weight.shape} has, "
                         f"found x {x.shape}")
    check_room("conv2d", x.backend, (x.shape[0], x.shape[1] + 2 * padding, x.shape[2] + 2 * padding, x.shape[3]))
    return conv2d.apply(x, weight, stride=stride, padding=padding)


def _patches(be: Backend, x: Array, kernel: tuple[int, int], stride: int) -> Array:
    """The image as a matrix: a row for each output position, a column for each weight."""
    columns = [x[window] for window in _windows(x.shape, kernel, stride)]
    patches = columns[0] if len(columns) == 1 else be.concat(columns, axis=3)
    return be.reshape(patches, (prod(patches.shape[:3]), patches.shape[3]))


def _conv_forward(be: Backend, x: Array, weight: Array, stride: int, padding: int) -> tuple[Array, Any]:
    padded = _bordered(be, x, padding)
    kernel = weight.shape[:2]
    flat = be.reshape(weight, (prod(weight.shape[:3]), weight.shape[3]))
    y = be.matmul(_patches(be, padded, kernel, stride), flat)
    return be.reshape(y, (x.shape[0], *_out_size(padded.shape, kernel, stride), weight.shape[3])), (
        padded, weight, stride, padding)


def _bordered(be: Backend, x: Array, padding: int) -> Array:
    return be.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))) if padding else x


def _conv_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    padded, weight, stride, padding = saved
    kernel, channels = weight.shape[:2], weight.shape[2]
    g = be.reshape(gout, (prod(gout.shape[:3]), gout.shape[3]))
    dx = gw = None
    if needs[0]:
        dx = be.zeros(padded.shape, be.dtype(padded))
        for k, window in enumerate(_windows(padded.shape, kernel, stride)):
            plane = weight[k // kernel[1], k % kernel[1]]
            part = be.matmul(g, be.permute_dims(plane, (1, 0)))
            dx = be.slice_add(dx, window, be.reshape(part, (*gout.shape[:3], channels)))
        if padding:
            dx = dx[:, padding:-padding, padding:-padding]
    if needs[1]:
        patches = _patches(be, padded, kernel, stride)
        gw = be.reshape(be.matmul(be.permute_dims(patches, (1, 0)), g), weight.shape)
    return dx, gw


conv2d.add(Rule("composed", _conv_forward, _conv_vjp))


def _check_pool(name: str, x: Tensor, size: int, stride: int | None) -> tuple[int, int]:
    check_float(name, x)
    size = check_integer(name, "size", size, 1)
    _check_image(name, x, (size, size))
    return size, size if stride is None else check_integer(name, "stride", stride, 1)


@op
def max_pool2d(x: Tensor, *, size: int, stride: int | None = None) -> Tensor:
    """Greatest value of each window; equal greatest values share the gradient evenly.

    Shape:
        x (B, H, W, C) -> (B, (H - size) // stride + 1, (W - size) // stride + 1, C); stride is size if None.
    """
    size, stride = _check_pool("max_pool2d", x, size, stride)
    return max_pool2d.apply(x, size=size, stride=stride)


def _max_pool_forward(be: Backend, x: Array, size: int, stride: int) -> tuple[Array, Any]:
    y = None
    for window in _windows(x.shape, (size, size), stride):
        y = x[window] if y is None else be.maximum(y, x[window])
    return y, (x, y, size, stride)


def _max_pool_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    x, y, size, stride = saved
    windows = list(_windows(x.shape, (size, size), stride))
    count = be.zeros(y.shape, be.dtype(y))
    for window in windows:
        count = count + be.astype(x[window] == y, be.dtype(y))
    share = gout / count
    dx = be.zeros(x.shape, be.dtype(x))
    for window in windows:
        dx = be.slice_add(dx, window, be.where(x[window] == y, share, 0.0))
    return (dx,)


max_pool2d.add(Rule("composed", _max_pool_forward, _max_pool_vjp))


@op
def avg_pool2d(x: Tensor, *, size: int, stride: int | None = None) -> Tensor:
    """Mean of each window. Shapes as for `max_pool2d`."""
    size, stride = _check_pool("avg_pool2d", x, size, stride)
    return avg_pool2d.apply(x, size=size, stride=stride)


def _avg_pool_forward(be: Backend, x: Array, size: int, stride: int) -> tuple[Array, Any]:
    y = 0.0
    for window in _windows(x.shape, (size, size), stride):
        y = y + x[window]
    return y * (1.0 / size ** 2), (x.shape, size, stride)


def _avg_pool_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    shape, size, stride = saved
    share = gout * (1.0 / size ** 2)
    dx = be.zeros(shape, be.dtype(gout))
    for window in _windows(shape, (size, size), stride):
        dx = be.slice_add(dx, window, share)
    return (dx,)


avg_pool2d.add(Rule("composed", _avg_pool_forward, _avg_pool_vjp))
