"""The cases of all norms of rows, and what is timed of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from duoln.kernels.registry import STORED, Arrays, Case, Shape, Timed, floats, sizes_text

NORMS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
_WIDTHS = (1, 2, 7, 31, 32, 33, 64, 65, 100, 128, 129, 255, 256, 257, 500, 512, 513, 1000, 1024, 1025, 2047, 2048, 2050,
           4096, 4097, 8192, 8193, 10_001)
"""Around each boundary of a kernel, and odd ones."""
_SMALL = ((3, 5), (1, 6), (2, 1, 6), (5,))
_NET = ((3, 8192), (3, 8193))
_NET_OF_GPUS = ((9, 64), (5, 33), (50_021, 7))
"""The last has so many rows of few values that each block takes several: an H100 has 2,112 blocks of 16 rows each."""
_LOOPS = ((25_013, 33), (12_007, 100), (12_007, 256), (6007, 512), (4099, 1000), (4099, 1001), (4099, 2048),
          (4099, 4096), (4099, 8192), (1033, 8201))
"""The same for each entry of the table of plans."""
_SHAPES = ((1, 256), (1, 760), (37, 1128), (37, 2048), (199, 760), (199, 4096), (199, 8192), (4099, 7), (4099, 33),
           (4099, 760), (4099, 1128))
"""Odd numbers of rows, and widths that are no powers of two."""
_WIDE = ((1, 262_144), (37, 65_537), (37, 262_144), (199, 131_072), (1033, 16_384))
_WIDTHS_OF_PLANS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def cases() -> Iterator[Case]:
    """Widths around each boundary, then what a GPU adds."""
    for op in NORMS:
        few_rows = (1, 3) if op == "layer_norm" else (3,)
        for width in _WIDTHS:
            for rows in (*few_rows, 70) if width <= 1025 else few_rows:
                yield norm(op, (rows, width))._replace(net=(rows, width) in _NET)
        for shape in _SMALL:
            yield norm(op, shape)._replace(layouts=True)
        yield from _on_gpus(op)
    yield from _activated()
    for width in _WIDTHS:
        yield norm("layer_norm", (5, width), mean=10, absent=("bias",), misaligned=True)._replace(net=width == 64)
        yield norm("layer_norm", (2, 2, width), absent=("gain", "bias"))
        for op in NORMS[1:]:
            yield norm(op, (2, 2, width), mean=10, absent=("gain", "bias"), misaligned=True)
    yield norm("layer_norm", (4, 6), absent=("gain", "bias"))._replace(layouts=True)


def _activated() -> Iterator[Case]:
    for activation in ("relu", "tanh"):
        for width in _WIDTHS:
            yield norm("layer_norm", (4, width), activation=activation)
        for shape in _SMALL:
            yield norm("layer_norm", shape, activation=activation)._replace(layouts=True)
        yield norm("layer_norm", (5, 1000), activation=activation).on_gpu(net=activation == "tanh")
        yield norm("layer_norm", (1033, 8201), activation=activation).on_gpu()
        for stored in ("float32", *STORED):
            yield norm("layer_norm", (4099, 1000), activation=activation).on_gpu(stored)


def _on_gpus(op: str) -> Iterator[Case]:
    """So many rows that each block takes several, and each kernel on values of 16 bits."""
    for shape in _NET_OF_GPUS:
        yield norm(op, shape).on_gpu(net=True)
    of_layer_norm = op == "layer_norm"
    for shape in (*_LOOPS, *_SHAPES[of_layer_norm:], *_WIDE[:None if of_layer_norm else 2]):
        yield norm(op, shape).on_gpu()
    if not of_layer_norm:
        absent = ("bias",) if op == "add_layer_norm" else ()
        yield norm(op, (5, 64), mean=10, absent=absent, misaligned=True).on_gpu(net=True)
    for stored in STORED:
        for shape in ((9, 64), (5, 33), *_NET, (5, 1000)):
            yield norm(op, shape).on_gpu(stored, net=True)
        yield norm(op, (5, 64), misaligned=True).on_gpu(stored, net=True)
        for width in _WIDTHS_OF_PLANS:
            yield norm(op, (37, width)).on_gpu(stored)
            yield norm(op, (37, width - 1)).on_gpu(stored)
        for shape in ((50_021, 7), (6007, 512), (4099, 1000), (4099, 1001), (4099, 8192), (1033, 8201)):
            yield norm(op, shape).on_gpu(stored)


def norm(op: str, shape: Sequence[int], *, activation: str | None = None, mean: float = 0, absent: Sequence[str] = (),
         misaligned: bool = False) -> Case:
    """One case of a norm over the last axis; `mean` is that of what it normalises, `absent` names gain or bias."""
    width, summands = shape[-1], 2 if op.startswith("add_") else 1

    def arrays() -> Arrays:
        rng = np.random.default_rng([*shape, summands])
        rows = [floats(rng, *shape) for _ in range(summands)]
        if mean:
            rows = [x + np.float32(mean / summands) for x in rows]
        return *rows, *(None if name in absent else floats(rng, width)
                        for name in (("gain", "bias") if op.endswith("layer_norm") else ("gain",)))

    attrs: dict[str, Any] = {"eps": epsilon(width)}
    if activation:
        attrs["activation"] = activation
    left = "alone" if len(absent) > 1 else f"no {absent[0]}" if absent else ""
    label = ", ".join(filter(None, (sizes_text(shape), activation, f"mean {mean:g}" if mean else "", left,
                                    "misaligned" if misaligned else "")))
    length = 40 * width if mean else max(prod(shape[:-1]), width)
    return Case(op, label, arrays, attrs, length, shape, misaligned)


def epsilon(width: int) -> float:
    """Large for narrow rows: a norm turns two values into +1 and -1, so a small eps leaves no gradient to compare."""
    return 1e-5 if width > 2 else 1.0


# What is timed ----------------------------------------------------------------------------------------------------

_SUITE: tuple[Shape, ...] = (
    *((rows, width) for rows in (4096, 16384) for width in (256, 512, 768, 1024, 2048, 4096, 8192)), (4096, 16384),
    *((4096, width) for width in (100, 1000, 1600, 2400, 9600)), (8, 400), (32, 1024), (128, 256))
"""Widths of transformers, widths that no vector length divides, and batches so small that only the launch counts."""
_SMALL_SUITE: tuple[Shape, ...] = ((4096, 1000), (4096, 256), (1024, 4096), (32, 1024))
_ON_DEVICE: tuple[Shape, ...] = (
    (4096, 4096), (4096, 8192), (4096, 2048), (4096, 1000), (32, 1024), (4099, 1001), (199, 65_536), (37, 262_144),
    (4099, 257), (199, 16_385), (1, 131_072), (4096, 1024))
"""The later ones are rows and widths of quack's tests."""
_SUITE_BESIDE: tuple[Shape, ...] = ((4096, 1024), (4096, 4096), (4096, 8192), (4096, 1000), (2048, 512), (32, 1024))
_SMALL_BESIDE: tuple[Shape, ...] = ((4096, 1000), (2048, 512))
"""The suites of the three norms beside layer norm."""
_FLOPS = {"layer_norm": (7, 11), "rms_norm": (4, 8)}
"""Forward: add up, subtract the mean, square, add up, scale, gain, bias; an RMS norm has no mean and no bias.
Backward: three for dy * gain, its product with the normalised row and the sum of this product, another for its own sum;
three or four for dx; a product and a sum for the gradient of the gain, a sum for that of the bias."""


def _in_torch(op: str, torch: Any, x: Any, *others: Any, eps: float) -> Any:
    norm_of = getattr(torch.nn.functional, op.removeprefix("add_"))
    if not op.startswith("add_"):
        return norm_of(x, x.shape[-1:], *others, eps=eps)
    total = x + others[0]
    return norm_of(total, x.shape[-1:], *others[1:], eps=eps), total


def _timed(op: str) -> Timed:
    is_sum = op.startswith("add_")
    forward, backward = _FLOPS[op.removeprefix("add_")]
    suites = (_SUITE, _SMALL_SUITE) if op == "layer_norm" else (_SUITE_BESIDE, _SMALL_BESIDE)
    return Timed(lambda shape: norm(op, shape), *suites, arrays=(4, 2) if is_sum else (2, 2),
                 flops=(forward + is_sum, backward + is_sum), peer=partial(_in_torch, op),
                 on_device=_ON_DEVICE if op == "layer_norm" else _ON_DEVICE[:1])


TIMED = {op: _timed(op) for op in NORMS}
"""Forward reads x and writes y; a sum also reads the residual and writes the sum. Backward reads dy and writes dx,
which is the gradient of both terms."""
