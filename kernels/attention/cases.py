"""The shapes of attention's benchmarks, and the operations and bytes of a run, as plain data."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """Rows of the batch, heads, time steps, values of a head."""

    batch: int
    heads: int
    steps: int
    width: int


SHAPES = (Shape(32, 4, 128, 32), Shape(8, 8, 512, 64), Shape(1, 8, 2048, 64))
"""A small language model, a Transformer's base model, and a long sequence."""


def scores_bytes(shape: Shape) -> int:
    """Bytes of the scores of all queries, which no rule holds at once."""
    return 4 * shape.batch * shape.heads * shape.steps ** 2


def flops(shape: Shape, causal: bool, backward: bool) -> int:
    """Floating-point operations of the products: two forward, and five backward, of which one is computed again."""
    one = 2 * shape.batch * shape.heads * shape.steps ** 2 * shape.width
    return one * (7 if backward else 2) // (2 if causal else 1)


def least_bytes(shape: Shape) -> int:
    """The least bytes that forward moves: queries, keys, values and results."""
    return 4 * 4 * shape.batch * shape.heads * shape.steps * shape.width
