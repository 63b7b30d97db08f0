"""The cases of attention; and what is timed of it, with its operations and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from duoln.kernels.registry import Arrays, Case, floats


def cases() -> Iterator[Case]:
    """Queries and keys around the blocks of the rule, with and without masks of each shape; some of few values."""
    for before, queries, keys, width, n_values, causal in (
            ((), 1, 1, 1, 1, True), ((2, 3), 5, 5, 4, 4, True), ((3, 1), 49, 65, 33, 17, False),
            ((2,), 130, 70, 16, 65, True), ((1, 2), 64, 200, 64, 64, True), ((2, 2, 1), 13, 3, 8, 5, False),
            ((3, 2, 4), 7, 9, 8, 5, True)):
        for mask in (None, *dict.fromkeys(((queries, keys), (*before, 1, keys), (*before[1:], queries, keys)))):
            yield _attention(before, (queries, keys, width, n_values), causal, mask)
    for before, sizes, causal, mask in (
            ((2, 3), (5, 4, 3, 2), True, None), ((1, 2), (3, 5, 4, 4), False, (3, 5)),
            ((2,), (4, 4, 1, 3), True, (1, 1, 4)), ((), (2, 3, 2, 1), False, (1, 3)),
            ((2, 1, 2), (3, 3, 2, 2), True, (2, 1, 1, 3, 3))):
        yield _attention(before, sizes, causal, mask)._replace(layouts=True)


def _attention(before: Sequence[int], sizes: tuple[int, int, int, int], causal: bool,
               mask: Sequence[int] | None) -> Case:
    """`sizes` are queries, keys, the width of both and that of the values."""
    queries, keys, width, n_values = sizes

    def arrays() -> Arrays:
        rng = np.random.default_rng([queries, keys, width])
        shapes = (*before, queries, width), (*before, keys, width), (*before, keys, n_values)
        return *(floats(rng, *shape) for shape in shapes), None if mask is None else rng.random(mask) < 0.6

    label = f"{(*before, queries, width)} by {keys}, causal {causal}" + (f", mask {mask}" if mask else "")
    return Case("scaled_dot_product_attention", label, arrays, {"causal": causal, "scale": width ** -0.5},
                2 * max(keys, queries, width))


# What is timed ----------------------------------------------------------------------------------------------------

class Shape(NamedTuple):
    """Rows of the batch, heads, time steps, values of a head."""

    batch: int
    heads: int
    steps: int
    width: int


SHAPES = (Shape(32, 4, 128, 32), Shape(8, 8, 512, 64), Shape(1, 8, 2048, 64))
"""A small language model, a Transformer's base model, and a long sequence."""


def flops(shape: Shape, causal: bool, backward: bool) -> int:
    """Floating-point operations of the products: two forward, and five backward, of which one is computed again."""
    one = 2 * shape.batch * shape.heads * shape.steps ** 2 * shape.width
    return one * (7 if backward else 2) // (2 if causal else 1)


def least_bytes(shape: Shape) -> int:
    """The least bytes that forward moves: queries, keys, values and results."""
    return 4 * 4 * shape.batch * shape.heads * shape.steps * shape.width
