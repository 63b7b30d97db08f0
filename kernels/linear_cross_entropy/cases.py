"""The cases of cross-entropy of a product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from duoln.kernels.registry import Arrays, Case, by, floats


def cases() -> Iterator[Case]:
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

    return Case("linear_cross_entropy", by((*before, n_in, classes)), arrays, {}, max(*before, n_in, classes))
