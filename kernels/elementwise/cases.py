"""The cases of operators on whole arrays, most of them so large that the compiled rules take them; and of parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from duoln.kernels.registry import Arrays, Case, drawn, floats


def cases() -> Iterator[Case]:
    """Arrays of one, two and three axes."""
    for shape in ((4096,), (5, 7, 131), (129, 257), (64, 64), (2, 50, 43)):
        yield _where(shape)._replace(layouts=shape in ((64, 64), (2, 50, 43)))
    for shape in ((65536,), (5, 7, 2003), (257, 263), (2, 129, 257)):
        layouts = shape == (2, 129, 257)
        for op in ("add", "multiply"):
            yield Case(op, f"{shape}", drawn(shape, shape, seed=shape), {}, 1, layouts=layouts)
        yield Case("sum", f"{shape}", drawn(shape, seed=shape), {"axis": tuple(range(len(shape))), "keepdims": False},
                   prod(shape), layouts=layouts)
    for shape, sizes, axis in (((2, 6), (2, 2, 2), 1), ((3, 4), (1, 2), 0), ((2, 3, 4), (1, 0, 3), 2), ((5,), (5,), 0)):
        yield Case("split", f"{shape} into {sizes}", drawn(shape, seed=shape), {"sizes": sizes, "axis": axis}, 1,
                   layouts=True)


def _where(shape: Sequence[int]) -> Case:
    def arrays() -> Arrays:
        rng = np.random.default_rng(shape)
        return rng.random(shape) < 0.6, floats(rng, *shape), floats(rng, *shape)

    return Case("where", f"{shape}", arrays, {}, 1)
