"""The cases of softmax and of its logarithm."""

from __future__ import annotations

from collections.abc import Iterator

from duoln.kernels.registry import Case, by, drawn


def cases() -> Iterator[Case]:
    """Rows whose widths are around a vector, and large ones; some of few values."""
    for shape in ((1, 1), (3, 2), (5, 15), (5, 16), (5, 17), (130, 33), (9, 1000), (2, 3, 257), (2, 20_001)):
        yield from _both(shape, layouts=False)
    for few in ((4, 6), (1, 3), (2, 1, 5), (7,)):
        yield from _both(few, layouts=True)


def _both(shape: tuple[int, ...], layouts: bool) -> Iterator[Case]:
    for op in ("softmax", "log_softmax"):
        yield Case(op, by(shape), drawn(shape, seed=shape), {"axis": len(shape) - 1}, shape[-1], layouts=layouts)
