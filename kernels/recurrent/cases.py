"""The shapes of the recurrent rules' benchmarks, and the operations and bytes that a run needs, as plain data."""

from __future__ import annotations

from typing import NamedTuple

from duoln.ops.recurrent.variants import CELLS


class Shape(NamedTuple):
    """Time steps, rows, inputs, hidden units."""

    steps: int
    batch: int
    n_in: int
    hidden: int


SHAPES = (Shape(100, 8, 3, 400), Shape(100, 128, 256, 256), Shape(30, 64, 620, 1024))
"""Handwriting synthesis, a middle size, and sentence encoders."""


def flops(cell: str, shape: Shape, backward: bool) -> int:
    """Floating-point operations of the products of one run; backward adds two products for each one of forward."""
    t, b, n, h = shape
    return 2 * t * b * (n + h) * CELLS[cell].gates * h * (3 if backward else 1)


def least_bytes(cell: str, shape: Shape, itemsize: int = 4) -> int:
    """The least bytes that forward moves: it reads inputs, weights and x_proj, and writes x_proj and hidden states."""
    t, b, n, h = shape
    gates = CELLS[cell].gates * h
    return itemsize * (t * b * (n + 2 * gates + h) + (n + h) * gates)
