"""Convolution and pooling over images and sequences with channels last, as products over shifted slices.

Shape:
    Images are (batch, height, width, channels), and convolution weights (kernel height, kernel width, in / groups,
    out); sequences are (batch, time, channels), and weights (kernel, in / groups, out). Sizes, strides, paddings and
    dilations of images are one number, or a pair for height and width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, prod
from typing import Annotated, Any, Literal

from duoln.backends.protocol import Array, Backend, Shape
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import AtLeast1, Whole, check_choice, check_integer
from duoln.errors import ShapeError
from duoln.ops.common import check_room, is_extreme
from duoln.ops.linalg import transposed
from duoln.ops.shape import pad, reshape

Pair = tuple[int, int]
Sizes = int | tuple[int, int]
Padding = Sizes | Literal["same"]
Width = Annotated[int, Whole(0)]
"""The border of a sequence."""


def check_pair(name: str, role: str, value: Any, low: int) -> Pair:
    """Two integers of at least `low`: a number stands for both.

    Raises:
        DtypeError: they are not integers. ShapeError: they are too small, or not two.
    """
    if not isinstance(value, tuple | list):
        number = check_integer(name, role, value, low)
        return number, number
    if len(value) != 2:
        raise ShapeError(f"[{name}] {role}: expected an integer or a pair, found {len(value)} entries")
    return check_integer(name, role, value[0], low), check_integer(name, role, value[1], low)


def _pair_or_int(pair: Pair) -> Sizes:
    """One number for a pair of equal ones, which is what fused rules take."""
    return pair[0] if pair[0] == pair[1] else pair


def as_pair(value: Sizes) -> Pair:
    """The numbers for height and width."""
    return value if isinstance(value, tuple) else (value, value)


def out_size(sizes: Sequence[int], kernel: Sequence[int], stride: Pair, dilation: Pair = (1, 1)) -> Pair:
    """The output positions along the height and the width of an image with these sizes."""
    height, width = ((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True))
    return height, width


def _windows(shape: Shape, kernel: Pair, stride: Pair, dilation: Pair = (1, 1)) -> Iterator[tuple[slice, ...]]:
    """For each entry of the kernel, the slice of the image that it multiplies over all output positions."""
    height, width = out_size(shape[1:3], kernel, stride, dilation)
    for i in range(0, kernel[0] * dilation[0], dilation[0]):
        for j in range(0, kernel[1] * dilation[1], dilation[1]):
            yield (slice(None), slice(i, i + stride[0] * (height - 1) + 1, stride[0]),
                   slice(j, j + stride[1] * (width - 1) + 1, stride[1]))


def _check_image(name: str, x: Tensor, kernel: Pair, padding: Sequence[int] = (0, 0), dilation: Pair = (1, 1),
                 axes: str = "height, width") -> None:
    """Check that an image, with all its padding, holds the kernel. A sequence has `axes` "time" and a width of 1."""
    if min(kernel) < 1:
        raise ShapeError(f"[{name}] expected a kernel of at least 1, found {kernel}")
    least = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    if any(n + p < k for n, p, k in zip(x.shape[1:3], padding, least, strict=True)):
        count = 1 if axes == "time" else 2
        raise ShapeError(f"[{name}] expected {axes} of at least {tuple(least[:count])}, found {x.shape[1:1 + count]} "
                         f"with padding {tuple(padding[:count])} in all")


@op("x: real[batch, height, width, channels], weight: real[kh, kw, group, out] -> like x")
def conv2d(x: Tensor, weight: Tensor, *, stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1,
           groups: AtLeast1 = 1) -> Tensor:
    """Two-dimensional convolution: a cross-correlation, as is usual for neural networks.

    Args:
        x, weight: see Shape.
        stride: the step of the kernel.
        padding: the number of zeros on each side; "same" is what gives ceil(size / stride) output positions, where an
            odd number of zeros has the larger half behind.
        dilation: the step between the pixels that the entries of the kernel multiply.
        groups: the number of groups of channels; each output channel reads those of its own group alone.

    Shape:
        x (B, H, W, in), weight (KH, KW, in / groups, out)
        -> (B, (H + 2 padding - dilation (KH - 1) - 1) // stride + 1, ..., out).

    Raises:
        ShapeError: the channels differ or do not divide by `groups`, or the kernel is larger than the padded image.
        UsageError: `padding` is another word than "same".
    """
    conv2d.check(x, weight)
    return _convolution("conv2d", x, weight, check_pair("conv2d", "stride", stride, 1), padding,
                        check_pair("conv2d", "dilation", dilation, 1), groups)


@op("x: real[batch, time, channels], weight: real[k, group, out]")
def conv1d(x: Tensor, weight: Tensor, *, stride: AtLeast1 = 1, padding: int | Literal["same"] = 0,
           dilation: AtLeast1 = 1, groups: AtLeast1 = 1) -> Tensor:
    """One-dimensional convolution: `conv2d` along the time.

    Shape:
        x (B, T, in), weight (K, in / groups, out) -> (B, (T + 2 padding - dilation (K - 1) - 1) // stride + 1, out).

    Raises:
        ShapeError, UsageError: as `conv2d`.
    """
    conv1d.check(x, weight)
    if not isinstance(padding, str):
        padding = check_integer("conv1d", "padding", padding, 0)
    # The time is the height, of which rules take some rows at a time. Along the width of 1 nothing moves, so that any
    # stride and dilation serve.
    kernel = reshape(weight, shape=(weight.shape[0], 1, *weight.shape[1:]))
    y = _convolution("conv1d", _as_image(x), kernel, (stride, stride),
                     padding if isinstance(padding, str) else (padding, 0), (dilation, dilation), groups)
    return _as_sequence(y)


def _as_image(x: Tensor) -> Tensor:
    """A sequence as images of width 1."""
    return reshape(x, shape=(*x.shape[:2], 1, x.shape[2]))


def _as_sequence(image: Tensor) -> Tensor:
    return reshape(image, shape=(*image.shape[:2], image.shape[3]))


def _convolution(name: str, x: Tensor, weight: Tensor, stride: Pair, padding: Padding, dilation: Pair, groups: int,
                 ) -> Tensor:
    kernel = weight.shape[0], weight.shape[1]
    if isinstance(padding, str):
        check_choice(name, "padding", padding, ("same",))
        borders = [_same(n, k, s, d) for n, k, s, d in zip(x.shape[1:3], kernel, stride, dilation, strict=False)]
    else:
        borders = [(n, n) for n in check_pair(name, "padding", padding, 0)]
    _check_image(name, x, kernel, [before + behind for before, behind in borders], dilation,
                 "time" if name == "conv1d" else "height, width")
    if x.shape[3] != weight.shape[2] * groups or weight.shape[3] % groups:
        raise ShapeError(f"[{name}] expected {weight.shape[2] * groups} channels as weight {weight.shape} has in "
                         f"{groups} groups, which divide {weight.shape[3]} outputs, found x {x.shape}")
    padded = (n + sum(border) for n, border in zip(x.shape[1:3], borders, strict=True))
    check_room(name, x.backend, (x.shape[0], *padded, x.shape[3]))
    if any(before != behind for before, behind in borders):
        x, borders = pad(x, widths=((0, 0), *borders, (0, 0))), [(0, 0), (0, 0)]
    return conv2d.apply(x, weight, stride=_pair_or_int(stride), padding=_pair_or_int((borders[0][0], borders[1][0])),
                        dilation=_pair_or_int(dilation), groups=groups)


def _same(size: int, kernel: int, stride: int, dilation: int) -> Pair:
    """The zeros before and behind an axis that give ceil(size / stride) output positions."""
    missing = max((-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return missing // 2, missing - missing // 2


def _by_group(be: Backend, rows: Array, groups: int) -> Array:
    """A matrix (rows, channels) as (groups, rows, channels of a group); one group stays a matrix."""
    if groups == 1:
        return rows
    n, channels = rows.shape
    return be.permute_dims(be.reshape(rows, (n, groups, channels // groups)), (1, 0, 2))


def _joined(be: Backend, parts: Array) -> Array:
    """The matrix of which `_by_group` made the parts."""
    if len(parts.shape) == 2:
        return parts
    groups, n, channels = parts.shape
    return be.reshape(be.permute_dims(parts, (1, 0, 2)), (n, groups * channels))


def _patches(be: Backend, x: Array, windows: Sequence[tuple[slice, ...]], groups: int) -> Array:
    """The image as a matrix for each group: a row for each output position, a column for each weight."""
    columns = [x[window] for window in windows]
    if groups == 1:
        patches = columns[0] if len(columns) == 1 else be.concat(columns, axis=3)
        return be.reshape(patches, (prod(patches.shape[:3]), patches.shape[3]))
    rows = prod(columns[0].shape[:3])
    parts = [_by_group(be, be.reshape(column, (rows, x.shape[3])), groups) for column in columns]
    return parts[0] if len(parts) == 1 else be.concat(parts, axis=2)


def _conv_forward(be: Backend, x: Array, weight: Array, stride: Sizes, padding: Sizes, dilation: Sizes = 1,
                  groups: int = 1) -> tuple[Array, Any]:
    padded = be.pad(x, ((0, 0), *((n, n) for n in as_pair(padding)), (0, 0))) if padding else x
    steps = as_pair(stride), as_pair(dilation)
    kernel = weight.shape[:2]
    flat = be.reshape(weight, (prod(weight.shape[:3]), weight.shape[3]))
    windows = list(_windows(padded.shape, kernel, *steps))
    y = _joined(be, be.matmul(_patches(be, padded, windows, groups), _by_group(be, flat, groups)))
    return be.reshape(y, (x.shape[0], *out_size(padded.shape[1:3], kernel, *steps), weight.shape[3])), (
        padded, weight, stride, padding, dilation, groups)


def _conv_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    padded, weight, stride, _, dilation, groups = saved
    dx = image_gradient(be, padded.shape, gout, *saved[1:]) if needs[0] else None
    gw = None
    if needs[1]:
        g = _by_group(be, be.reshape(gout, (prod(gout.shape[:3]), gout.shape[3])), groups)
        windows = list(_windows(padded.shape, weight.shape[:2], as_pair(stride), as_pair(dilation)))
        patches = _patches(be, padded, windows, groups)
        gw = be.reshape(_joined(be, be.matmul(transposed(be, patches), g)), weight.shape)
    return dx, gw


def image_gradient(be: Backend, padded: Shape, gout: Array, weight: Array, stride: Sizes, padding: Sizes,
                   dilation: Sizes, groups: int) -> Array:
    """The gradient of images, whose shape with their border is `padded`. Each product is of a weight that was used."""
    g = _by_group(be, be.reshape(gout, (prod(gout.shape[:3]), gout.shape[3])), groups)
    dx = be.zeros(padded, be.dtype(gout))
    for k, window in enumerate(_windows(padded, weight.shape[:2], as_pair(stride), as_pair(dilation))):
        plane = _by_group(be, weight[k // weight.shape[1], k % weight.shape[1]], groups)
        part = _joined(be, be.matmul(g, transposed(be, plane)))
        dx = be.slice_add(dx, window, be.reshape(part, (*gout.shape[:3], padded[3])))
    rows, columns = as_pair(padding)
    return dx[:, rows:padded[1] - rows, columns:padded[2] - columns] if padding else dx


conv2d.add(Rule("composed", _conv_forward, _conv_vjp))


def _check_pool(name: str, x: Tensor, size: Sizes, stride: Sizes | None, padding: Sizes) -> tuple[Pair, Pair, Pair]:
    sizes, border = check_pair(name, "size", size, 1), check_pair(name, "padding", padding, 0)
    if any(2 * b > n for b, n in zip(border, sizes, strict=True)):
        raise ShapeError(f"[{name}] padding: expected at most half of size {sizes}, found {border}")
    _check_image(name, x, sizes, [2 * b for b in border])
    return sizes, sizes if stride is None else check_pair(name, "stride", stride, 1), border


def _with_border(x: Tensor, border: Pair, value: float) -> Tensor:
    return pad(x, widths=((0, 0), *((n, n) for n in border), (0, 0)), value=value) if any(border) else x


@op("x: real[batch, height, width, channels] -> like x")
def max_pool2d(x: Tensor, *, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> Tensor:
    """Greatest value of each window; equal greatest values share the gradient evenly.

    Args:
        x: the images.
        size: the height and width of a window.
        stride: the step of the windows; `size` if None.
        padding: the border of -infinity on each side, at most half a window wide.

    Shape:
        x (B, H, W, C) -> (B, (H + 2 padding - size) // stride + 1, (W + 2 padding - size) // stride + 1, C).
    """
    max_pool2d.check(x)
    sizes, steps, border = _check_pool("max_pool2d", x, size, stride, padding)
    return max_pool2d.apply(_with_border(x, border, -inf), size=_pair_or_int(sizes), stride=_pair_or_int(steps),
                            border=border)


def _max_pool_forward(be: Backend, x: Array, size: Sizes, stride: Sizes, border: Pair = (0, 0)) -> tuple[Array, Any]:
    y, windows = None, list(_windows(x.shape, as_pair(size), as_pair(stride)))
    for window in windows:
        y = x[window] if y is None else be.maximum(y, x[window])
    return y, (x, y, windows, border)


def _max_pool_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    """The gradient of the padded images. The border takes none, also where all values of a window are -infinity."""
    x, y, windows, (rows, columns) = saved
    is_pixel = None
    if rows or columns:
        pixels = be.ones((x.shape[1] - 2 * rows, x.shape[2] - 2 * columns, 1))
        is_pixel = be.pad(pixels, ((rows, rows), (columns, columns), (0, 0))) > 0.0

    def chosen(window: tuple[slice, ...]) -> Array:
        is_greatest = is_extreme(be, x[window], y)
        return is_greatest if is_pixel is None else be.logical_and(is_greatest, is_pixel[window[1:3]])

    count = be.zeros(y.shape, be.dtype(y))
    for window in windows:
        count = count + be.astype(chosen(window), be.dtype(y))
    share = gout / count
    dx = be.zeros(x.shape, be.dtype(x))
    for window in windows:
        dx = be.slice_add(dx, window, be.where(chosen(window), share, 0.0))
    return (dx,)


max_pool2d.add(Rule("composed", _max_pool_forward, _max_pool_vjp))


@op("x: real[batch, height, width, channels] -> like x")
def avg_pool2d(x: Tensor, *, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> Tensor:
    """Mean of each window, in which the zeros of the border count. Arguments and shapes as for `max_pool2d`."""
    avg_pool2d.check(x)
    sizes, steps, border = _check_pool("avg_pool2d", x, size, stride, padding)
    return avg_pool2d.apply(_with_border(x, border, 0.0), size=_pair_or_int(sizes), stride=_pair_or_int(steps))


def _avg_pool_forward(be: Backend, x: Array, size: Sizes, stride: Sizes) -> tuple[Array, Any]:
    y, windows = 0.0, list(_windows(x.shape, as_pair(size), as_pair(stride)))
    for window in windows:
        y = y + x[window]
    return y / len(windows), (x.shape, windows)


def _avg_pool_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array]:
    shape, windows = saved
    share = gout / len(windows)
    dx = be.zeros(shape, be.dtype(gout))
    for window in windows:
        dx = be.slice_add(dx, window, share)
    return (dx,)


avg_pool2d.add(Rule("composed", _avg_pool_forward, _avg_pool_vjp))


@op("x: real[batch, time, channels]")
def max_pool1d(x: Tensor, *, size: AtLeast1, stride: AtLeast1 | None = None, padding: Width = 0) -> Tensor:
    """Greatest value of each window along the time; equal greatest values share the gradient evenly.

    Shape:
        x (B, T, C) -> (B, (T + 2 padding - size) // stride + 1, C); stride is size if None.
    """
    max_pool1d.check(x)
    image, attrs = _windows_in_time("max_pool1d", x, size, stride, padding, -inf)
    return _as_sequence(max_pool2d.apply(image, border=(padding, 0), **attrs))


@op("x: real[batch, time, channels]")
def avg_pool1d(x: Tensor, *, size: AtLeast1, stride: AtLeast1 | None = None, padding: Width = 0) -> Tensor:
    """Mean of each window along the time, in which the zeros of the border count. Shapes as for `max_pool1d`."""
    avg_pool1d.check(x)
    image, attrs = _windows_in_time("avg_pool1d", x, size, stride, padding, 0.0)
    return _as_sequence(avg_pool2d.apply(image, **attrs))


def _windows_in_time(name: str, x: Tensor, size: int, stride: int | None, padding: int, border: float,
                     ) -> tuple[Tensor, dict[str, Sizes]]:
    """A sequence as images of width 1 with their border, and the windows along the height."""
    image = _as_image(x)
    if 2 * padding > size:
        raise ShapeError(f"[{name}] padding: expected at most half of size {size}, found {padding}")
    _check_image(name, image, (size, 1), (2 * padding, 0), axes="time")
    return _with_border(image, (padding, 0), border), {
        "size": _pair_or_int((size, 1)), "stride": _pair_or_int((size if stride is None else stride, 1))}
