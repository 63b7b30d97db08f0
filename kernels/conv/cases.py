"""The cases of convolution and of pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from duoln.kernels.registry import Case, drawn
from duoln.ops.conv import Sizes


def cases() -> Iterator[Case]:
    """Images with their channels last."""
    for x, weight, stride, padding in (((1, 1, 1, 1), (1, 1, 1, 1), 1, 0), ((3, 7, 6, 3), (3, 3, 3, 5), 1, 1),
                                       ((5, 6, 9, 4), (2, 3, 4, 3), 2, 0), ((2, 5, 5, 2), (1, 1, 2, 7), 1, 2),
                                       ((2, 12, 12, 64), (3, 3, 64, 96), 1, 1), ((3, 9, 8, 17), (4, 2, 17, 33), 3, 2),
                                       ((2, 19, 40, 5), (3, 3, 5, 16), 1, 1), ((1, 5, 6, 150), (3, 5, 150, 3), 1, 4)):
        yield _conv(x, weight, stride, padding)
    for x, weight, padding in (((2, 5, 4, 3), (3, 2, 3, 2), 1), ((2, 5, 5, 1), (3, 3, 1, 1), 0),
                               ((1, 4, 5, 2), (2, 2, 2, 3), 0), ((3, 1, 4, 2), (1, 3, 2, 1), 1),
                               ((2, 4, 1, 3), (3, 1, 3, 2), 0), ((1, 1, 6, 1), (1, 2, 1, 2), 0),
                               ((2, 3, 3, 2), (1, 1, 2, 3), 0), ((1, 3, 3, 1), (3, 3, 1, 1), 0),
                               ((2, 3, 3, 1), (1, 1, 1, 2), 2)):
        yield _conv(x, weight, 1, padding)._replace(layouts=True)
    for x, weight, attrs in (
            ((2, 11, 10, 5), (3, 3, 5, 7), {"dilation": 2, "padding": 2}),
            ((1, 13, 6, 3), (3, 2, 3, 4), {"dilation": (4, 3)}),
            ((2, 30, 1, 20), (5, 1, 20, 18), {"dilation": (3, 1), "padding": (6, 0)}),
            ((3, 9, 12, 16), (3, 3, 1, 16), {"groups": 16, "padding": 1}),
            ((2, 10, 9, 30), (3, 3, 1, 30), {"groups": 30, "padding": 1, "stride": 2}),
            ((2, 40, 41, 3), (3, 3, 1, 3), {"groups": 3}),
            ((2, 300, 1, 33), (7, 1, 1, 33), {"groups": 33, "padding": (3, 0)}),
            ((2, 8, 9, 32), (3, 3, 4, 32), {"groups": 8, "padding": 1}), ((1, 9, 8, 18), (3, 2, 6, 15), {"groups": 3}),
            ((2, 7, 7, 34), (3, 3, 17, 66), {"groups": 2, "stride": (2, 3)}),
            ((1, 9, 9, 40), (2, 2, 20, 4), {"groups": 2, "dilation": 3, "stride": 2, "padding": (0, 2)})):
        yield _conv(x, weight, **attrs)
    for x, weight, attrs in (((2, 4, 3, 2), (2, 2, 1, 2), {"groups": 2, "padding": 1}),
                             ((1, 5, 4, 2), (2, 2, 2, 2), {"dilation": (3, 2), "padding": (1, 0)})):
        yield _conv(x, weight, **attrs)._replace(layouts=True)
    yield from _pools()


def _conv(x: Sequence[int], weight: Sequence[int], stride: Sizes = 1, padding: Sizes = 0, **attrs: Any) -> Case:
    words = (f"{name} {value}" for name, value in (("stride", stride), ("padding", padding), *attrs.items()))
    return Case("conv2d", ", ".join((f"{x} by {weight}", *words)), drawn(x, weight, seed=[*x, *weight]),
                {"stride": stride, "padding": padding, **attrs}, max(prod(weight[:3]), prod(x[:3])))


def _pools() -> Iterator[Case]:
    for shape, size, stride in (((1, 1, 1, 1), 1, 1), ((3, 7, 6, 5), 2, 2), ((2, 9, 9, 33), 3, 3), ((2, 8, 9, 6), 3, 2),
                                ((1, 9, 7, 4), 2, 3)):
        yield _pool(shape, size, stride)
    for shape, size in (((2, 4, 6, 3), 2), ((1, 5, 3, 1), 2), ((2, 3, 3, 1), 3), ((2, 2, 3, 2), 1)):
        yield _pool(shape, size, size)._replace(layouts=True)


def _pool(shape: Sequence[int], size: int, stride: int) -> Case:
    return Case("max_pool2d", f"{shape}, {size} x {size}, stride {stride}", drawn(shape, seed=shape),
                {"size": size, "stride": stride}, size ** 2)
