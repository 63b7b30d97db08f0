"""The cases of softmax, of its logarithm, of cross-entropy and of that of a product; what is timed of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from duoln.kernels.registry import STORED, Arrays, Case, Shape, Timed, drawn, floats, sizes_text


def cases() -> Iterator[Case]:
    """Those of all four operators."""
    yield from _softmax()
    yield from _losses()
    yield from _of_products()


def _softmax() -> Iterator[Case]:
    """Rows whose widths are around a vector, and large ones; some of few values."""
    for shape in ((1, 1), (3, 2), (5, 15), (5, 16), (5, 17), (130, 33), (9, 1000), (2, 3, 257), (2, 20_001)):
        yield from _both(shape, layouts=False)
    for few in ((4, 6), (1, 3), (2, 1, 5), (7,)):
        yield from _both(few, layouts=True)


def _both(shape: tuple[int, ...], layouts: bool) -> Iterator[Case]:
    for op in ("softmax", "log_softmax"):
        yield Case(op, sizes_text(shape), drawn(shape, seed=shape), {"axis": len(shape) - 1}, shape[-1],
                   layouts=layouts)


def _losses() -> Iterator[Case]:
    """Rows, and classes around each boundary."""
    for shape in ((1, 1), (3, 2), (5, 10), (130, 10), (9, 1000), (3, 1024), (3, 1025), (2, 3, 33), (2, 20_000)):
        yield cross_entropy(shape)._replace(net=shape in ((130, 10), (3, 1025)))
    for few in ((4, 6), (1, 3), (2, 3, 5), (9,)):
        yield cross_entropy(few)._replace(layouts=True)
    for shape in ((4099, 1000), (515, 30_000)):
        yield cross_entropy(shape).on_gpu()
    for stored in STORED:
        for shape in ((130, 10), (9, 1000), (3, 1025), (4099, 1000), (515, 30_000)):
            yield cross_entropy(shape).on_gpu(stored, net=shape in ((130, 10), (3, 1025)))


def cross_entropy(shape: Sequence[int]) -> Case:
    """One case of logits (..., classes)."""
    def arrays() -> Arrays:
        rng = np.random.default_rng(shape)
        labels = rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
        return floats(rng, *shape, scale=5), labels

    return Case("softmax_cross_entropy", sizes_text(shape), arrays, {}, shape[-1])


_SUITE: tuple[Shape, ...] = ((128, 10), (65536, 10), (4096, 1000), (4096, 10000), (4096, 32000))
"""Digits at the paper's batch and as a full data set, ImageNet's classes, and two vocabularies."""

TIMED = {"softmax_cross_entropy": Timed(
    cross_entropy, _SUITE, small=((128, 10), (4096, 1000), (512, 10000)), arrays=(1, 1), flops=(4, 3), row_bytes=(8, 4),
    on_device=((4096, 10_000), (128, 10), (4096, 1000)),
    peer=lambda torch, x, labels: torch.nn.functional.cross_entropy(x, labels, reduction="none"))}
"""Forward reads logits and labels and writes a loss for each row: compare with the largest, subtract it, exponentiate,
add up. Backward reads the gradient of the losses and writes that of the logits: divide by the sum, subtract the label's
one, multiply by the row's gradient."""


def _of_products() -> Iterator[Case]:
    """Few and many classes; some rows have no label."""
    for rows, n_in, classes in ((1, 1, 1), (3, 2, 5), (70, 33, 1000), (9, 130, 20_001)):
        yield _classes((rows,), n_in, classes)
    for before, n_in, classes in (((4,), 5, 6), ((1,), 3, 4), ((2, 3), 2, 5), ((3,), 1, 3), ((9,), 33, 1000)):
        yield _classes(before, n_in, classes)._replace(layouts=True)


def _classes(before: Sequence[int], n_in: int, classes: int) -> Case:
    def arrays() -> Arrays:
        rng = np.random.default_rng([*before, n_in, classes])
        labels = rng.integers(-1, classes, before).astype(np.int32)
        x, weights = floats(rng, *before, n_in), floats(rng, n_in, classes, scale=n_in ** -0.5)
        return x, weights, floats(rng, classes), labels

    return Case("linear_cross_entropy", sizes_text((*before, n_in, classes)), arrays, {}, max(*before, n_in, classes))
