"""The cases of products with a bias, with an activation, and of two matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from duoln.kernels.registry import Arrays, Case, floats, sizes_text

_SMALL = ((3, 257, 256), (701, 3, 130), (17, 65, 300))
"""Few rows, few inputs, and neither."""


def cases() -> Iterator[Case]:
    """Rows, inputs and outputs."""
    for sizes in ((1, 1, 65_536), (2, 257, 256), (3, 1000, 67), (4, 301, 1001), (4, 65_537, 1), (5, 1030, 70),
                  (65, 513, 17), (300, 33, 50), (300, 1025, 3), (1025, 3, 257), *_SMALL):
        small = sizes in _SMALL
        yield linear(*sizes)._replace(net=sizes == (2, 257, 256), layouts=small)
        yield _matmul(*sizes)._replace(layouts=small)
        for activation in ("relu", "tanh"):
            yield linear(*sizes, activation)._replace(layouts=small and sizes[0] > 3)
    for sizes in ((2500, 33, 50), (130, 257, 515), (70_001, 3, 33)):
        yield linear(*sizes).on_gpu(net=sizes[0] == 2500)


def linear(rows: int, n_in: int, n_out: int, activation: str | None = None) -> Case:
    """One case of `linear`, or of `activated_linear`."""
    def arrays() -> Arrays:
        return *_factors(rng := np.random.default_rng([rows, n_in, n_out]), rows, n_in, n_out), floats(rng, n_out)

    label, sizes = sizes_text((rows, n_in, n_out)), (rows, n_in, n_out)
    if activation is None:
        return Case("linear", label, arrays, {}, max(n_in, n_out), sizes)
    attrs = {"activation": activation}
    return Case("activated_linear", f"{label}, {activation}", arrays, attrs, max(n_in, n_out), sizes)


def _matmul(rows: int, n_in: int, n_out: int) -> Case:
    def arrays() -> Arrays:
        return _factors(np.random.default_rng([rows, n_in, n_out]), rows, n_in, n_out)

    return Case("matmul", sizes_text((rows, n_in, n_out)), arrays, {}, max(n_in, n_out), (rows, n_in, n_out))


def _factors(rng: np.random.Generator, rows: int, n_in: int, n_out: int) -> Arrays:
    return floats(rng, rows, n_in), floats(rng, n_in, n_out, scale=n_in ** -0.5)
